"""The difference of two runs on a page of text."""

import json
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ..store.types import shown_name
from ..visualizer.table import number_text
from .run_difference import LOSSES, Parting, RunDifference, StatisticDifference, Ticks
from .screen import QUIET, open_console, table, words
from .wording import count_text, printable

_MOST = 20
_MOST_NAMES = 8
_AVERAGES = "; other numbers are averages since the tick before, which may have been at another step"
_DIFFERENT_STEPS = (
    "where ticks are at different steps, part of a difference is the training between them; "
    "watch(tick_every=N) gives runs the same ticks"
)
_NUMBERS = ("from step", "A", "B", "largest difference")
_HEADINGS = ("statistic", "from step", "layer", *_NUMBERS[1:])


def print_difference(difference: RunDifference, a: str, b: str, tolerance: float) -> None:
    """Print the answer first, then the details."""
    console = open_console()
    console.print(Text(_answer(difference, printable(a), printable(b), tolerance), "bold"))
    parted = difference.parted
    losses = next((part for part in difference.statistics if part.lens == LOSSES.name), None)
    if parted and losses and losses.compared and not losses.beyond:
        console.print(f"training losses are the same at {count_text(losses.compared, 'step')}{_AVERAGES}")
    if parted:
        rows = [_row(part) for part in parted[:_MOST]]
        console.print(Text(), table(console, _HEADINGS, rows, _NUMBERS), Text())
    rest = len(difference.statistics) - len(parted)
    if parted and rest:
        console.print(words(f"{count_text(rest, 'other statistic')} the same within {tolerance:g}", QUIET))
    if len(parted) > _MOST:
        rest = len(parted) - _MOST
        more = f"{count_text(rest, 'more statistic')} {'differs' if rest == 1 else 'differ'}"
        more += ": --statistic REGEX, or --json"
        console.print(words(more, QUIET))
    for name, only in ((a, difference.only_a), (b, difference.only_b)):
        for kind, found in only.items():
            if found:
                console.print(words(f"{kind} only in {name}: {_listed(found)}"))
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
        step = f"step{'' if first.step == first.step_b else 's'} {_steps_text(first)}"
        where = f"{step} in {printable(shown_name(first.layer))}: {printable(part.statistic)} is"
        return f"{a} and {b} first differ at {where} {_text(first.a)} and {_text(first.b)}"
    if not compared:
        return f"{a} and {b} have nothing in common to compare"
    if difference.same:
        return f"{a} and {b} are the same within {tolerance:g} in {count_text(compared, 'number')}"
    return f"{a} and {b} are the same within {tolerance:g} where both have numbers, but one has more"


def _row(part: StatisticDifference) -> tuple[Any, ...]:
    first: Any = part.first
    largest: Any = part.largest
    return part.statistic, _steps_text(first), shown_name(first.layer), _text(first.a), _text(first.b), _by(largest)


def _steps_text(parting: Parting) -> str:
    return f"{parting.step:,}" if parting.step == parting.step_b else f"{parting.step:,} and {parting.step_b:,}"


def _by(parting: Parting) -> str:
    if None in (parting.a, parting.b):
        return f"only in {'A' if parting.b is None else 'B'}"
    return percent_text(parting.difference)


def _text(value: float | None) -> str:
    return "nothing" if value is None else number_text(float(value))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )


def _print_ticks(console: Console, difference: RunDifference, a: str, b: str) -> None:
    uneven = {lens: ticks for lens, ticks in difference.ticks.items() if ticks.only_a or ticks.only_b or ticks.apart}
    for ticks in sorted(set(uneven.values())):
        lenses = [lens for lens, found in uneven.items() if found == ticks]
        console.print(words(f"{_ticks_text(ticks, a, b)}: {_listed(lenses)}", QUIET))
    if any(ticks.apart for ticks in uneven.values()):
        console.print(words(_DIFFERENT_STEPS, QUIET))


def _ticks_text(ticks: Ticks, a: str, b: str) -> str:
    """How the ticks of some lenses were compared.

    >>> _ticks_text(Ticks(5, 3, 0, 0), "one", "other")
    'compared at 5 steps, 3 only in one'
    >>> _ticks_text(Ticks(1, 0, 1, 7), "one", "other")
    '1 tick compared with the nearest, at most 7 steps apart, 1 left out of other'
    """
    where, which = f"compared at {count_text(ticks.both, 'step')}", "only in"
    if ticks.apart:
        apart = count_text(ticks.apart, "step")
        where, which = (
            f"{count_text(ticks.both, 'tick')} compared with the nearest, at most {apart} apart",
            "left out of",
        )
    counts = [f"{number:,} {which} {name}" for number, name in ((ticks.only_a, a), (ticks.only_b, b)) if number]
    return ", ".join([where, " and ".join(counts)] if counts else [where])


def _print_settings(console: Console, settings: Mapping[str, tuple[Any, Any]]) -> None:
    if settings:
        told = [f"{name} {json.dumps(one)} and {json.dumps(other)}" for name, (one, other) in settings.items()]
        console.print(words(f"settings that differ: {_listed(told)}"))
