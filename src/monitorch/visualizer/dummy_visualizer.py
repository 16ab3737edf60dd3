"""A visualizer that shows nothing: what every rank but the master one gets."""

from collections.abc import Sequence

from .record import Record
from .record_sink import RecordSink


class DummyVisualizer(RecordSink):
    """Takes everything and keeps nothing."""

    def write(self, records: Sequence[Record]) -> None:
        """Drop the records."""
