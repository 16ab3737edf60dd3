"""The terminal: plain and quiet where it is none, and never obeying what a run is called."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import sparkline
from .wording import printable

_WITHOUT_TERMINAL = 160
_LEAST_TEXT, _COMFORTABLE_TEXT = 8, 18
_GAP = "  "
LAYER = "layer"
"""The heading of columns with names of layers."""

COLOURS = {"running": "green", "finished": "cyan", "stale": "yellow", "crashed": "red", "damaged": "red"}
SEVERITIES = {"warning": "yellow", "error": "red"}
TROUBLE = "bold red"
QUIET = "dim"


def open_console() -> Console:
    """Standard output; what its encoding lacks is written as codes."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    fixed = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WITHOUT_TERMINAL
    return Console(width=fixed, markup=False, highlight=False, emoji=False)


def blocks_of(console: Console) -> str:
    """The characters for sparklines."""
    return sparkline.BLOCKS if _has_blocks(console) else sparkline.ASCII


def _has_blocks(console: Console) -> bool:
    return console.encoding.startswith("utf")


def words(text: object, style: str = "") -> Text:
    """Text of which neither rich nor the terminal obeys anything."""
    return Text(printable(text), style)


def status_words(status: str) -> Text:
    """The status in its colour."""
    return Text(printable(status), COLOURS.get(status, ""))


def table(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    numbers: Sequence[str] = (),
    curves: Sequence[str] = (),
) -> Table:
    """A calm table: a rule below the headings and nothing else.

    Columns of ``numbers`` and ``curves`` are never cut; where room is short, text is, names of layers last. Of those
    the end is kept, which tells them apart.
    """
    lines = [[cell if isinstance(cell, Text) else words(cell) for cell in row] for row in rows]
    wanted = {name: max(len(name), *(line[place].cell_len for line in lines)) for place, name in enumerate(headings)}
    whole = {*numbers, *curves}
    room = console.width - len(_GAP) * (len(headings) - 1)
    comfortable = [wanted[name] if name in whole | {LAYER} else _COMFORTABLE_TEXT for name in headings]
    least = [wanted[name] if name in whole else _LEAST_TEXT for name in headings]
    widths = fitted(fitted(list(wanted.values()), comfortable, room), least, room)
    made = Table.grid(padding=(0, len(_GAP), 0, 0), pad_edge=False)
    for heading, width in zip(headings, widths, strict=True):
        made.add_column(justify="right" if heading in numbers else "left", width=width, no_wrap=True)
    made.add_row(*(Text(heading, "bold") for heading in headings))
    rule = "─" if _has_blocks(console) else "-"
    made.add_row(*(Text(rule * width, QUIET) for width in widths))
    for line in lines:
        made.add_row(*(_cut(*cell) for cell in zip(line, widths, headings, strict=True)))
    return made


def fitted(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that take no more than ``room``, the widest ones cut first, as long as they are above the least.

    >>> fitted([30, 8, 50], [10, 8, 10], room=60)
    [26, 8, 26]
    """
    widths = list(wanted)
    while sum(widths) > room:
        place = max(range(len(widths)), key=lambda place: (widths[place] > least[place], widths[place]))
        if widths[place] <= least[place]:
            break
        widths[place] -= 1
    return widths


def _cut(text: Text, width: int, heading: str) -> Text:
    if heading == LAYER and text.cell_len > width:
        return Text("…" + text.plain[1 - width :], text.style)
    text.truncate(width, overflow="ellipsis")
    return text
