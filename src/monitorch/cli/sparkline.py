"""A curve as one line of text."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-:=+*#"
NONFINITE = "!"
_LOG_FROM = 100.0


def sparkline(values: NDArray[Any], nonfinite: NDArray[Any], width: int, blocks: str = BLOCKS) -> str:
    """At most ``width`` characters from low to high; ``!`` is non-finite, a space is not measured.

    Where several numbers share a character, the one farthest from the median is shown, so that no spike is lost.
    Positive numbers that differ more than a hundredfold are drawn by their logarithms.

    >>> sparkline(np.array([1, 2, 3, 2, np.nan]), np.array([0, 0, 0, 0, 1]), width=5)
    '▁▅█▅!'
    """
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    if len(finite) and finite.min() > 0 and finite.max() > _LOG_FROM * finite.min():
        numbers = np.log(numbers, where=np.isfinite(numbers), out=np.full(len(numbers), np.nan))
        finite = numbers[np.isfinite(numbers)]
    center = np.sort(finite)[len(finite) // 2] if len(finite) else 0.0
    groups = np.array_split(np.arange(len(numbers)), min(width, len(numbers))) if len(numbers) else []
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    return "".join(
        _character(numbers[group], np.asarray(nonfinite)[group], center, low, high, blocks) for group in groups
    )


def _character(
    group: NDArray[Any], nonfinite: NDArray[Any], center: float, low: float, high: float, blocks: str
) -> str:
    if nonfinite.any():
        return NONFINITE
    finite = group[np.isfinite(group)]
    if not len(finite):
        return " "
    if high == low:
        return blocks[0]
    chosen = finite[np.abs(finite - center).argmax()]
    # halve first: the difference of two huge numbers may overflow
    share = (chosen / 2 - low / 2) / (high / 2 - low / 2)
    return blocks[round(float(share) * (len(blocks) - 1))]
