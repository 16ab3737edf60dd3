"""Weights & Biases as a tracker."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import Histogram, TrackedRun, Tracker, check_call, package, split_options

PROJECT, BINS = "monitorch", 64
LEVELS = {"warning": "WARN", "error": "ERROR"}
MOST_WAITING = 8
"""How many of our rows wait for one of the user."""
_LONGEST_TITLE = 63


class WandbTracker(Tracker):
    """Writes to the run that you have started with ``wandb.init``, which stays open; else it starts one of its own.

    Each tick is one row, with the training step in it as ``monitorch/step``: the horizontal axis of our numbers. W&B
    also counts rows, and drops rows that you log with a smaller ``step=``. So in your own run, our numbers go into your
    next row whenever a separate row would push that count beyond the number of training steps. If your ``step=`` counts
    epochs, pass ``commit=False``: then each of your rows has our newest numbers.

    Args:
        run: the run to write to; None for the one that is active.
        commit: False if our numbers should never have rows of their own: each of your rows has the newest ones.
        step_metric: what the training step is called, such as ``"trainer/global_step"`` for Lightning's axis.
        **options: those of :class:`Tracker`, and those of ``wandb.init`` for a run of its own.
    """

    def __init__(
        self, run: Any = None, *, commit: bool = True, step_metric: str = "monitorch/step", **options: Any
    ) -> None:
        own, self._init = split_options(options)
        super().__init__(**own)
        self._wandb = package("wandb", self)
        check_call(self._wandb.init, **self._init)
        self._given, self._commit, self._step_metric = run, commit, step_metric
        self._run: Any = None
        self._is_ours = False
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MOST_WAITING)
        """Rows not yet passed to W&B."""
        self._taken, self._lying = -1, dict[str, Any]()
        """W&B's number of the row that has the last one of ours, and that one."""

    def start(self, run: TrackedRun) -> None:
        """Find the run, or start one."""
        self._run = self._given or self._wandb.run
        self._is_ours = self._run is None
        if self._run is None:
            options = {"project": PROJECT, "name": run.name, "config": dict(run.config), **self._init}
            self._run = self._wandb.init(**options)
        if self._step_metric.startswith(self.prefix):
            self._run.define_metric(self._step_metric, hidden=True)
        self._run.define_metric(f"{self.prefix}*", step_metric=self._step_metric)

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """One row, or a part of the user's next one."""
        self._log(step, numbers)

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """One row."""
        even = {name: one.even(BINS) for name, one in histograms.items()}
        create = self._wandb.Histogram
        self._log(step, {name: create(np_histogram=(one.counts, one.edges)) for name, one in even.items()})

    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        """An alert, which the user may get as a mail or in Slack."""
        self._run.alert(title[:_LONGEST_TITLE], f"step {step}: {text}", level=LEVELS[severity])

    def note(self, facts: Mapping[str, str]) -> None:
        """Beside the last numbers of the run."""
        self._run.summary.update({f"{self.prefix}{name}": text for name, text in facts.items()})

    def artifact(self, path: Path) -> None:
        """An artifact of the run."""
        self._run.log_artifact(str(path), name=f"monitorch-{self._run.id}", type="report")

    def close(self, status: str) -> None:
        """Finish a run of our own; in one of the user the newest numbers come with the next row."""
        if self._is_ours:
            self._run.finish(exit_code=int(status == "crashed"))
        elif self._waiting:
            self._put(self._waiting[-1])

    def _log(self, step: int, row: Mapping[str, Any]) -> None:
        named = {**row, self._step_metric: step}
        if self._is_ours:
            self._run.log(named)
            return
        self._run.log({}, commit=False)  # fails at once if it is finished: asking it for its step takes half a minute
        if self._waiting and self._is_same_step(self._waiting[-1], named):
            self._waiting[-1].update(named)
        else:
            self._waiting.append(named)
        while self._waiting and self._is_row_free(step):
            self._put(self._waiting.popleft())
        self._end_row(step)

    def _is_row_free(self, step: int) -> bool:
        """Whether the row that W&B fills now may take the first one that waits."""
        if not self._commit or self._run.step != self._taken:
            return True
        return self._is_same_step(self._lying, self._waiting[0]) or self._end_row(step)

    def _put(self, row: dict[str, Any]) -> None:
        """Put a row into the one that W&B is filling, replacing an older one of ours that is still there."""
        stale = {}
        if self._run.step == self._taken and self._is_same_step(self._lying, row):
            row = self._lying | row
        elif self._run.step == self._taken:
            stale = dict.fromkeys(self._lying)  # None, so that no older number seems to belong to this step
        self._run.log(stale | row, commit=False)
        self._lying, self._taken = row, self._run.step

    def _end_row(self, step: int) -> bool:
        """End the row that holds one of ours, if W&B's count then stays within the number of steps."""
        can_end = self._commit and self._run.step == self._taken and self._taken < step - 1
        if can_end:
            self._run.log({self._step_metric: self._lying[self._step_metric]}, commit=True)
        return can_end

    def _is_same_step(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return bool(one[self._step_metric] == other[self._step_metric])
