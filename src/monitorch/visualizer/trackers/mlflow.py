"""MLflow as a tracker."""

import re
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from .tracker import TrackedRun, Tracker, package

MOST, MOST_PARAMETERS = 1000, 100
"""How many MLflow takes at once."""
LONGEST_NAME, LONGEST_TEXT = 250, 5000
_FORBIDDEN = re.compile(r"[^\w./: -]")


class MlflowTracker(Tracker):
    """Writes to the run that you have started with ``mlflow.start_run``, which stays open; else it starts its own.

    Characters that MLflow does not allow in names become ``_``. MLflow has no histograms and no alerts: alerts are
    tags. Its databases keep NaN, and the largest double instead of infinity.

    Args:
        run_id: the run to write to; None for the one that is active.
        **options: those of :class:`Tracker`.
    """

    def __init__(self, run_id: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._mlflow = package("mlflow", self)
        self._given = run_id
        self._run_id: str | None = None
        self._client: Any = None
        self._is_ours = False

    def start(self, run: TrackedRun) -> None:
        """Find the run, or start one; it does not become the active one, so that the user can start another."""
        self._client = self._mlflow.MlflowClient()
        active = self._mlflow.active_run()  # of this thread
        self._run_id = self._given or (None if active is None else active.info.run_id)
        self._is_ours = self._run_id is None
        if self._is_ours:
            with self._mlflow.start_run(run_name=run.name) as started:
                self._run_id = started.info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            parameter = self._mlflow.entities.Param
            found = [parameter(_allowed(name), str(value)[:LONGEST_TEXT]) for name, value in run.config.items()]
            self._client.log_batch(self._run_id, params=found[:MOST_PARAMETERS])

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """As few calls as possible: each of them is a message to a server."""
        metric, now = self._mlflow.entities.Metric, int(1000 * time.time())
        waiting = iter(metric(_allowed(name), float(value), now, step) for name, value in numbers.items())
        while batch := list(islice(waiting, MOST)):
            self._client.log_batch(self._run_id, metrics=batch, synchronous=True)

    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        """A tag."""
        self.note({title: f"{severity} at step {step}: {text}"})

    def note(self, facts: Mapping[str, str]) -> None:
        """Tags."""
        for name, text in facts.items():
            self._client.set_tag(self._run_id, _allowed(f"{self.prefix}{name}"), text[:LONGEST_TEXT])

    def artifact(self, path: Path) -> None:
        """An artifact of the run."""
        self._client.log_artifact(self._run_id, str(path), _allowed(self.prefix).strip("/") or None)

    def close(self, status: str) -> None:
        """Finish a run of our own."""
        if self._is_ours:
            self._client.set_terminated(self._run_id, "FAILED" if status == "crashed" else "FINISHED")


def _allowed(name: str) -> str:
    """A name without what MLflow refuses.

    >>> _allowed("loss/train_loss_+std"), _allowed("acc@1")
    ('loss/train_loss__std', 'acc_1')
    """
    return _FORBIDDEN.sub("_", name)[:LONGEST_NAME]
