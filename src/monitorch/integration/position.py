"""Watching where a framework trains: from the beginning, or from the position of a run in a checkpoint."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..engine.ranks import several_processes
from ..errors import OptionError, UnsupportedModelError, warn
from ..watching.model_watch import Watch, check_options, watch

FILE = "monitorch.pt"
"""The file name inside a checkpoint folder; further watches use ``monitorch_1.pt`` and so on."""

Position = dict[str, Any]
"""The name of the run, and the state of the watch; empty if there is none."""


def check_callback_options(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options that ``watch`` does not have, and those that the Trainer itself knows."""
    if given := [name for name in known if name in options]:
        raise OptionError(f"MonitorchCallback gets {given[0]} from the Trainer: leave {given[0]}= out")
    check_options(options)


def validation_loss_in(names: Iterable[str], chosen: str | None) -> str:
    """The name of the validation loss: the chosen one, else the shortest with "loss" in it; empty if there is none.

    >>> validation_loss_in(["accuracy", "aux_loss", "loss"], None)
    'loss'
    """
    return chosen or min((name for name in names if "loss" in name.lower()), key=len, default="")


def position_of(watched: Watch) -> Position:
    """What goes into a checkpoint."""
    return {"run": watched.run, "watch": watched.state_dict()}


def settled_position_of(watched: Watch) -> Position:
    """The same, after a tick: what is still waiting for its tick would be shown twice by the resumed run."""
    if watched.inspector.state.is_between_steps and not several_processes():
        watched.tick()
    return position_of(watched)


def begin(
    model: Any, optimizer: Any, options: dict[str, Any], saved: Position, step: int, **of_run: Any
) -> Watch | None:
    """Watch a model that a framework trains. If it cannot be watched, training continues without.

    Args:
        model: the model, with its wrapper.
        optimizer: the optimizer, or several.
        options: the user's options.
        saved: the position in the checkpoint that training resumes from; if it names a run, that run continues as well.
        step: how many steps the framework has counted.
        **of_run: options of a stored run that the framework knows, unless the user has said otherwise.
    """
    if options.get("visualizer") is None:
        options = {**of_run, **options}
        if saved.get("run") is not None and options.get("resume", True):
            options |= {"run": saved["run"], "resume": True}
    try:
        watched = watch(model, optimizer, **options)
    except UnsupportedModelError as error:
        warn(f"the model is trained, but not watched: {error}")
        return None
    go_on(watched, saved, step)
    return watched


def go_on(watched: Watch, saved: Position, step: int) -> None:
    """Continue from a saved position; without a usable one, count from this step."""
    try:
        if saved:
            watched.load_state_dict(saved["watch"])
            return
    except Exception as error:
        warn(f"only the step of the checkpoint is used, which is {step}: {error}")
    if step:
        watched.begin_at(step)


def save_position(watched: Watch, folder: str | os.PathLike[str], *, writes: bool, number: int = 0) -> None:
    """Keep the position beside the weights; all processes call this, and one of them writes.

    Args:
        watched: whose position it is.
        folder: the folder of the checkpoint.
        writes: whether this process writes.
        number: which of several watches it is.
    """
    watched.tick()  # after this, no process holds anything the others lack
    if not writes:
        return
    try:
        torch.save(position_of(watched), _file(folder, number))
    except Exception as error:
        cannot = f"the position of the run cannot be saved in {folder}, so the run cannot be resumed from there"
        warn(f"{cannot}: {error}")


def saved_position(folder: str | os.PathLike[str], number: int = 0) -> Position:
    """What :func:`save_position` has saved; empty if there is nothing, or nothing that can be read."""
    file = _file(folder, number)
    if not file.exists():
        return {}
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
        return {"run": saved["run"], "watch": saved["watch"]}
    except Exception as error:
        warn(f"the run cannot be resumed from {file}: {error}")
        return {}


def _file(folder: str | os.PathLike[str], number: int) -> Path:
    name = Path(FILE)
    return Path(folder, f"{name.stem}_{number}{name.suffix}" if number else FILE)
