"""Which ticks of two runs are compared with each other."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reading import Numbers

Places = tuple[NDArray[np.intp], NDArray[np.intp]]


def paired_ticks(a: Numbers, b: Numbers) -> Places:
    """The columns of both runs that are compared with each other: ticks at the same steps.

    If these are less than half of the ticks of the run that has fewer, each tick with the nearest one of the other run.
    Columns that average several steps are left out.
    """
    alone = [np.flatnonzero(numbers.axis.step == numbers.last_step) for numbers in (a, b)]
    steps = a.axis.step[alone[0]], b.axis.step[alone[1]]
    here, there = same_steps(*steps)
    if 2 * len(here) < min(map(len, steps)):
        here, there = nearest_steps(*steps)
    return alone[0][here], alone[1][there]


def same_steps(a: NDArray[np.int64], b: NDArray[np.int64]) -> Places:
    """The places of equal steps; several equal ones in a run are paired in order.

    >>> [places.tolist() for places in same_steps(np.array([1, 2, 2, 5]), np.array([2, 2, 4, 5]))]
    [[1, 2, 3], [0, 1, 3]]
    """
    _, here, there = np.intersect1d(_numbered(a), _numbered(b), assume_unique=True, return_indices=True)
    return here, there


def nearest_steps(a: NDArray[np.int64], b: NDArray[np.int64]) -> Places:
    """The places of steps that are the nearest to each other, and no farther than the next step of their own run.

    >>> [places.tolist() for places in nearest_steps(np.array([5, 15, 25, 90]), np.array([10, 20, 30, 40]))]
    [[0, 1, 2], [0, 1, 2]]
    """
    ours, theirs = a + 0.25, b.astype(float)  # so that none is as near to the one before it as to the one after it
    to, back = _nearest(ours, theirs), _nearest(theirs, ours)
    room = np.minimum(_to_neighbour(a), _to_neighbour(b)[to])
    close = (back[to] == np.arange(len(a))) & (np.abs(a - b[to]) <= room) & np.isfinite(room)
    return np.flatnonzero(close), to[close]


def _numbered(steps: NDArray[np.int64]) -> NDArray[np.complex128]:
    """Each step as the real part, and its number among equal ones as the imaginary part: pairs that can be sorted."""
    numbered: NDArray[np.complex128] = steps + 1j * (np.arange(len(steps)) - np.searchsorted(steps, steps))
    return numbered


def _nearest(steps: NDArray[Any], others: NDArray[Any]) -> NDArray[np.intp]:
    """The place of the nearest of the others."""
    after = np.searchsorted(others, steps).clip(max=len(others) - 1)
    before = (after - 1).clip(min=0)
    return np.where(np.abs(others[before] - steps) < np.abs(others[after] - steps), before, after)


def _to_neighbour(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far the next step of the same run is, before or after; infinite if there is no other."""
    gaps = np.diff(steps.astype(float), prepend=-np.inf, append=np.inf)
    return np.minimum(gaps[:-1], gaps[1:])
