"""A run on a page of text."""

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..diagnosis import findings_of
from ..diagnosis.check import OF_DIAGNOSIS
from ..diagnosis.finding import MOST_CAUSES
from ..store import WHOLE_RUN, Event, Failure, Frame, LensInfo, Run, is_absent
from ..store.database import OWNER
from ..store.types import FINDING
from ..visualizer.table import TableColumn, number_text, table_text
from .finding_sheet import other_events, problem_lines
from .reading import Choice, choose
from .run_facts import headline, newest_frames, newest_numbers
from .screen import QUIET, SEVERITIES, TROUBLE, Sheet, open_console, status_words, table, words
from .wording import age_text, count_text, overhead_text, printable, size_text

_MOST_LAYERS, _MOST_EVENTS = 40, 12
_PROCESS = ("host", "pid", "rank")
_MOMENTS = ("started", "resumed", "ended")
_COST = ("overhead", "overhead_at_least")
_ELSEWHERE = (
    *("name", "status", "error", "heartbeat", "dropped", "id", "tick_unit"),
    *(*OF_DIAGNOSIS, OWNER, *_COST, *_PROCESS, *_MOMENTS),
)
_TROUBLE = r"\bNaN\b|-?\bInf\b|!\d+"


def print_sheet(run: Run, options: argparse.Namespace) -> None:
    """Print the whole run: what is wrong, facts, lenses, layers, events."""
    choices = choose(run, options, with_edges=options.all, whole_run=True)
    console = open_console()
    findings = findings_of(run.meta)
    events = run.events() if options.all else other_events(run.events(), findings or ())
    is_urgent = any(event.severity == "error" for event in events)
    console.print(title(headline(run)))
    _print_error(console, run.error)
    if findings is not None:
        most = len(findings) if options.all else MOST_CAUSES
        console.print(*problem_lines(console, findings, run.status, most, wrapped=True), "", sep="\n")
    if is_urgent:
        _print_events(console, events, options.all)
        console.print()
    console.print(_facts({**run.meta, "file": run.path}))
    console.print()
    newest = newest_frames(run)
    if not newest:
        console.print(words("no numbers yet", QUIET))
    else:
        console.print(_lenses(console, run.lenses.values()))
        console.print()
        order = {layer.name: place for place, layer in enumerate(run.layers)}
        _print_newest(console, choices, newest, order, options.all)
    if not is_urgent:
        _print_events(console, events, options.all)


def title(facts: Mapping[str, Any]) -> Text:
    """Name, status and newest step of the run, and what observing it costs."""
    step = "no steps" if facts["last_step"] is None else f"step {facts['last_step']:,}"
    rest = f"  {step}  {count_text(facts['ticks'], 'tick')}  {size_text(facts['size'])}  {age_text(facts['age'])} ago"
    if isinstance(facts["overhead"], int | float):
        rest += f"  {overhead_text(facts['overhead'], at_least=facts['overhead_at_least'])}"
    drops = words(f"  {facts['dropped']:,} dropped", TROUBLE) if facts["dropped"] else Text()
    return Text.assemble(words(facts["name"], "bold"), "  ", status_words(facts["status"]), words(rest, QUIET), drops)


def _print_error(console: Console, error: Failure | None) -> None:
    """What ended the run, and where."""
    if error is not None:
        console.print(words(error.line, TROUBLE))
        for line in error.traceback:
            console.print(words(f"  {line}", QUIET), no_wrap=True, overflow="ellipsis")
        console.print()


def _facts(meta: Mapping[str, Any]) -> Table:
    """Two columns without a heading; the parts of a group on one line."""
    grid = Table.grid(padding=(0, 2))
    times = {name: _moment_text(meta[name]) for name in _MOMENTS if name in meta}
    groups = {"process": {name: meta[name] for name in _PROCESS if name in meta}, "time": times}
    others = {name: value for name, value in meta.items() if name not in _ELSEWHERE}
    for name, value in (others | groups).items():
        if value not in ({}, None):
            grid.add_row(words(name, QUIET), words(_line(value)))
    return grid


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_line(item)}" for name, item in value.items())
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return "; ".join(_line(item) for item in value)
    return json.dumps(value) if isinstance(value, list | float | int | None) else str(value)


def _moment_text(seconds: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(seconds)))


def _lenses(console: Console, lenses: Iterable[LensInfo]) -> Sheet:
    headings = ("lens", "layers", "statistics", "ticks", "steps")
    rows = (
        (
            lens.name,
            "-" if lens.name == WHOLE_RUN else f"{len(lens.layers):,}",
            f"{len(lens.statistics):,}",
            f"{lens.ticks:,}",
            "-" if lens.last_step is None else f"{lens.first_step:,} to {lens.last_step:,}",
        )
        for lens in lenses
    )
    return table(console, headings, rows, numbers=headings[1:])


def _print_newest(
    console: Console, choices: Sequence[Choice], newest: Mapping[str, Frame], order: Mapping[str, int], everything: bool
) -> None:
    cells = _cells(choices, newest, everything)
    labels = sorted({layer for choice in choices for layer in choice.layers} & order.keys(), key=order.__getitem__)
    shown = labels if everything else labels[:_MOST_LAYERS]
    for part in ([WHOLE_RUN], shown):
        columns = {column: row for column, row in cells.items() if row.keys() & set(part)}
        if columns:
            text = Text(table_text(part, columns, console.width))
            text.highlight_regex(_TROUBLE, TROUBLE)
            console.print(text, soft_wrap=True)
            console.print()
    if len(labels) > len(shown):
        more = f"{count_text(len(labels) - len(shown), 'layer')} more: --all, or --layers REGEX"
        console.print(words(more, QUIET))
        console.print()
    if len(cells) < len(choices):
        more = count_text(len(choices) - len(cells), "more column")
        console.print(words(f"{more} with the same numbers, such as the min of a single sample: --all", QUIET))
        console.print()


def _cells(
    choices: Sequence[Choice], newest: Mapping[str, Frame], everything: bool
) -> dict[TableColumn, dict[str, str]]:
    """Texts by column and layer; a count of non-finite samples becomes a mark on the other numbers of its tag.

    An edge of a band that is the same as the line in all layers is left out, unless everything is to be shown.
    """
    made: dict[TableColumn, dict[str, str]] = {}
    lines: dict[tuple[str, str, str], dict[str, str]] = {}
    for choice in choices:
        frame = newest[choice.lens.name]
        tag = choice.statistic.tag
        name = " ".join(filter(None, [choice.statistic.text, choice.statistic.error_text]))
        column = TableColumn(printable(tag or choice.lens.name), printable(name))
        if column in made:  # two lenses that use one name
            column = TableColumn(printable(f"{choice.lens.name}: {tag}"), column.name)
        counts = _counts(frame, choice)
        texts = {
            layer: number_text(float(value), counts.get(layer, 0))
            for layer, value in newest_numbers(frame, choice).items()
            if not is_absent(np.array([value]))[0]
        }
        curve = choice.lens.name, tag, choice.statistic.curve
        if choice.statistic.role == "line":
            lines.setdefault(curve, texts)
        is_known = bool(texts) and choice.statistic.role == "edge" and lines.get(curve) == texts
        if everything or not is_known:
            made[column] = texts
    return made


def _counts(frame: Frame, choice: Choice) -> dict[str, int]:
    count = choice.statistic.nonfinite_among(choice.lens.statistics)
    if count is None:
        return {}
    row = frame.values[frame.statistics.index(count.name)]
    return {layer: int(count) for layer, count in zip(frame.layers, row, strict=True) if count > 0}


def _print_events(console: Console, events: Sequence[Event], everything: bool) -> None:
    if not events:
        return
    shown = events if everything else _most_urgent(events)
    console.print(event_table(console, shown, wrapped=True))
    if len(events) > len(shown):
        console.print(words(f"{count_text(len(events) - len(shown), 'more event')}: --all", QUIET))


def _most_urgent(events: Sequence[Event]) -> list[Event]:
    """The first errors, since others follow from them, then the newest of the rest; in the order they came."""
    errors = [event for event in events if event.severity == "error"][:_MOST_EVENTS]
    others = [event for event in events if event.severity != "error"]
    newest = others[max(len(others) - _MOST_EVENTS + len(errors), 0) :]
    return sorted([*errors, *newest], key=lambda event: event.id)


def event_table(console: Console, events: Sequence[Event], *, wrapped: bool = False) -> Sheet:
    """What happened, when and where, and below each event its text and numbers.

    Args:
        console: where it will be shown.
        events: the events.
        wrapped: show long texts on several lines, instead of the beginning of each on one.
    """
    rows = [
        (
            words(event.severity, SEVERITIES.get(event.severity, QUIET)),
            f"{event.step:,}",
            event.kind,
            event.layer or "",
            event.statistic or "",
        )
        for event in events
    ]
    headings = ("event", "step", "what", "layer", "statistic")
    shown = len(headings) if any(event.statistic for event in events) else -1
    return table(
        console,
        headings[:shown],
        [row[:shown] for row in rows],
        numbers=("step",),
        notes=[_more(event) for event in events],
        wrapped=wrapped,
    )


def _more(event: Event) -> str:
    """Text and numbers of an event, and what else was stored with it; the name of a finding is for programs."""
    rest = {name: value for name, value in event.body.items() if name not in ("text", "numbers", FINDING)}
    return "; ".join(filter(None, [event.details, _line(rest)]))
