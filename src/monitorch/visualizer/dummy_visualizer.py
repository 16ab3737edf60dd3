"""A visualizer that shows nothing: all ranks but the master rank get it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .record import Record
from .record_sink import RecordSink

if TYPE_CHECKING:
    from .frame import Moment, TagFrame


class DummyVisualizer(RecordSink):
    """Ignores everything."""

    def write(self, records: Sequence[Record]) -> None:
        """Drop the records."""

    def write_frames(self, moment: "Moment", frames: Sequence["TagFrame"]) -> None:
        """Drop the numbers."""
