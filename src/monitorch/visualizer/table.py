"""Numbers as text: short, aligned, and never wider than the terminal. Pure functions, no input or output."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Column(NamedTuple):
    """A heading of two lines; neighbouring columns of one group share the upper one."""

    group: str
    name: str


Box: TypeAlias = list[str]
"""Lines of equal width, put beside other boxes of the same height."""

_BETWEEN_COLUMNS = "  "
_BETWEEN_GROUPS = " | "


def number_text(value: float, nonfinite: int = 0) -> str:
    """Four significant digits, and behind ``!`` how many samples were left out for not being finite.

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


def percent_text(share: float, nonfinite: int = 0) -> str:
    """A share of a whole, with one digit behind the point.

    >>> percent_text(0.1234)
    '12.3%'
    """
    mark = f" !{nonfinite}" if nonfinite else ""
    return f"{100 * share:.1f}%{mark}" if math.isfinite(share) else number_text(share, nonfinite)


def table_text(labels: Sequence[str], columns: Mapping[Column, Mapping[str, str]], width: int) -> str:
    """Draw a table with a row for every label; what is wider than ``width`` continues in further blocks below.

    Columns of one group stand together. A block leaves out the rows that have nothing in it.
    """
    row_names = _flush_left(["", "layer", *(_label_text(label, width // 3) for label in labels)])
    groups: dict[str, list[Box]] = {}
    for column, cells in columns.items():
        box = _column_box(column.name, [cells.get(label, "") for label in labels])
        groups.setdefault(column.group, []).append(box)
    room = width - len(row_names[0]) - len(_BETWEEN_GROUPS)
    panels = [
        _titled(title, run) for title, boxes in groups.items() for run in _packed(boxes, room, len(_BETWEEN_COLUMNS))
    ]
    return "\n\n".join(_block_text(row_names, run) for run in _packed(panels, room, len(_BETWEEN_GROUPS)))


def headline_text(start: str, segments: Mapping[str, Sequence[str]], width: int) -> str:
    """Put titled lists on few lines, broken between lists where possible and never inside an item."""
    room = width - len(start) - len(_BETWEEN_GROUPS)
    pieces: list[Box] = []
    for title, items in segments.items():
        runs = _packed([[item] for item in items], room - len(title) - 2, gap=2)
        texts = [", ".join(item for (item,) in run) for run in runs]
        pieces += [[f"{title}: {text}"] for text in texts]
    lines = [_BETWEEN_GROUPS.join(piece for (piece,) in run) for run in _packed(pieces, room, len(_BETWEEN_GROUPS))]
    return _BETWEEN_GROUPS.join([start, f"\n{' ' * len(start)}{_BETWEEN_GROUPS}".join(lines)]) if lines else start


def _label_text(label: str, limit: int) -> str:
    """Keep the end of a long name, from a dot on if there is one: it is what tells layers apart."""
    limit = max(limit, 12)
    printable = label if label.isprintable() else label.encode("unicode_escape").decode()
    if len(printable) <= limit:
        return printable
    end = printable[2 - limit :]
    return ".." + (end.partition(".")[2] or end)


def _flush_left(lines: Sequence[str]) -> Box:
    width = max(map(len, lines))
    return [line.ljust(width) for line in lines]


def _column_box(name: str, cells: Sequence[str]) -> Box:
    """Numbers end at one edge, with the marks behind it."""
    parts = [cell.partition(" ") for cell in cells]
    marks = _flush_left([space + mark for _, space, mark in parts])
    width = max(len(number) for number, _, _ in parts)
    lines = [name, *(number.rjust(width) + mark for (number, _, _), mark in zip(parts, marks, strict=True))]
    width = max(map(len, lines))
    return [line.rjust(width) for line in lines]


def _titled(title: str, boxes: Sequence[Box]) -> Box:
    lines = [_BETWEEN_COLUMNS.join(line) for line in zip(*boxes, strict=True)]
    width = max(len(title), len(lines[0]))
    return [title.ljust(width), *(line.rjust(width) for line in lines)]


def _packed(boxes: Iterable[Box], room: int, gap: int) -> list[list[Box]]:
    """Split boxes into runs that fit, at least one box in each."""
    runs: list[list[Box]] = []
    used = 0
    for box in boxes:
        size = len(box[0]) + gap
        if not runs or used + size > room + gap:
            runs.append([])
            used = 0
        runs[-1].append(box)
        used += size
    return runs


def _block_text(labels: Box, panels: Sequence[Box]) -> str:
    parts = [labels, *panels]
    titles, names, *lines = [_BETWEEN_GROUPS.join(line) for line in zip(*parts, strict=True)]
    rule = "-+-".join("-" * len(part[0]) for part in parts)
    cells = list(zip(*panels, strict=True))[2:]
    filled = [line for line, row in zip(lines, cells, strict=True) if any(cell.strip() for cell in row)]
    return "\n".join(line.rstrip() for line in [titles, names, rule, *filled])
