"""Numbers as text: short, aligned, and never wider than the terminal. Pure functions, no input or output."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .names import cells, padded, printable, shortened


class TableColumn(NamedTuple):
    """A heading of two lines; neighbouring columns of one group share the upper one."""

    group: str
    name: str


Box: TypeAlias = list[str]
"""Lines of equal width, placed beside other boxes of the same height."""

_BETWEEN_COLUMNS = "  "
_BETWEEN_GROUPS = " | "
_CUT = ".."
_LEAST_LABEL = 12


def number_text(value: float, nonfinite: int = 0) -> str:
    """Four significant digits, and after ``!`` how many non-finite samples were left out.

    >>> number_text(0.5), number_text(-12345.6), number_text(0.00012), number_text(2, nonfinite=3)
    ('0.5000', '-1.235e4', '1.200e-4', '2.000 !3')
    """
    mark = f" !{nonfinite}" if nonfinite else ""
    if math.isnan(value):
        return "NaN" + mark
    if math.isinf(value):
        return ("Inf" if value > 0 else "-Inf") + mark
    if value == 0:
        return "0" + mark
    mantissa, exponent = f"{value:.3e}".split("e")
    power = int(exponent)
    return (f"{value:.{3 - power}f}" if -3 <= power <= 3 else f"{mantissa}e{power}") + mark


def overhead_text(overhead: float, *, at_least: bool = False) -> str:
    """The overhead, relative to the time that training takes without it.

    >>> overhead_text(0.0312), overhead_text(0.35, at_least=True)
    ('3.1 % overhead', 'at least 35.0 % overhead')
    """
    return f"{'at least ' * at_least}{overhead:.1%} overhead".replace("%", " %")


def percent_text(share: float, nonfinite: int = 0) -> str:
    """A share in percent, with one digit after the point.

    >>> percent_text(0.1234)
    '12.3%'
    """
    mark = f" !{nonfinite}" if nonfinite else ""
    return f"{100 * share:.1f}%{mark}" if math.isfinite(share) else number_text(share, nonfinite)


def table_text(labels: Sequence[str], columns: Mapping[TableColumn, Mapping[str, str]], width: int) -> str:
    """Draw a table with a row for every label; columns beyond ``width`` continue in further blocks below.

    Columns of one group stay together. A block leaves out rows that are empty in it. Control codes in names are
    escaped.
    """
    from ..store.types import shown_name  # not earlier: it loads NumPy, and a command begins without

    shown = shortened([printable(shown_name(label)) for label in labels], max(width // 3, _LEAST_LABEL), _CUT)
    row_names = _flush_left(["", "layer", *shown])
    groups: dict[str, list[Box]] = {}
    for column, texts in columns.items():
        box = _column_box(printable(column.name), [texts.get(label, "") for label in labels])
        groups.setdefault(printable(column.group), []).append(box)
    room = width - cells(row_names[0]) - len(_BETWEEN_GROUPS)
    panels = [
        _titled(title, run) for title, boxes in groups.items() for run in _packed(boxes, room, len(_BETWEEN_COLUMNS))
    ]
    return "\n\n".join(_block_text(row_names, run) for run in _packed(panels, room, len(_BETWEEN_GROUPS)))


def headline_text(start: str, segments: Mapping[str, Sequence[str]], width: int) -> str:
    """Put titled lists on few lines, with line breaks between lists if possible, and never inside an item."""
    room = width - len(start) - len(_BETWEEN_GROUPS)
    pieces: list[Box] = []
    for title, items in ((printable(title), map(printable, items)) for title, items in segments.items()):
        runs = _packed([[item] for item in items], room - cells(title) - 2, gap=2)
        texts = [", ".join(item for (item,) in run) for run in runs]
        pieces += [[f"{title}: {text}"] for text in texts]
    lines = [_BETWEEN_GROUPS.join(piece for (piece,) in run) for run in _packed(pieces, room, len(_BETWEEN_GROUPS))]
    return _BETWEEN_GROUPS.join([start, f"\n{' ' * len(start)}{_BETWEEN_GROUPS}".join(lines)]) if lines else start


def _flush_left(lines: Sequence[str]) -> Box:
    width = max(map(cells, lines))
    return [padded(line, width) for line in lines]


def _column_box(name: str, texts: Sequence[str]) -> Box:
    """Numbers are aligned right, with the marks after them."""
    parts = [text.partition(" ") for text in texts]
    marks = _flush_left([space + mark for _, space, mark in parts])
    width = max(len(number) for number, _, _ in parts)
    lines = [name, *(number.rjust(width) + mark for (number, _, _), mark in zip(parts, marks, strict=True))]
    width = max(map(cells, lines))
    return [padded(line, width, right=True) for line in lines]


def _titled(title: str, boxes: Sequence[Box]) -> Box:
    lines = [_BETWEEN_COLUMNS.join(line) for line in zip(*boxes, strict=True)]
    width = max(cells(title), cells(lines[0]))
    return [padded(title, width), *(padded(line, width, right=True) for line in lines)]


def _packed(boxes: Iterable[Box], room: int, gap: int) -> list[list[Box]]:
    """Split boxes into runs that fit, at least one box in each."""
    runs: list[list[Box]] = []
    used = 0
    for box in boxes:
        size = cells(box[0]) + gap
        if not runs or used + size > room + gap:
            runs.append([])
            used = 0
        runs[-1].append(box)
        used += size
    return runs


def _block_text(labels: Box, panels: Sequence[Box]) -> str:
    parts = [labels, *panels]
    titles, names, *lines = [_BETWEEN_GROUPS.join(line) for line in zip(*parts, strict=True)]
    rule = "-+-".join("-" * cells(part[0]) for part in parts)
    rows = list(zip(*panels, strict=True))[2:]
    filled = [line for line, row in zip(lines, rows, strict=True) if any(text.strip() for text in row)]
    return "\n".join(line.rstrip() for line in [titles, names, rule, *filled])
