"""Numbers as TensorBoard scalars."""

from collections.abc import Sequence
from functools import cached_property, partial
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError
from ..statistic import Statistic
from .record import Record
from .record_sink import RecordSink
from .scalar_name import scalar_name, scalar_part

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardVisualizer(RecordSink):
    """Writes TensorBoard event files; every list of records becomes one event, at its training step.

    Args:
        log_dir: folder of the event file; ``runs/<time>_<host><comment>`` if None.
        comment: added to the name of the default folder.
        **kwargs: further options of ``torch.utils.tensorboard.SummaryWriter``.
    """

    def __init__(self, log_dir: str | PathLike[str] | None = None, comment: str = "", **kwargs: Any) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError.needed_by(type(self).__name__, "tensorboard", extra="tensorboard") from error
        signature(SummaryWriter).bind(log_dir, comment, **kwargs)  # an unknown option should fail now, not at a tick
        self._open = partial(SummaryWriter, log_dir, comment, **kwargs)
        self._closed = False

    @cached_property
    def writer(self) -> "SummaryWriter":
        """The writer, made when first needed: every rank builds a visualizer, but only one may make a folder."""
        return self._open()

    def write(self, records: Sequence[Record]) -> None:
        """Add the records of each step as one event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._closed:
            raise ValueError("this TensorBoardVisualizer is closed and takes no more numbers")
        steps: dict[int, list[Record]] = {}
        for record in records:
            steps.setdefault(record.step, []).append(record)
        for step, moment in steps.items():
            scalars = {self._name(record): record.value for record in moment}
            counts = {self._count_name(record): record.nonfinite for record in moment if record.nonfinite}
            values = [Summary.Value(tag=name, simple_value=value) for name, value in (scalars | counts).items()]
            events: Any = self.writer.file_writer  # torch does not set the type
            events.add_summary(Summary(value=values), step, moment[0].time)

    def flush(self) -> None:
        """Write everything so far to disk."""
        if "writer" in vars(self):
            self.writer.flush()

    def close(self) -> None:
        """Finish the event file; calling it again does nothing."""
        self._closed = True
        if "writer" in vars(self):
            self.writer.close()

    def __enter__(self) -> "TensorBoardVisualizer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @staticmethod
    def transform_tag_str(general_tag: str, subtag: str, delimiter: str = "/") -> str:
        """Join two names in the way scalars are named.

        >>> TensorBoardVisualizer.transform_tag_str("Output Norm", "-σ")
        'output_norm/-std'
        """
        return scalar_part(f"{general_tag}{delimiter}{subtag}")

    def _name(self, record: Record) -> str:
        """The name of a scalar; in a comparison of layers the lines are the layers."""
        if self.is_share(record):
            return scalar_name(record.tag, record.statistic, "")
        return scalar_name(record.tag, "" if record.layer == record.tag else record.layer, record.statistic)

    def _count_name(self, record: Record) -> str:
        count = Statistic.of(record.tag, record.line, record.curve).nonfinite()
        return self._name(record._replace(statistic=count.text))
