"""Reading one number, or a pair, out of an accumulator."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from .series import Accumulator, RunningMeanVar

Samples = NDArray[np.float64]

_OF_MOMENTS: dict[str, Callable[[RunningMeanVar], float]] = {
    "mean": lambda acc: acc.mean,
    "std": lambda acc: acc.std,
    "min": lambda acc: acc.min_,
    "max": lambda acc: acc.max_,
}
_OF_SAMPLES: dict[str, Callable[[Samples], Any]] = {
    "mean": np.mean,
    "std": np.std,
    "min": np.min,
    "max": np.max,
    "median": np.median,
    "Q1": lambda x: np.quantile(x, 0.25),
    "Q2": np.median,
    "Q3": lambda x: np.quantile(x, 0.75),
    "IQR": lambda x: np.quantile(x, 0.75) - np.quantile(x, 0.25),
}
# name of a range -> the names of its two ends
_RANGES = {"std": ("-σ", "+σ"), "Q1-Q3": ("Q1", "Q3"), "min-max": ("min", "max")}

HUGE = 1e150

INPLACE_POINTS, POINTS, RANGES = tuple(_OF_MOMENTS), tuple(_OF_SAMPLES), tuple(_RANGES)
INPLACE_RANGES = ("std", "min-max")


def extract_point(acc: Accumulator, method: str) -> float:
    """One number for all finite samples; NaN if there are none.

    >>> extract_point([1.0, 2.0, 3.0, 4.0, 10.0], "Q3")
    4.0
    """
    if method not in _OF_SAMPLES:
        raise OptionError.unknown("method", method, _OF_SAMPLES)
    if isinstance(acc, RunningMeanVar):
        if method not in _OF_MOMENTS:
            raise OptionError(
                f"{method!r} needs every sample, but only moments were kept: use inplace=False (running=False "
                f"for pushed values), or one of {', '.join(map(repr, _OF_MOMENTS))}"
            )
        return float(_OF_MOMENTS[method](acc)) if acc.count else math.nan
    if not isinstance(acc, list):
        raise OptionError(f"an accumulator is a RunningMeanVar or a list, not {type(acc).__name__}")
    samples = np.asarray(acc, dtype=np.float64)
    samples = samples[np.isfinite(samples)]
    if not samples.size:
        return math.nan
    unit = float(np.max(np.abs(samples)))
    if unit > HUGE:  # their squares would overflow float64
        return float(_OF_SAMPLES[method](samples / unit)) * unit
    return float(_OF_SAMPLES[method](samples))


def extract_range(acc: Accumulator, method: str) -> tuple[float, float]:
    """The two ends of a band around the samples.

    >>> extract_range([1.0, 3.0], "std")
    (1.0, 3.0)
    """
    parse_range_name(method)
    if method == "std":
        mean, std = extract_point(acc, "mean"), extract_point(acc, "std")
        return mean - std, mean + std
    low, high = method.split("-")
    return extract_point(acc, low), extract_point(acc, high)


def parse_range_name(name: str) -> tuple[str, str]:
    """The names of a range's two ends.

    >>> parse_range_name("std")
    ('-σ', '+σ')
    """
    if name not in _RANGES:
        raise OptionError.unknown("range", name, _RANGES)
    return _RANGES[name]


def count_nonfinite(acc: Accumulator) -> int:
    """How many samples were NaN or infinite."""
    if isinstance(acc, RunningMeanVar):
        return acc.nonfinite
    return int(np.count_nonzero(~np.isfinite(np.asarray(acc, dtype=np.float64))))
