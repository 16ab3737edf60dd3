"""The position of a run in the folder of a checkpoint, for frameworks that give each checkpoint a folder."""

import os
from pathlib import Path
from typing import Any

import torch

from ..errors import users_line, warn
from ..watching.model_watch import Watch

FILE = "monitorch.pt"
"""In the folder of each checkpoint: the name of the run, and the state of the watch."""


def save_position(watched: Watch, folder: str | os.PathLike[str], *, writes: bool) -> None:
    """Keep the position beside the weights; all processes call this, and one of them writes."""
    watched.tick()  # then nothing is left that belongs to one process alone
    if not writes:
        return
    try:
        torch.save({"run": watched.run, "watch": watched.state_dict()}, Path(folder, FILE))
    except Exception as error:
        cannot = f"the position of the run cannot be saved in {folder}, so it cannot go on from there"
        warn(f"{cannot}: {error}", stacklevel=users_line())


def saved_position(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What :func:`save_position` has saved; empty if there is nothing, or nothing that can be read."""
    file = Path(folder, FILE)
    if not file.exists():
        return {}
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
        return {"run": saved["run"], "watch": saved["watch"]}
    except Exception as error:
        warn(f"the run cannot go on from {file}: {error}", stacklevel=users_line())
        return {}


def go_on(watched: Watch, saved: dict[str, Any], step: int) -> None:
    """Continue from a saved position; without a usable one, count on from this step."""
    try:
        if saved:
            watched.load_state_dict(saved["watch"])
            return
    except Exception as error:
        warn(f"the run begins anew at step {step}: {error}", stacklevel=users_line())
    if step:
        watched.begin_at(step)
