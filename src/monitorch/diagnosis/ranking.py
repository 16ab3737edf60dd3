"""Which layers are worst: the one rule by which layers are ordered.

1. Layers with non-finite numbers come first: the more of their recent ticks have some, the earlier.
2. Then those that jumped: the newest number against the median of the recent ones before it, in decades, up or down.
   Less than a factor of 3, or fewer than 4 earlier numbers, is calm and counts as no jump. A layer that was 0 all the
   time, while other layers were not, counts as the largest jump.
3. Then those with the largest newest number.

Signs are ignored. Numbers near zero jump easily without meaning anything. So less than a millionth of the largest
number of all layers is calm, and both sides of a ratio get something added: a hundredth of the range of a statistic
that has limits, or the largest number of a statistic that changes its sign.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RECENT_TICKS = 60
"""How many ticks count as recent."""

CALM_FACTOR = 3.0
_FEWEST = 4
_SHARE_OF_LIMITS = 0.01
_NOISE = 1e-6


class Severity(NamedTuple):
    """How bad a layer is, and why.

    Args:
        nonfinite: how many samples of the recent ticks were not finite.
        broken: how many recent ticks had such samples.
        ticks: how many recent ticks have measured this layer.
        jump: decades between its newest number and its median, infinite if one of them is 0, and 0 if it is calm.
        median: of the magnitudes of the recent numbers before the newest.
        value: the newest finite number; NaN if there is none.
    """

    nonfinite: int
    broken: int
    ticks: int
    jump: float
    median: float
    value: float

    @property
    def key(self) -> tuple[float, float, float]:
        """Greater is worse."""
        return self.broken, abs(self.jump), abs(self.value) if np.isfinite(self.value) else -1.0

    @property
    def reason(self) -> str:
        """Why the layer is bad, in a few words; empty for a calm layer.

        >>> Severity(nonfinite=0, broken=0, ticks=60, jump=2.0, median=0.5, value=50.0).reason
        '100x its median'
        >>> Severity(nonfinite=83, broken=6, ticks=20, jump=0.0, median=0.5, value=0.5).reason
        '83 not finite in 6 of 20 ticks'
        """
        if self.nonfinite:
            return f"{self.nonfinite:,} not finite in {self.broken} of {self.ticks} ticks"
        if not self.jump:
            return ""
        if not self.median or not self.value:
            return "rose from 0" if self.value else "fell to 0" if self.median else "0 all the time"
        ratio = abs(self.value) / self.median
        return f"{_short(ratio)}x its median" if ratio > 1 else f"1/{_short(1 / ratio)} of its median"


def severities(
    values: NDArray[Any], nonfinite: NDArray[Any], limits: tuple[float, float] | None = None
) -> list[Severity]:
    """How bad each layer is.

    Args:
        values: recent numbers ``[layer, tick]``, such as the ``mean`` of a window.
        nonfinite: how many samples of each are not finite; where that is 0, NaN means that nothing was measured.
        limits: the smallest and largest possible value of the statistic, if it has them.

    >>> calm, loud = [1.0, 1.1, 0.9, 1.0, 1.2], [1.0, 1.1, 0.9, 1.0, 40.0]
    >>> [round(severity.jump, 1) for severity in severities(np.array([calm, loud]), np.zeros((2, 5)))]
    [0.0, 1.6]
    """
    numbers, broken = np.asarray(values, np.float64), np.asarray(nonfinite) > 0
    finite = np.isfinite(numbers)
    newest = np.where(finite, np.arange(numbers.shape[1]), -1).max(axis=1, initial=-1)
    latest = np.where(newest >= 0, np.take_along_axis(_padded(numbers), newest[:, None] + 1, axis=1)[:, 0], np.nan)
    earlier = finite & (np.arange(numbers.shape[1]) < newest[:, None])
    history = np.sort(np.where(earlier, np.abs(numbers), np.nan), axis=1)  # NaN goes to the end
    count = earlier.sum(axis=1)
    median = _median(history, count)
    floor = np.zeros(len(numbers)) if limits is None else np.full(len(numbers), abs(limits[1] - limits[0]))
    floor *= _SHARE_OF_LIMITS
    changes_sign = (numbers < 0).any(axis=1, where=finite) & (numbers > 0).any(axis=1, where=finite)
    floor = np.where(changes_sign, np.maximum(floor, np.nan_to_num(_pick(history, count - 1))), floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = np.nan_to_num(np.log10(np.abs(latest) + floor) - np.log10(median + floor), posinf=np.inf, neginf=-np.inf)
    largest = np.max(np.abs(numbers), where=finite, initial=0.0)
    jump[(np.abs(latest) < _NOISE * largest) & (median < _NOISE * largest)] = 0.0
    jump[(count < _FEWEST) | (np.abs(jump) < np.log10(CALM_FACTOR))] = 0.0
    if limits is None and largest > 0:
        jump[(count >= _FEWEST) & (latest == 0) & (_pick(history, count - 1) == 0)] = -np.inf
    rows = np.asarray(nonfinite).sum(axis=1), broken.sum(axis=1), (finite | broken).sum(axis=1), jump, median, latest
    return [Severity(*row) for row in zip(*(row.tolist() for row in rows), strict=True)]


def worst_first(severities: Iterable[Severity]) -> list[int]:
    """Indices, worst layer first; equally bad layers keep their order.

    >>> calm, fallen = Severity(0, 0, 9, 0.0, 1.0, 1.0), Severity(0, 0, 9, -2.0, 1.0, 0.01)
    >>> worst_first([calm, Severity(7, 2, 9, 0.0, 1.0, 1.0), fallen])
    [1, 2, 0]
    """
    keys = [severity.key for severity in severities]
    return sorted(range(len(keys)), key=keys.__getitem__, reverse=True)


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.0e}"


def _padded(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """With a column in front, to pick where there is no number."""
    return np.pad(numbers, ((0, 0), (1, 0)))


def _pick(ordered: NDArray[np.float64], place: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(
        place >= 0, np.take_along_axis(_padded(ordered), np.maximum(place, -1)[:, None] + 1, axis=1)[:, 0], np.nan
    )


def _median(ordered: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    return (_pick(ordered, (count - 1) // 2) + _pick(ordered, count // 2 - (count == 0))) / 2
