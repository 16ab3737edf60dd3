"""Running moments of many streams of numbers at once: one array per moment, one place per stream."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
Places = NDArray[np.int64]


class Row(NamedTuple):
    """The moments of one stream.

    The deviation is kept beside the variance, since that of huge numbers overflows.
    """

    finite: int = 0
    mean: float = 0.0
    std: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    nonfinite: int = 0
    var: float = 0.0
    last: float = np.nan


class Moments:
    """Count, mean, variance, extremes and last number of the finite samples; the others are only counted.

    >>> moments = Moments()
    >>> moments.fold(np.array([0, 0, 2]), np.array([1.0, 3.0, 5.0]))
    >>> moments.mean.tolist(), moments.count.tolist()
    ([2.0, 0.0, 5.0], [2, 0, 1])
    """

    def __init__(self, size: int = 0) -> None:
        self.count: Counts = np.zeros(size, np.int64)
        self.mean: Numbers = np.zeros(size)
        self.var: Numbers = np.zeros(size)
        self.huge_std: Numbers = np.full(size, np.inf)
        """The standard deviation where the variance is infinite."""
        self.low: Numbers = np.full(size, np.inf)
        self.high: Numbers = np.full(size, -np.inf)
        self.nonfinite: Counts = np.zeros(size, np.int64)
        self.last: Numbers = np.full(size, np.nan)

    def __len__(self) -> int:
        return len(self.count)

    def grow(self, size: int) -> None:
        """Make room for this many streams."""
        if size > len(self):
            added = Moments(max(size, 2 * len(self)) - len(self))
            for name, column in vars(self).items():
                setattr(self, name, np.concatenate([column, getattr(added, name)]))

    @property
    def std(self) -> Numbers:
        """The standard deviations, of the population (ddof 0)."""
        return np.where(np.isinf(self.var), self.huge_std, np.sqrt(self.var))

    @np.errstate(all="ignore")
    def fold(self, places: Places, samples: Numbers) -> None:
        """Add samples, each to the stream at its place; those of one stream stand together, in ascending order."""
        if not len(samples):
            return
        self.grow(int(places[-1]) + 1)
        starts = group_starts(places)
        ends = group_ends(starts, len(samples))
        self.last[places[starts]] = samples[ends - 1]
        finite = np.isfinite(samples)
        if not finite.all():
            self.nonfinite += np.bincount(places[~finite], minlength=len(self))
            places, samples = places[finite], samples[finite]
            if not len(samples):
                return
            starts = group_starts(places)
            ends = group_ends(starts, len(samples))
        counts = ends - starts
        mean = np.add.reduceat(samples, starts) / counts
        centered = samples - mean.repeat(counts)
        var = np.add.reduceat(centered * centered, starts) / counts
        std = np.sqrt(var)
        if not np.isfinite(var).all():  # huge numbers
            for group in np.flatnonzero(~np.isfinite(var)):
                own = samples[starts[group] : ends[group]]
                unit = np.abs(own).max()
                mean[group], std[group] = np.mean(own / unit) * unit, np.std(own / unit) * unit
                var[group] = std[group] ** 2
        low, high = np.minimum.reduceat(samples, starts), np.maximum.reduceat(samples, starts)
        self._merge(places[starts], counts, mean, std, low, high, var)

    @np.errstate(all="ignore")
    def merge(self, place: int, row: Row) -> None:
        """Add all samples behind a row to the stream at this place."""
        self.grow(place + 1)
        self.nonfinite[place] += int(row.nonfinite)
        if row.finite:
            self._merge(np.array([place]), *(np.array([each]) for each in (*row[:5], row.var)))
        if row.finite or row.nonfinite:
            self.last[place] = row.last

    def _merge(
        self, places: Places, count: Counts, mean: Numbers, std: Numbers, low: Numbers, high: Numbers, var: Numbers
    ) -> None:
        """Chan's pairwise formula; each place occurs once."""
        if not self.count[places].any():  # nearly always: there is nothing to merge with
            self.count[places], self.mean[places], self.var[places], self.huge_std[places] = count, mean, var, std
            self.low[places], self.high[places] = low, high
            return
        before, spread = self.mean[places], self.std[places]
        total = self.count[places] + count
        share = count / total
        delta = mean - before
        # in this order a zero share multiplies a finite number, never one that overflowed
        merged = self.var[places] * (1 - share) + var * share + (delta * share) * (delta * (1 - share))
        self.huge_std[places] = np.hypot(
            np.hypot(spread * np.sqrt(1 - share), std * np.sqrt(share)), delta * np.sqrt(share) * np.sqrt(1 - share)
        )
        # the two forms are equal; the second survives a difference that overflows
        self.mean[places] = np.where(np.isfinite(delta), before + delta * share, before * (1 - share) + mean * share)
        self.var[places], self.count[places] = merged, total
        self.low[places] = np.minimum(self.low[places], low)
        self.high[places] = np.maximum(self.high[places], high)

    def set(self, place: int, row: Row) -> None:
        """Replace the moments of one stream."""
        self.grow(place + 1)
        self.count[place], self.mean[place], self.huge_std[place], self.low[place], self.high[place] = row[:5]
        self.nonfinite[place], self.var[place], self.last[place] = row[5:]

    def row(self, place: int) -> Row:
        """The moments of one stream, as plain numbers."""
        var = float(self.var[place])
        std = float(self.huge_std[place]) if np.isinf(var) else np.sqrt(var).item()
        mean, low, high, last = (column[place].item() for column in (self.mean, self.low, self.high, self.last))
        return Row(int(self.count[place]), mean, std, low, high, int(self.nonfinite[place]), var, last)


def group_starts(keys: NDArray[Any]) -> Places:
    """Where a sorted array, or a row of a sorted table, differs from the one before.

    >>> group_starts(np.array([3, 3, 5, 7, 7])).tolist()
    [0, 2, 3]
    """
    if not len(keys):
        return np.zeros(0, np.int64)
    differs = keys[1:] != keys[:-1]
    is_start = np.ones(len(keys), bool)
    is_start[1:] = differs if keys.ndim == 1 else differs.any(axis=1)
    found: Places = is_start.nonzero()[0]
    return found


def group_ends(starts: Places, size: int) -> Places:
    """Where groups end that begin at ``starts``, in an array of this size.

    >>> group_ends(np.array([0, 2, 3]), 5).tolist()
    [2, 3, 5]
    """
    ends = np.empty_like(starts)
    ends[:-1], ends[-1:] = starts[1:], size
    return ends
