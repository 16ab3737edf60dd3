"""The screen of ``top``: the run, what is wrong, its numbers as a whole, its layers, its events."""

import argparse
from collections.abc import Sequence
from itertools import islice

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..diagnosis import findings_of
from ..store import Event, Failure, Run
from ..store.types import shown_name
from ..visualizer.table import number_text
from .finding_sheet import other_events, problem_lines
from .run_facts import headline
from .run_sheet import event_table, title
from .screen import QUIET, TROUBLE, Sheet, blocks_of, table, words
from .sparkline import sparkline
from .top_rows import TopRow, layer_rows, whole_run_rows
from .wording import count_text

_MOST_LAYERS, _MOST_OF_RUN, _MOST_EVENTS = 40, 6, 3
_FIRST = "Loss", "Loss & Metrics", "Gradient Norm"
_LONGEST_CURVE, _SHORTEST_CURVE = 40, 12
_BESIDE_CURVE = 95
_TROUBLING = ("error", "nonfinite")


class Screen:
    """What to draw of a run; numbers are read again only when there are new ones.

    Args:
        run: what to show.
        options: filters and order.
        console: where it will be shown.
    """

    def __init__(self, run: Run, options: argparse.Namespace, console: Console) -> None:
        self._run, self._options, self._console = run, options, console
        self._version: int | None = None

    def draw(self, height: int | None = None) -> RenderableType:
        """The whole screen, at most ``height`` lines."""
        self._refresh()
        facts = headline(self._run)
        lines = title(facts).wrap(self._console, self._console.width)
        head: list[RenderableType] = [*lines, *self._error(facts["error"]), *self._problems(), Text()]
        if self._whole:
            head += [self._whole_run(), Text()]
        tail: list[RenderableType] = [Text(), event_table(self._console, self._events)] if self._events else []
        used = len(head) + min(len(self._whole), _MOST_OF_RUN) + (2 * len(self._events) + 3 if self._events else 0) + 4
        room = _MOST_LAYERS if height is None else max(min(height - used, _MOST_LAYERS), 1)
        body: list[RenderableType] = [words("no numbers yet", QUIET)]
        if self._rows:
            layers = self._layers(self._rows[:room])
            high = layers.lines_per_row
            if height is not None and high > 1:  # the headings, too
                room = max(min((height - used - high + 1) // high, room), 1)
                layers = self._layers(self._rows[:room])
            body = [layers]
        leave = "" if height is None else "   Ctrl-C leaves"
        shown = f"{min(room, len(self._rows))} of {count_text(len(self._rows), 'layer')}, {self._order()}{leave}"
        return Group(*head, *body, Text(), words(shown, QUIET), *tail)

    def _refresh(self) -> None:
        version = self._run.data_version()
        if version != self._version:
            self._findings = findings_of(self._run.meta)
            self._rows, self._whole = layer_rows(self._run, self._options), whole_run_rows(self._run)
            others = other_events(self._run.events(), self._findings or ())
            alarming = [event for event in others if event.severity != "info"]
            self._events: Sequence[Event] = alarming[-_MOST_EVENTS:]
            self._version = version

    def _error(self, error: Failure | None) -> list[Text]:
        """What ended the run, on one line."""
        if error is None:
            return []
        line = words(error.line, TROUBLE)
        line.truncate(self._console.width, overflow="ellipsis")
        return [line]

    def _problems(self) -> list[Text]:
        """The verdict and the first causes, each on one line; nothing for a run that was not diagnosed."""
        if self._findings is None:
            return []
        return problem_lines(self._console, self._findings, self._run.status, wrapped=False)

    def _order(self) -> str:
        words = {"worst": "worst first", "value": "largest first", "name": "by name", "depth": "in the model's order"}
        return words[self._options.sort]

    def _whole_run(self) -> Table:
        """Losses first; what was also logged under the name of a loss is left out."""
        named: dict[str, TopRow] = {}
        for row in sorted(self._whole, key=lambda row: _rank(row.statistic.tag)):
            named.setdefault(row.statistic.label or row.statistic.text, row)
        grid = Table.grid(padding=(0, 2))
        for name, row in islice(named.items(), _MOST_OF_RUN):
            grid.add_row(words(name, QUIET), _number(row), self._curve(row))
        return grid

    def _layers(self, rows: Sequence[TopRow]) -> Sheet:
        headings = ("layer", "statistic", "now", "recent", "reason")
        cells = [
            (
                words(shown_name(row.layer), "bold" if row.health.reason else ""),
                words(row.statistic.title, QUIET),
                _number(row),
                self._curve(row),
                words(row.health.reason, TROUBLE if row.health.tone in _TROUBLING else "yellow"),
            )
            for row in rows
        ]
        return table(self._console, headings, cells, numbers=("now",), curves=("recent",))

    def _curve(self, row: TopRow) -> Text:
        width = max(min(self._console.width - _BESIDE_CURVE, _LONGEST_CURVE), _SHORTEST_CURVE)
        text = Text(
            sparkline(row.values, row.broken, width, blocks_of(self._console)),
            "cyan" if row.health.reason else "dim cyan",
        )
        text.highlight_regex("!", TROUBLE)
        return text


def _rank(tag: str) -> int:
    return _FIRST.index(tag) if tag in _FIRST else len(_FIRST)


def _number(row: TopRow) -> Text:
    finite = bool(np.isfinite(row.newest))
    return words(number_text(float(row.newest)), "" if finite else TROUBLE)
