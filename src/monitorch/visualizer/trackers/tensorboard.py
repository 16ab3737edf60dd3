"""TensorBoard as a tracker."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .tracker import Histogram, TrackedRun, Tracker, package

FOLDER = "runs"
"""Where TensorBoard users expect event files."""


class TensorBoardTracker(Tracker):
    """Writes an event file: one event for each tick, histograms as such, alerts and facts as text.

    Args:
        log_dir: the folder of the event file; ``runs/<name of the run>`` if None.
        writer: a SummaryWriter of yours, to write to the same file; it stays open.
        **options: those of :class:`Tracker`.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, *, writer: Any = None, **options: Any) -> None:
        super().__init__(**options)
        package("tensorboard", self)
        self._log_dir, self._given = log_dir, writer
        self._events: Any = None

    def start(self, run: TrackedRun) -> None:
        """Open the file; a SummaryWriter that was given has one."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._given is not None:
            self._events = self._given.file_writer.event_writer
        else:
            self._events = EventFileWriter(str(self._log_dir or Path(FOLDER) / run.name))

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """One event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, [Summary.Value(tag=_name(name), simple_value=value) for name, value in numbers.items()])

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """One event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, [Summary.Value(tag=_name(name), histo=_proto(one)) for name, one in histograms.items()])

    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        """Text: TensorBoard has no alerts."""
        self._text(step, "monitorch/findings", f"**{severity}: {title}**: {text}")

    def note(self, facts: Mapping[str, str]) -> None:
        """Text."""
        for name, text in facts.items():
            self._text(0, f"monitorch/{name}", text)

    def close(self, status: str) -> None:
        """Write everything to disk."""
        self._events.flush()
        if self._given is None:
            self._events.close()

    def _text(self, step: int, name: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        described = create_summary_metadata(display_name=name, description="")
        self._add(step, [Summary.Value(tag=name, metadata=described, tensor=make_tensor_proto(text, np.object_))])

    def _add(self, step: int, values: list[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._events.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))


def _name(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()


def _proto(histogram: Histogram) -> Any:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

    edges, counts = histogram.filled
    middles = (edges[1:] + edges[:-1]) / 2
    sums = {"sum": float(middles @ counts), "sum_squares": float(middles**2 @ counts), "num": float(counts.sum())}
    # the first bucket of the format begins at the smallest double, so an empty one goes before ours
    limits, buckets = [float(edges[0]), *edges[1:].tolist()], [0.0, *counts.astype(float).tolist()]
    return HistogramProto(min=float(edges[0]), max=float(edges[-1]), **sums, bucket_limit=limits, bucket=buckets)
