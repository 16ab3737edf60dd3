"""The numbers of a tick as one text table."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TextIO

from ..errors import OptionError
from ..statistic import AGGREGATIONS
from .abstract_visualizer import TagAttributes
from .layer_order import merge_order
from .record import Record
from .record_sink import RecordSink
from .table import TableColumn, headline_text, number_text, percent_text, table_text

_SHORT_WORDS = {
    "gradient": "grad",
    "correlation": "corr",
    "activation_rate": "active",
    "death_rate": "dead",
    "rows_used": "used",
}
_COMPARED_BY = {name.lower() for name in AGGREGATIONS}
_MARK_MEANING = "!n: n samples were NaN or infinite and are not in the number"


class PrintVisualizer(RecordSink):
    """Prints one table per tick: numbers of the whole model in the headline, a row for every layer below.

    Args:
        ranges: show the edges of bands too, not only the lines.
        file: where to print; ``sys.stdout`` if None.
    """

    def __init__(self, ranges: bool = False, file: TextIO | None = None) -> None:
        self.ranges = ranges
        if file is not None and not hasattr(file, "write"):
            raise OptionError(f"file takes an open file, not {file!r}")
        self.file = file
        self._tick: list[Record] = []
        self._axis = "epoch"
        self._layers: list[str] = []  # kept between ticks, so that rows keep their order

    def introduce_layers(self, layers: Sequence[str]) -> None:
        """Show rows in the order of the model."""
        self._layers = list(layers)

    def begin_tick(self, epoch: int, step: int, axis: str) -> None:
        """Keep the unit of ticks."""
        super().begin_tick(epoch, step, axis)
        self._axis = axis

    def write(self, records: Sequence[Record]) -> None:
        """Keep records until their tick is complete, at the latest when another one begins."""
        for moment, arriving in groupby(records, key=lambda record: (record.epoch, record.step)):
            if self._tick and moment != (self._tick[0].epoch, self._tick[0].step):
                self.flush()
            self._tick.extend(arriving)

    def flush(self) -> None:
        """Print what has been kept."""
        if not self._tick:
            return
        records, self._tick = self._tick, []
        file = self.file or sys.stdout
        text = self._text(records if self.ranges else _without_bands(records))
        encoding = getattr(file, "encoding", None) or "utf-8"
        # a terminal without the letter sigma must not end training
        print(text.encode(encoding, "replace").decode(encoding), file=file, flush=True)

    close = flush

    def _text(self, records: Sequence[Record]) -> str:
        width = shutil.get_terminal_size((100, 24)).columns
        big = [record for record in records if self._is_big(record)]
        columns = self._columns(record for record in records if not self._is_big(record))
        labels = [layer for layer in self._layers if any(layer in cells for cells in columns.values())]
        number = records[0].step if self._axis == "step" else records[0].epoch
        parts = [headline_text(f"{self._axis} {number}", _headline(big), width)]
        parts += [table_text(labels, columns, width)] if labels else []
        parts += [_MARK_MEANING] if any(record.nonfinite for record in records) else []
        return "\n".join(parts) + "\n"

    def _columns(self, records: Iterable[Record]) -> dict[TableColumn, dict[str, str]]:
        columns: dict[TableColumn, dict[str, str]] = {}
        for record in records:
            shown = record.value, record.nonfinite
            if self.is_share(record):
                columns.setdefault(_share_column(record.tag), {})[record.statistic] = percent_text(*shown)
            else:
                columns.setdefault(_column(record.tag, record.label), {})[record.layer] = number_text(*shown)
        for cells in columns.values():
            self._layers = merge_order(self._layers, cells)
        return columns

    def _is_big(self, record: Record) -> bool:
        attributes: TagAttributes | None = self.tags.get(record.tag)
        is_big = attributes.big_plot if attributes else record.layer == record.tag
        return is_big and not self.is_share(record)


def _without_bands(records: Sequence[Record]) -> list[Record]:
    """Leave out the edges of bands, unless a plot has nothing else."""
    plots_with_lines = {record.tag for record in records if record.role != "edge"}
    return [record for record in records if record.role != "edge" or record.tag not in plots_with_lines]


def _headline(records: Iterable[Record]) -> dict[str, list[str]]:
    segments: dict[str, list[str]] = {}
    for record in records:
        name = _shortened(record.label or record.statistic)
        title = record.tag.removeprefix("Warning ")  # the names already contain the word "worst"
        segments.setdefault(title, []).append(f"{name} {number_text(record.value, record.nonfinite)}")
    return segments


def _shortened(text: str) -> str:
    return " ".join(_SHORT_WORDS.get(word, word) for word in text.split())


def _column(tag: str, label: str) -> TableColumn:
    """``Weight Gradient Norm`` is the column ``norm`` of the group ``weight grad``; a rate is its own name."""
    group, _, quantity = _shortened(tag.lower()).rpartition(" ")
    line = _shortened(label)
    if line in ("active", "dead"):
        return TableColumn(group, line)
    return TableColumn(group, f"{quantity} {line}" if line else quantity)


def _share_column(tag: str) -> TableColumn:
    """``Mean Output Norm Comparison`` is the column ``share`` of the group ``output``, beside its ``norm``."""
    words = [word for word in _shortened(tag.lower()).split() if word not in ("log", "comparison")]
    if len(words) > 1 and words[0] in _COMPARED_BY:
        del words[0]
    group, _, quantity = " ".join(words).rpartition(" ")
    return TableColumn(group, "share" if quantity == "norm" else f"{quantity} share".strip())
