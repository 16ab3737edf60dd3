"""The run on disk that :func:`monitorch.watch` writes to."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..cli.wording import command
from ..engine.meeting import agree
from ..engine.ranks import own_rank, several_processes
from ..errors import OptionError, StoreError, short_repr, warn
from ..inspector import PyTorchInspector
from ..inspector.arguments import check
from ..store import DEFAULT_FOLDER, open_run
from ..store.run_list import time_name
from ..visualizer.store_visualizer import StoreVisualizer
from .environment import environment_facts
from .settings import settings

UNKNOWN = {"host": None, "versions": None}
"""Leaves out facts that the store would otherwise add."""


class RunOptions:
    """Where and how a watched model is stored; the options are those of :func:`monitorch.watch`."""

    def __init__(
        self,
        run: str | None = None,
        folder: str | os.PathLike[str] = DEFAULT_FOLDER,
        config: Any = None,
        capture: bool = True,
        resume: bool = False,
        max_size: int | None = None,
    ) -> None:
        check(capture=capture, resume=resume)
        if run is not None:
            check(run=run)
        if run == "":
            raise OptionError("run='' is no name: leave it out to name the run after the date and time")
        if resume and run is None:
            raise OptionError("resume=True needs the name of the run to continue: run=...")
        if not isinstance(folder, str | os.PathLike) or not str(folder) or "\0" in str(folder):
            raise OptionError(f"folder={short_repr(folder)} must be the path of the folder that holds all runs")
        self._folder, self._run = Path(folder), run
        self._config = None if config is None else settings(config)
        self._capture, self._resume, self._max_size = capture, resume, max_size

    @property
    def is_asked_for(self) -> bool:
        """Whether any option was given."""
        asked = self._run, self._config, self._resume or None, self._max_size, not self._capture or None
        return self._folder != Path(DEFAULT_FOLDER) or any(option is not None for option in asked)

    def open(self, model: nn.Module, optimizers: Sequence[Optimizer], *, per_rank: bool) -> StoreVisualizer:
        """The visualizer that stores the run; no file is made yet."""
        facts = environment_facts(model, optimizers) if self._capture else UNKNOWN
        if self._resume:
            self._compare(facts.get("model"))
        return StoreVisualizer(
            self._folder,
            self._run or time_name(),
            numbered=not self._resume,
            shared=per_rank,
            config=self._config,
            facts=facts,
            resume=self._resume,
            max_size=self._max_size,
        )

    def _compare(self, model: dict[str, Any] | None) -> None:
        """Warn if the run that is continued was of another model: the numbers of both would be mixed."""
        try:
            with open_run(self._folder / str(self._run)) as run:
                before = run.meta.get("model")
        except (StoreError, OSError):  # there is none yet, or the writer will say why it cannot be continued
            return
        if not before or not model or before.get("parameters") is None or model["parameters"] is None:
            return
        if any(before.get(name) != model[name] for name in ("kind", "parameters")):
            then, now = (f"{one.get('kind')} with {one['parameters']:,} parameters" for one in (before, model))
            text = f"the run {self._run!r} was of another model, {then}; this is {now}. Their numbers will be mixed"
            warn(f"{text}: choose another name, or leave resume=True out")

    def begin(self, store: StoreVisualizer, inspector: PyTorchInspector) -> str:
        """Create the run on disk, or fail now; returns the line that says how to view it, or ""."""
        rank = own_rank()
        is_active, is_main = not inspector.state.paused, inspector.is_main_process
        if inspector.state.per_rank and several_processes() and is_active:
            # each process has its own file in the folder that the first one makes
            topic = f"run of {inspector.state.meeting.what} in {self._folder}"
            store.open(rank, agree(topic, partial(_make, store, rank)) or None)
        elif is_main and is_active:
            store.open(rank)
        if store.path is None or not is_main:
            return ""
        where = "" if self._folder == Path(DEFAULT_FOLDER) else f" {self._folder}"
        # the step to continue from is only known later, from a checkpoint
        is_continued = bool(store.first_step)
        what = "continuing" if is_continued else "storing"
        until = f", stored until step {store.first_step:,}" if is_continued else ""
        return f"monitorch: {what} the run {store.name!r}{until}; to look at it: {command()} ui{where}"


def _make(store: StoreVisualizer, rank: int) -> str:
    store.open(rank)
    return store.name or ""
