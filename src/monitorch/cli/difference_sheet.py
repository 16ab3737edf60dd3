"""The difference of two runs on a page of text."""

import json
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ..store.types import shown_name
from ..visualizer.table import number_text
from .run_difference import Parting, RunDifference, StatisticDifference
from .screen import QUIET, open_console, table, words
from .wording import count_text, printable

_MOST = 20
_MOST_NAMES = 8
_HEADINGS = ("statistic", "from step", "layer", "A", "B", "at most")
_NUMBERS = ("from step", "A", "B", "at most")


def print_difference(difference: RunDifference, a: str, b: str, tolerance: float) -> None:
    """Print the answer first, then the details."""
    console = open_console()
    console.print(Text(_answer(difference, printable(a), printable(b), tolerance), "bold"))
    parted = difference.parted
    if parted:
        rows = [_row(part) for part in parted[:_MOST]]
        console.print(Text(), table(console, _HEADINGS, rows, _NUMBERS), Text())
    rest = len(difference.statistics) - len(parted)
    if parted and rest:
        console.print(words(f"{count_text(rest, 'other statistic')} the same within {tolerance:g}", QUIET))
    if len(parted) > _MOST:
        more = f"{count_text(len(parted) - _MOST, 'statistic')} more that differ: --statistic REGEX, or --json"
        console.print(words(more, QUIET))
    for name, only in ((a, difference.only_a), (b, difference.only_b)):
        for kind, found in only.items():
            if found:
                console.print(words(f"only in {name}: {kind} {_listed(found)}"))
    _print_ticks(console, difference, a, b)
    _print_settings(console, difference.settings)


def percent_text(share: float) -> str:
    """A relative difference.

    >>> percent_text(0.0123), percent_text(2e-6), percent_text(float("inf"))
    ('1.2 %', '2e-04 %', 'not finite')
    """
    if math.isinf(share):
        return "not finite"
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.0e} %"


def _answer(difference: RunDifference, a: str, b: str, tolerance: float) -> str:
    compared = sum(part.compared for part in difference.statistics)
    if difference.parted:
        part = difference.parted[0]
        first: Any = part.first
        where = f"step {first.step:,} in {printable(shown_name(first.layer))}: {printable(part.statistic)} is"
        return f"{a} and {b} first differ at {where} {_text(first.a)} and {_text(first.b)}"
    if not compared:
        return f"{a} and {b} have nothing in common to compare"
    if difference.same:
        return f"{a} and {b} are the same within {tolerance:g} in {count_text(compared, 'number')}"
    return f"{a} and {b} are the same within {tolerance:g} where both have numbers, but one has more"


def _row(part: StatisticDifference) -> tuple[Any, ...]:
    first: Any = part.first
    largest: Any = part.largest
    return part.statistic, f"{first.step:,}", shown_name(first.layer), _text(first.a), _text(first.b), _by(largest)


def _by(parting: Parting) -> str:
    return "missing" if None in (parting.a, parting.b) else percent_text(parting.difference)


def _text(value: float | None) -> str:
    return "nothing" if value is None else number_text(float(value))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )


def _print_ticks(console: Console, difference: RunDifference, a: str, b: str) -> None:
    uneven = {lens: ticks for lens, ticks in difference.ticks.items() if ticks.only_a or ticks.only_b}
    for ticks in sorted(set(uneven.values())):
        lenses = [lens for lens, found in uneven.items() if found == ticks]
        counts = [(ticks.only_a, a), (ticks.only_b, b)]
        extra = " and ".join(f"{number:,} only in {name}" for number, name in counts if number)
        text = f"{count_text(ticks.both, 'tick')} compared, {extra}: {_listed(lenses)}"
        console.print(words(text, QUIET))


def _print_settings(console: Console, settings: Mapping[str, tuple[Any, Any]]) -> None:
    if settings:
        told = [f"{name} {json.dumps(one)} and {json.dumps(other)}" for name, (one, other) in settings.items()]
        console.print(words(f"settings that differ: {_listed(told)}"))
