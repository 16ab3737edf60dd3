"""Output to the terminal: plain text if there is none, and without control codes from names."""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..visualizer.names import printable, shortened
from . import sparkline

_WITHOUT_TERMINAL = 160
_LEAST_TEXT, _COMFORTABLE_TEXT = 12, 18
_GAP = "  "
_INDENT = "    "
_SPACES_AT_END = re.compile(" +$", re.MULTILINE)

NAMES = ("run", "lens", "statistic", "layer")
"""Headings of columns with names: these are cut in the middle and stay different; other texts are cut at the end."""

COLOURS = {
    "running": "green",
    "finished": "cyan",
    "stale": "yellow",
    "empty": "yellow",
    "locked": "yellow",
    **dict.fromkeys(("crashed", "damaged", "newer", "foreign", "unreadable"), "red"),
}
SEVERITIES = {"warning": "yellow", "error": "red"}
TROUBLE = "bold red"
QUIET = "dim"


class _Trimmed:
    """A file that gets no spaces at the ends of lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(_SPACES_AT_END.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def open_console() -> Console:
    """Standard output; characters that its encoding lacks are written as escapes.

    Without a terminal there are no spaces at the ends of lines.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    is_terminal = sys.stdout.isatty()
    fixed = None if is_terminal or "COLUMNS" in os.environ else _WITHOUT_TERMINAL
    file = sys.stdout if is_terminal else cast(IO[str], _Trimmed(sys.stdout))
    return Console(file=file, width=fixed, markup=False, highlight=False, emoji=False)


def blocks_of(console: Console) -> str:
    """The characters for sparklines."""
    return sparkline.BLOCKS if _has_blocks(console) else sparkline.ASCII


def _has_blocks(console: Console) -> bool:
    return console.encoding.startswith("utf")


def words(text: object, style: str = "") -> Text:
    """Text without rich markup and without terminal control codes."""
    return Text(printable(text), style)


def status_words(status: str) -> Text:
    """The status in its colour."""
    return Text(printable(status), COLOURS.get(status, ""))


class Sheet:
    """A drawn table; ``lines_per_row`` is the height of its rows without notes."""

    def __init__(self, lines: Sequence[Text], lines_per_row: int) -> None:
        self._lines, self.lines_per_row = lines, lines_per_row

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._lines


def table(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    numbers: Sequence[str] = (),
    curves: Sequence[str] = (),
    notes: Sequence[str] = (),
    wrapped: bool = False,
) -> Sheet:
    """A plain table, with only a line below the headings.

    Columns of ``numbers`` and ``curves`` are never cut; text is, if there is too little room. If too little of it would
    be left, a row takes several lines, with its names on the first one.

    Args:
        console: where it will be shown.
        headings: one for each column.
        rows: cells, texts or anything that is printed as text.
        numbers: headings of the columns that are aligned right.
        curves: headings of other columns that are never cut.
        notes: a text below each row; none where it is empty.
        wrapped: show a long text on several lines; else it is cut.
    """
    lines = [[cell if isinstance(cell, Text) else words(cell) for cell in row] for row in rows]
    wanted = {name: max([len(name), *(line[place].cell_len for line in lines)]) for place, name in enumerate(headings)}
    whole = {*numbers, *curves}
    least = {name: min(wanted[name], wanted[name] if name in whole else _LEAST_TEXT) for name in headings}
    if sum(least.values()) + len(_GAP) * (len(headings) - 1) <= console.width:
        groups = [list(headings)]
    else:
        names = [name for name in headings if name in NAMES]
        others = _packed([name for name in headings if name not in NAMES], least, console.width - len(_INDENT))
        groups = [names, *others] if names else others
    widths = _widths(groups, wanted, least, whole, console.width)
    columns = {
        name: _cut([line[place] for line in lines], widths[name], name, "…" if _has_blocks(console) else "..")
        for place, name in enumerate(headings)
    }
    rule = "─" if _has_blocks(console) else "-"
    top = {name: Text(name, "bold") for name in headings}
    rules = [Text(_GAP, QUIET).join(Text(rule * widths[name], QUIET) for name in groups[-1])]
    made = [*_drawn(top, groups, widths, numbers), *indented(rules, _INDENT if len(groups) > 1 else "")]
    for place in range(len(lines)):
        made += _drawn({name: column[place] for name, column in columns.items()}, groups, widths, numbers)
        if notes and notes[place]:
            note, room = words(notes[place], QUIET), console.width - len(_INDENT)
            if not wrapped:
                note.truncate(room, overflow="ellipsis")
            made += indented(note.wrap(console, room), _INDENT)
    return Sheet(made, len(groups))


def _packed(names: Sequence[str], widths: Mapping[str, int], room: int) -> list[list[str]]:
    """Columns in groups that fit side by side, at least one in each."""
    groups: list[list[str]] = []
    used = 0
    for name in names:
        if not groups or used + len(_GAP) + widths[name] > room:
            groups.append([])
            used = -len(_GAP)
        groups[-1].append(name)
        used += len(_GAP) + widths[name]
    return groups


def _widths(
    groups: Sequence[Sequence[str]], wanted: Mapping[str, int], least: Mapping[str, int], whole: set[str], room: int
) -> dict[str, int]:
    """Make text columns narrower if there is too little room, layer names last."""
    found: dict[str, int] = {}
    for number, group in enumerate(groups):
        free = room - len(_GAP) * (len(group) - 1) - (len(_INDENT) if number else 0)
        comfortable = [wanted[name] if name in whole | {"layer"} else _COMFORTABLE_TEXT for name in group]
        widths = fitted([wanted[name] for name in group], comfortable, free)
        found |= zip(group, fitted(widths, [least[name] for name in group], free), strict=True)
    return found


def _drawn(
    cells: Mapping[str, Text], groups: Sequence[Sequence[str]], widths: Mapping[str, int], numbers: Sequence[str]
) -> list[Text]:
    """A row as lines, those after the first one indented."""
    lines = []
    for number, group in enumerate(groups):
        padded = [_aligned(cells[name], widths[name], name in numbers) for name in group]
        lines += indented([Text(_GAP).join(padded)], _INDENT if number else "")
    return lines


def indented(lines: Iterable[Text], indent: str) -> list[Text]:
    """Lines that are not wrapped again, with ``indent`` in front and no space at the end."""
    made = [Text.assemble(indent, line, no_wrap=True, overflow="crop") for line in lines]
    for line in made:
        line.rstrip()
    return made


def _aligned(text: Text, width: int, right: bool) -> Text:
    space = " " * max(width - text.cell_len, 0)
    return Text.assemble(space, text) if right else Text.assemble(text, space)


def fitted(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that fit into ``room``: the widest are reduced first, but never below ``least``.

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


def _cut(texts: Sequence[Text], width: int, heading: str, mark: str) -> list[Text]:
    """A column with its texts cut to fit."""
    if heading in NAMES:
        names = shortened([text.plain for text in texts], width, mark)
        return [text if text.plain == name else Text(name, text.style) for text, name in zip(texts, names, strict=True)]
    for text in texts:
        if text.cell_len > width:
            text.truncate(width - len(mark))
            text.append(mark)
    return list(texts)
