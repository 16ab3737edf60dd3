"""Trackio as a tracker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import Histogram, TrackedRun, Tracker, check_call, package, split_options

PROJECT, BINS = "monitorch", 64
LEVELS = {"warning": "WARN", "error": "ERROR"}


class TrackioTracker(Tracker):
    """Writes to the run that you have started with ``trackio.init``, which stays open; else it starts one of its own.

    Each tick is logged at its training step. Trackio numbers what you log without a ``step=`` from there on, so pass
    yours.

    Args:
        run: the run to write to; None for the one that is active.
        **options: those of :class:`Tracker`, and those of ``trackio.init`` for a run of its own.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        own, rest = split_options(options)
        super().__init__(**own)
        self._trackio = package("trackio", self)
        self._init = {"project": PROJECT, **rest}
        check_call(self._trackio.init, **self._init)
        self._given, self._step = run, 0
        self._run: Any = None
        self._is_ours = False

    def start(self, run: TrackedRun) -> None:
        """Find the run, or start one."""
        self._run = self._given or self._active()
        self._is_ours = self._run is None
        if self._run is None:
            self._run = self._trackio.init(**{"name": run.name, "config": dict(run.config), **self._init})

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """One row."""
        self._step = step
        self._run.log(dict(numbers), step=step)

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """One row."""
        even = {name: one.even(BINS) for name, one in histograms.items()}
        create = self._trackio.Histogram
        self._run.log({name: create(np_histogram=(one.counts, one.edges)) for name, one in even.items()}, step=step)

    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        """An alert."""
        self._run.alert(title, text, level=self._trackio.AlertLevel[LEVELS[severity]], step=step)

    def note(self, facts: Mapping[str, str]) -> None:
        """Text."""
        texts = {f"{self.prefix}{name}": self._trackio.Markdown(text) for name, text in facts.items()}
        self._run.log(texts, step=self._step)

    def artifact(self, path: Path) -> None:
        """An artifact of the run."""
        self._run.log_artifact(str(path), name=f"monitorch-{self._run.name}", type="report")

    def close(self, status: str) -> None:
        """Finish a run of our own."""
        if self._is_ours and self._active() is self._run:
            self._trackio.finish()
        elif self._is_ours:
            self._run.finish()

    def _active(self) -> Any:
        """The run of this thread."""
        return self._trackio.context_vars.current_run.get()
