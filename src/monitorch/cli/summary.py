"""The numbers of one tick as a table with a row for each layer."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..visualizer.record import Record
from ..visualizer.table import TableColumn, number_text, percent_text, table_text


class _Quantity(NamedTuple):
    """The content of a column: a statistic of a tag."""

    column: TableColumn
    tag: str
    statistic: str = "mean"
    text: Callable[[float, int], str] = number_text


_QUANTITIES = (
    _Quantity(TableColumn("weight", "norm"), "Weight Norm"),
    _Quantity(TableColumn("weight", "cond"), "Weight Cond"),
    _Quantity(TableColumn("gradient", "norm"), "Weight Gradient Norm"),
    _Quantity(TableColumn("gradient", "rows"), "Weight Gradient Activation", "rows_used", text=percent_text),
    _Quantity(TableColumn("update", "/weight"), "Weight Update Ratio"),
    _Quantity(TableColumn("output", "norm"), "Output Norm"),
    _Quantity(TableColumn("output", "active"), "Output Activations", "activation_rate", text=percent_text),
    _Quantity(TableColumn("output", "dead"), "Output Activations", "death_rate", text=percent_text),
)

EXPLANATION = (
    "cond: largest over smallest singular value. rows: how many rows of an embedding a batch uses. update/weight: how "
    "far one step moves the weight, as a part of its norm. active: outputs that are not zero. dead: neurons that are "
    "zero for a whole batch."
)


def summary_text(records: Iterable[Record], layers: Sequence[str], width: int) -> str:
    """The numbers of each layer, in the given order; a layer without numbers has no row."""
    known = {(record.tag, record.statistic, record.layer): record for record in records}
    columns: dict[TableColumn, dict[str, str]] = {}
    for quantity in _QUANTITIES:
        cells = {}
        for layer in layers:
            record = known.get((quantity.tag, quantity.statistic, layer))
            if record is not None:
                cells[layer] = quantity.text(record.value, record.nonfinite)
        if cells:
            columns[quantity.column] = cells
    return table_text([layer for layer in layers if any(layer in cells for cells in columns.values())], columns, width)
