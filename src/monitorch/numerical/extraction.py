"""Reading one number, or a pair, out of an accumulator, or out of those of all layers at once.

Functions over many accumulators take them by name, and return arrays in that order. Moments are read as whole columns;
only where every sample is kept do these functions look at single accumulators.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..statistic import BANDS
from .moments import Moments, Numbers, Places
from .series import Accumulator, RunningMeanVar, SeriesColumn

Series: TypeAlias = Mapping[str, Accumulator]
"""The accumulators of one statistic, by name."""

_OF_MOMENTS = {"mean": "mean", "std": "std", "min": "low", "max": "high"}  # the column of each method
_OF_SAMPLES: dict[str, Callable[[Numbers], Any]] = {
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
HUGE = 1e150

INPLACE_POINTS, POINTS, RANGES = tuple(_OF_MOMENTS), tuple(_OF_SAMPLES), tuple(BANDS)
INPLACE_RANGES = ("std", "min-max")


def extract_point(acc: Accumulator, method: str) -> float:
    """One number for all finite samples; NaN if there are none.

    >>> extract_point([1.0, 2.0, 3.0, 4.0, 10.0], "Q3")
    4.0
    """
    _check(method, of_moments=isinstance(acc, RunningMeanVar))
    if isinstance(acc, RunningMeanVar):
        row = acc.row()
        return float(getattr(row, _OF_MOMENTS[method])) if row.finite else math.nan
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


def _check(method: str, *, of_moments: bool) -> None:
    if method not in _OF_SAMPLES:
        raise OptionError.unknown("method", method, _OF_SAMPLES)
    if of_moments and method not in _OF_MOMENTS:
        raise OptionError(
            f"{method!r} needs every sample, but only moments were kept: use inplace=False (running=False "
            f"for pushed values), or one of {', '.join(map(repr, _OF_MOMENTS))}"
        )


def extract_range(acc: Accumulator, method: str) -> tuple[float, float]:
    """The two ends of a band around the samples.

    >>> extract_range([1.0, 3.0], "std")
    (1.0, 3.0)
    """
    low, high = extract_ranges({"": acc}, method)
    return low.item(), high.item()


def parse_range_name(name: str) -> tuple[str, str]:
    """The names of a range's two ends.

    >>> parse_range_name("std")
    ('-σ', '+σ')
    """
    if name not in BANDS:
        raise OptionError.unknown("range", name, BANDS)
    return BANDS[name]


def count_nonfinite(acc: Accumulator) -> int:
    """How many samples were NaN or infinite."""
    if isinstance(acc, RunningMeanVar):
        return acc.nonfinite
    return int(np.count_nonzero(~np.isfinite(np.asarray(acc, dtype=np.float64))))


def extract_points(series: Series, method: str) -> Numbers:
    """One number for each accumulator.

    >>> extract_points({"a": [1.0, 3.0], "b": []}, "mean")
    array([ 2., nan])
    """
    found = _moments_of(series)
    _check(method, of_moments=found is not None)
    if found is None:
        return np.array([extract_point(acc, method) for acc in series.values()], np.float64)
    moments, numbers = found
    return np.where(moments.count[numbers] > 0, getattr(moments, _OF_MOMENTS[method])[numbers], np.nan)


def extract_ranges(series: Series, method: str) -> tuple[Numbers, Numbers]:
    """The lower and the upper edges of the bands around each accumulator's samples."""
    low, high = parse_range_name(method)
    if method == "std":
        mean, std = extract_points(series, "mean"), extract_points(series, "std")
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, as with Python's floats
            return mean - std, mean + std
    return extract_points(series, low), extract_points(series, high)


def count_nonfinites(series: Series) -> NDArray[np.int64]:
    """How many samples of each accumulator were NaN or infinite."""
    found = _moments_of(series)
    if found is None:
        return np.array([count_nonfinite(acc) for acc in series.values()], np.int64)
    moments, numbers = found
    return moments.nonfinite[numbers]


def have_samples(series: Series) -> NDArray[np.bool_]:
    """Which accumulators have samples, finite or not."""
    found = _moments_of(series)
    if found is None:
        return np.array([has_samples(acc) for acc in series.values()], np.bool_)
    moments, numbers = found
    return (moments.count + moments.nonfinite)[numbers] > 0


def _moments_of(series: Series) -> tuple[Moments, Places] | None:
    """The columns of moments, and where in them the series are; None if they are not stored as columns."""
    if not isinstance(series, SeriesColumn):
        return None
    return None if series.moments is None else (series.moments, series.numbers)


def has_samples(acc: Accumulator) -> bool:
    """Whether there are samples, finite or not."""
    return len(acc) > 0 or count_nonfinite(acc) > 0
