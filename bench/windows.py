"""Bare and watched windows of training that take turns, and what their times say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

NEAR, OFF, SCATTER = 2, 0.03, 5
"""A bare window is disturbed if it is off the median of those up to ``NEAR`` places away by more than this share, and
by more than so many times what is usual."""

MANY, LONG = 100, 1.0
"""Steps and seconds per window from which each window holds some observed steps and ticks, so that a median may stand
for all windows."""


class Turns:
    """Windows of the same number of steps: bare, watched, bare, watched, and so on; the last one is bare.

    Args:
        bare: trains so many steps without a watch, and returns the seconds.
        watched: the same with a watch.
        steps: the steps of a window.
    """

    def __init__(self, bare: Callable[[int], float], watched: Callable[[int], float], steps: int) -> None:
        self._bare, self._watched, self.steps = bare, watched, steps
        self.bare = [bare(steps)]
        self.watched: list[float] = []

    def take(self) -> None:
        """One watched window, and the bare one after it."""
        self.watched.append(self._watched(self.steps))
        self.bare.append(self._bare(self.steps))

    @property
    def around(self) -> list[float]:
        """For each watched window, the bare time to compare it with."""
        return neighbours(self.bare)

    @property
    def extra(self) -> float:
        """The seconds that watching has added so far."""
        return sum(self.watched) - sum(self.around)


def neighbours(bare: Sequence[float]) -> list[float]:
    """For each window between two bare ones, the mean time of these: so drift cancels."""
    return [statistics.fmean(pair) for pair in pairwise(bare)]


def calm(bare: Sequence[float]) -> list[bool]:
    """For each window between two bare ones, whether these took the usual time.

    What makes a bare window longer, such as another program or a collection of all garbage, is no cost of watching, and
    may just as well have hit the watched window beside it.
    """
    usual = [statistics.median(bare[max(0, place - NEAR) : place + NEAR + 1]) for place in range(len(bare))]
    off = [abs(seconds / median - 1) for seconds, median in zip(bare, usual, strict=True)]
    limit = max(OFF, SCATTER * statistics.median(off))
    return [max(pair) <= limit for pair in pairwise(off)]


def compare(bare: Sequence[float], watched: Sequence[float], steps: int) -> dict[str, Any]:
    """What watching costs, from the times of watched windows and of the bare ones around each.

    The cost comes in lumps, at observed steps and at ticks. Where windows are too short to hold some of them each, most
    windows may hold none: then the mean tells what is paid, and the median does not.
    """
    ratios = [after / before for before, after in zip(bare, watched, strict=True)]
    median, mean = statistics.median(ratios), sum(watched) / sum(bare)
    return {
        "ratio": median if steps >= MANY and statistics.median(bare) >= LONG else mean,
        "median": median,
        "mean": mean,
        "error": error(bare, watched),
        "quartiles": quartiles(ratios),
        "windows": len(ratios),
        "steps": steps,
        "bare_ms": statistics.median(bare) / steps * 1e3,
    }


def error(bare: Sequence[float], watched: Sequence[float]) -> float:
    """The standard error of the mean ratio, which is that of all times together; infinite for a single window."""
    if len(watched) < 2:
        return math.inf
    ratio = sum(watched) / sum(bare)
    off = [after - ratio * before for before, after in zip(bare, watched, strict=True)]
    return math.sqrt(len(off) / (len(off) - 1) * sum(each**2 for each in off)) / sum(bare)


def quartiles(numbers: Sequence[float]) -> list[float]:
    """The lower and the upper one: half of all numbers lie between them."""
    if len(numbers) == 1:
        return [numbers[0], numbers[0]]
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return [low, high]


def whole_run(bare: Sequence[float], watched: Sequence[float], seconds: float, closing: float) -> float | None:
    """Time of a watched run over that of a bare run of so many seconds; None if not that much was trained.

    Args:
        bare: times of bare windows, the first one at the beginning of the run.
        watched: times of the same windows when watched.
        seconds: how long the bare run is.
        closing: seconds that closing the watch takes.
    """
    left, total = seconds, closing
    for before, after in zip(bare, watched, strict=True):
        if before >= left:
            return (total + after * left / before) / seconds
        left, total = left - before, total + after
    return None


def is_true(said: float, measured: float, error: float, at_least: bool = False) -> bool | None:
    """Whether an overhead that is shown lies within a fifth, or one percentage point, of the measured one.

    None if it does not, but may all the same: twice the standard error of what is measured reaches that far.
    """
    allowed = max(0.2 * abs(measured), 0.01) + 1e-12
    off = said - measured if at_least else abs(said - measured)
    return True if off <= allowed else None if off <= allowed + 2 * error else False
