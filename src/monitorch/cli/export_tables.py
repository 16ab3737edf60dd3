"""Chooses the numbers to export, in pieces."""

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..diagnosis.ranking import RECENT_TICKS, judged, worst_first
from ..store import Axis, Run, Statistic
from .reading import Choice, Numbers, choose, every_tick, outline, pieces

SUMMARIES = ("min", "median", "max", "nonfinite")


class Piece(NamedTuple):
    """Numbers ``[line, tick]`` of a statistic.

    A line is ``(layer, "")``, or ``("", summary)`` for a summary over all layers; ``there`` says what was measured.
    """

    lens: str
    statistic: Statistic
    axis: Axis
    lines: tuple[tuple[str, str], ...]
    values: NDArray[np.float32]
    there: NDArray[np.bool_]


def tables(run: Run, options: argparse.Namespace) -> Iterator[Piece]:
    """Summaries and the worst layers of each statistic, or every layer."""
    everything = options.all or options.lens is not None or options.layers is not None
    for choice in choose(run, options, with_edges=everything, whole_run=True):
        layers = choice.layers
        if not everything and len(layers) > 1:
            yield _summaries(run, choice)
            layers = _worst(run, choice, options.worst)
        for some in pieces(layers):
            yield _series(choice, every_tick(run, choice, some))


def _series(choice: Choice, numbers: Numbers) -> Piece:
    lines = tuple((layer, "") for layer in numbers.layers)
    return Piece(choice.lens.name, choice.statistic, numbers.axis, lines, numbers.values, numbers.measured)


def _summaries(run: Run, choice: Choice) -> Piece:
    """Minimum, median and maximum over all finite layers, and how many samples of all layers are non-finite."""
    numbers = every_tick(run, choice, choice.layers)
    finite = np.isfinite(numbers.values)
    ordered = np.sort(np.where(finite, numbers.values, np.nan), axis=0)  # NaN goes to the end
    count = finite.sum(axis=0)
    columns = np.arange(ordered.shape[1])

    def pick(place: NDArray[Any]) -> NDArray[np.float32]:
        return np.where(count > 0, ordered[np.clip(place, 0, None), columns], np.nan).astype(np.float32)

    median = pick((count - 1) // 2) / 2 + pick(count // 2) / 2
    nonfinite = numbers.nonfinite.sum(axis=0).astype(np.float32)
    values = np.stack([pick(count * 0), median, pick(count - 1), nonfinite])
    there = np.broadcast_to((count > 0) | (nonfinite > 0), values.shape)
    lines = tuple(("", summary) for summary in SUMMARIES)
    return Piece(choice.lens.name, choice.statistic, numbers.axis, lines, values, there)


def _worst(run: Run, choice: Choice, number: int) -> tuple[str, ...]:
    """The worst layers of the whole run, in the order of the model."""
    numbers = outline(run, choice, RECENT_TICKS)
    order = worst_first(judged(choice.statistic, numbers.values, numbers.nonfinite))
    return tuple(choice.layers[place] for place in sorted(order[:number]))
