"""A visualizer that shows nothing: all ranks but the master rank get it."""

from collections.abc import Sequence

from .record import Record
from .record_sink import RecordSink


class DummyVisualizer(RecordSink):
    """Ignores everything."""

    def write(self, records: Sequence[Record]) -> None:
        """Drop the records."""
