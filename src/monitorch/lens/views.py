"""From accumulators to what a visualizer gets: one view is one tag."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..numerical import Accumulator
from ..numerical.extraction import Series, count_nonfinites, extract_points, extract_ranges, have_samples
from ..preprocessor.accumulating import AccumulatingPreprocessor
from ..preprocessor.geometry import GeometryPreprocessor
from ..preprocessor.rates import RateStatistics
from ..statistic import SHARE, Statistic, band_of, edges
from ..visualizer.abstract_visualizer import TagAttributes, TagType
from ..visualizer.frame import Bins, Counts, Numbers, TagFrame

__all__ = [
    "ComputedLines",
    "LayerLines",
    "LayerRates",
    "NamedLines",
    "Shares",
    "Source",
    "TagFrame",
    "View",
    "WorstRates",
    "geometry_views",
]


class Reading(NamedTuple):
    """The accumulators of some layers; all numbers come in the order of the layers."""

    layers: tuple[str, ...]
    series: Series
    places: NDArray[np.intp]
    """Where the layers are in the series."""

    def points(self, method: str) -> Numbers:
        """One number for each layer."""
        return extract_points(self.series, method)[self.places]

    def edges(self, band: str) -> Iterator[Numbers]:
        """The lower and the upper edge of a band."""
        return (numbers[self.places] for numbers in extract_ranges(self.series, band))

    def nonfinite(self) -> Counts:
        """How many samples of each layer were NaN or infinite."""
        return count_nonfinites(self.series)[self.places]


class Source:
    """One statistic of one preprocessor."""

    def __init__(self, preprocessor: AccumulatingPreprocessor, statistic: str) -> None:
        self.preprocessor, self.statistic = preprocessor, statistic
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._found: tuple[tuple[str, ...], NDArray[np.intp]] = ((), np.empty(0, np.intp))

    @property
    def error(self) -> float | None:
        """The standard error of the statistic, if it is an estimate."""
        return self.preprocessor.error(self.statistic)

    def read(self, layers: Sequence[str]) -> Reading:
        """The layers that have samples, in the order of ``layers``."""
        series: Series = self.preprocessor.series(self.statistic)
        layers, places = self._find(tuple(series), tuple(layers))
        if not layers:
            return Reading(layers, series, places)
        there = have_samples(series)[places]
        if not there.all():
            layers, places = tuple(compress(layers, there)), places[there]
        return Reading(layers, series, places)

    def _find(self, known: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
        """The wanted names that are known, and their places; looked for again only when names have changed."""
        if (known, wanted) != self._names:
            places = {name: place for place, name in enumerate(known)}
            found = tuple(name for name in wanted if name in places)
            self._names = known, wanted
            self._found = found, np.array([places[name] for name in found], np.intp)
        return self._found


class View(ABC):
    """One tag: how it looks, and how its numbers are read.

    ``ylim`` are the ends of its axis, ``limits`` those of what is possible, if the axis does not say so.
    """

    type = TagType.NUMERICAL
    big = False

    def __init__(
        self,
        tag: str,
        *,
        logy: bool = False,
        annotate: bool = True,
        ylim: tuple[float, float] | None = None,
        limits: tuple[float, float] | None = None,
    ) -> None:
        self.tag = tag
        self.attributes = TagAttributes(logy, self.big, annotate, self.type, ylim)
        self.limits = limits or self.attributes.limits

    @abstractmethod
    def read(self, layers: Sequence[str]) -> TagFrame:
        """The numbers since the last tick."""

    def _statistic(self, line: str, curve: str = "", **what: Any) -> Statistic:
        look: dict[str, Any] = {"scale": self.attributes.scale, "limits": self.limits}
        return Statistic.of(self.tag, line, curve, **look, **what)

    def _lines(self, methods: Sequence[str], curve: str = "", **what: Any) -> list[Statistic]:
        return [self._statistic(method, curve, **what) for method in methods]

    def _edges(self, bands: Sequence[str], curve: str = "", **what: Any) -> list[Statistic]:
        return [
            self._statistic(name, curve, role="edge", band=band, side=side, **what)
            for band in bands
            for name, side in edges(band)
        ]


class LayerLines(View):
    """Lines and bands for each layer; ``ranges=None`` is a view without bands."""

    def __init__(
        self,
        tag: str,
        source: Source,
        lines: Sequence[str],
        ranges: Sequence[str] | None,
        *,
        logy: bool = False,
        annotate: bool = True,
        ylim: tuple[float, float] | None = None,
        limits: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(tag, logy=logy, annotate=annotate, ylim=ylim, limits=limits)
        self.source, self.lines = source, tuple(dict.fromkeys(lines))
        self.ranges = None if ranges is None else tuple(dict.fromkeys(ranges))
        self._statistics: dict[float | None, tuple[Statistic, ...]] = {}

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """What is read of each layer; they say so if they are estimates, which is known once there are numbers."""
        error = self.source.error
        if error not in self._statistics:
            bands = self._edges(self.ranges or (), error=error)
            self._statistics[error] = *self._lines(self.lines, error=error), *bands
        return self._statistics[error]

    def read(self, layers: Sequence[str]) -> TagFrame:
        """Aggregate each layer's samples."""
        banded = self.ranges is not None
        found = self.source.read(layers)
        if not found.layers:
            return TagFrame.empty(self.tag, self.type, banded=banded)
        rows = [found.points(method) for method in self.lines]
        for band in self.ranges or ():
            rows += found.edges(band)
        counts = np.broadcast_to(found.nonfinite(), (len(rows), len(found.layers)))
        return TagFrame(self.tag, self.type, found.layers, self.statistics, np.stack(rows), counts, banded=banded)


class ComputedLines(View):
    """Lines and bands of numbers that are not aggregated from samples.

    Args:
        compute: returns the numbers by layer, then by line.
        of_run: the numbers belong to no layer; they are listed under the name of the view.
        bands: pairs of lines that every layer has, and that are the edges of a band; None is a view without bands.
        bins: edges of bins, and what returns how many elements are between them, for each layer that has lines; None is
            a view without histograms.
        may_be_infinite: infinity is an answer, not a sample that went wrong.
    """

    def __init__(
        self,
        tag: str,
        compute: Callable[[], Mapping[str, Mapping[str, float]]],
        *,
        of_run: bool = False,
        bands: Sequence[tuple[str, str]] | None = None,
        bins: tuple[Numbers, Callable[[], Mapping[str, Counts]]] | None = None,
        may_be_infinite: bool = False,
        **look: Any,
    ) -> None:
        super().__init__(tag, **look)
        self.compute, self.of_run, self.bands, self.bins = compute, of_run, bands, bins
        self.may_be_infinite = may_be_infinite

    def read(self, layers: Sequence[str]) -> TagFrame:
        """Compute the numbers."""
        found, banded = self.compute(), self.bands is not None
        shown = tuple(layer for layer in ((self.tag,) if self.of_run else layers) if layer in found)
        edge_of = {edge.line: edge for edge in self._named_edges()}
        names = dict.fromkeys(line for layer in shown for line in found[layer])
        lines = [line for line in names if line not in edge_of]
        if not names:
            return TagFrame.empty(self.tag, self.type, banded=banded)
        order = [*lines, *edge_of]
        values = np.array([[found[layer].get(line, math.nan) for layer in shown] for line in order])
        measured = np.array([[line in found[layer] for layer in shown] for line in order])
        statistics = (*self._lines(lines), *edge_of.values())
        frame = TagFrame(self.tag, self.type, shown, statistics, values, measured=measured, banded=banded)
        frame.may_be_infinite = self.may_be_infinite
        if self.bins is not None:
            edges, count = self.bins
            counts = count()
            frame.bins = Bins(edges, np.stack([counts[layer] for layer in shown]))
        return frame

    def _named_edges(self) -> list[Statistic]:
        """The edges of all bands, in pairs."""
        return [
            self._statistic(name, role="edge", band=band_of(low, high), side=side)
            for low, high in self.bands or ()
            for name, side in ((low, "low"), (high, "high"))
        ]


class LayerRates(View):
    """Activation and death rate for each layer."""

    type = TagType.PROBABILITY

    def __init__(self, tag: str, rates: RateStatistics, activation_method: str, death_method: str) -> None:
        super().__init__(tag)
        self.rates, self.methods = rates, {"activation": activation_method, "death": death_method}
        self._sources = [(Source(rates, statistic), method) for statistic, method in self.methods.items()]
        self._labels: tuple[Any, list[tuple[str, ...]]] = (None, [])

    def read(self, layers: Sequence[str]) -> TagFrame:
        """Aggregate each layer's rates."""
        readings = [source.read(layers) for source, _ in self._sources]
        if not any(found.layers for found in readings):
            return TagFrame.empty(self.tag, self.type)
        shown = max((found.layers for found in readings), key=len)
        if any(found.layers != shown for found in readings):  # somebody has taken the samples of one rate
            known = {layer for found in readings for layer in found.layers}
            shown = tuple(layer for layer in layers if layer in known)
        rows: dict[str, tuple[Numbers, Counts, NDArray[np.bool_]]] = {}
        for (_, method), found, labels in zip(self._sources, readings, self._labels_of(shown), strict=True):
            columns = slice(None) if found.layers == shown else np.flatnonzero(np.isin(shown, found.layers))
            values, counts = np.full(len(shown), np.nan), np.zeros(len(shown), np.int64)
            there = np.zeros(len(shown), np.bool_)
            values[columns], counts[columns], there[columns] = found.points(method), found.nonfinite(), True
            names = dict.fromkeys(labels)
            for name in names:  # nearly always one; a lookup table has its own
                own = there if len(names) == 1 else there & (np.array(labels) == name)
                rows[name] = values, counts, own
        values, counts, measured = map(np.stack, zip(*rows.values(), strict=True))
        statistics = tuple(self._lines(tuple(rows)))
        return TagFrame(self.tag, self.type, shown, statistics, values, counts, None if measured.all() else measured)

    def _labels_of(self, layers: tuple[str, ...]) -> list[tuple[str, ...]]:
        """What the rates of each layer are called; asked again only when layers, or what they are, have changed."""
        key = layers, frozenset(getattr(self.rates, "lookups", ()))
        if self._labels[0] != key:
            labels = [tuple(self.rates.label(layer, statistic) for layer in layers) for statistic in self.methods]
            self._labels = key, labels
        return self._labels[1]


class WorstRates(View):
    """The lowest activation and highest death rate of all layers."""

    type = TagType.PROBABILITY
    big = True
    _WORST: Mapping[str, Callable[[Numbers], Any]] = {"activation_rate": np.min, "death_rate": np.max}

    def __init__(self, tag: str, views: Sequence[LayerRates]) -> None:
        super().__init__(tag)
        self.views = views

    def read(self, layers: Sequence[str]) -> TagFrame:
        """Look for the worst layer."""
        frames = [frame for frame in (view.read(layers) for view in self.views) if frame.layers]
        if not frames:
            return TagFrame.empty(self.tag, self.type)
        values, measured = [], []
        for rate, worst in self._WORST.items():
            numbers = np.concatenate([_numbers(frame, rate) for frame in frames])
            known = numbers[np.isfinite(numbers)]
            values.append([float(worst(known)) if len(known) else math.nan])
            measured.append([len(numbers) > 0])  # embeddings have no death rate
        statistics = tuple(self._lines([f"worst {rate}" for rate in self._WORST]))
        return TagFrame(self.tag, self.type, (self.tag,), statistics, np.array(values), measured=np.array(measured))


def _numbers(frame: TagFrame, line: str) -> Numbers:
    """The numbers of a line, as far as they were measured."""
    row = next((place for place, known in enumerate(frame.statistics) if known.line == line), None)
    numbers: Numbers = np.empty(0) if row is None else frame.values[row, frame.is_measured()[row]]
    return numbers


class Shares(View):
    """The share of each layer in the sum over all layers."""

    type = TagType.RELATIONS
    big = True

    def __init__(self, tag: str, source: Source, method: str) -> None:
        super().__init__(tag, annotate=False)
        self.source, self.method = source, method

    def read(self, layers: Sequence[str]) -> TagFrame:
        """Divide by the sum of the finite values."""
        found = self.source.read(layers)
        if not found.layers:
            return TagFrame.empty(self.tag, self.type)
        values = found.points(self.method)
        known = np.isfinite(values)
        _, exponent = np.frexp(np.max(np.abs(values), where=known, initial=0.0))
        scaled = np.ldexp(np.where(known, values, np.nan), -exponent)  # the sum of huge numbers would overflow
        total = math.fsum(scaled[known].tolist())
        statistics = (self._statistic(SHARE, role="share"),)
        return TagFrame(self.tag, self.type, found.layers, statistics, scaled[None] / (total or 1.0))


class NamedLines(View):
    """Lines and bands of numbers that belong to no layer, such as losses and metrics.

    Args:
        named: returns the accumulators by name, of an earlier step or, with None, of the tick itself.
        apart: draw each name in its own plot, since the names have nothing in common.
    """

    big = True

    def __init__(
        self,
        tag: str,
        named: Callable[[int | None], Mapping[str, Accumulator]],
        lines: Sequence[str],
        ranges: Sequence[str],
        *,
        apart: bool = False,
    ) -> None:
        super().__init__(tag)
        self.attributes.apart = apart
        self.named, self.lines, self.ranges = named, tuple(dict.fromkeys(lines)), tuple(dict.fromkeys(ranges))
        self._statistics: tuple[tuple[str, ...], tuple[Statistic, ...]] = ((), ())

    def read(self, layers: Sequence[str], step: int | None = None) -> TagFrame:
        """Aggregate each name's samples; a name without any is left out."""
        named = self.named(step)
        series = dict(compress(named.items(), have_samples(named)))
        if not series:
            return TagFrame.empty(self.tag, self.type, banded=True)
        ends = [edge for band in self.ranges for edge in extract_ranges(series, band)]
        points = [extract_points(series, method) for method in self.lines]
        values = np.concatenate([np.stack(rows).T.reshape(-1) for rows in (points, ends) if rows])
        counts = count_nonfinites(series)
        counts = np.concatenate([np.repeat(counts, len(rows)) for rows in (points, ends)])
        statistics = self._statistics_of(tuple(series))
        return TagFrame(self.tag, self.type, (self.tag,), statistics, values[:, None], counts[:, None], banded=True)

    def _statistics_of(self, names: tuple[str, ...]) -> tuple[Statistic, ...]:
        """The lines of all names, then their edges."""
        if self._statistics[0] != names:
            lines = [line for name in names for line in self._lines(self.lines, name)]
            self._statistics = names, (*lines, *(edge for name in names for edge in self._edges(self.ranges, name)))
        return self._statistics[1]


def geometry_views(
    what: str,
    geometry: GeometryPreprocessor,
    lines: Sequence[str],
    ranges: Sequence[str],
    logy: bool,
    correlation_ylim: tuple[float, float] | None = None,
) -> list[LayerLines]:
    """Views of norms and, if they are computed, correlations."""
    views = [LayerLines(f"{what} Norm", Source(geometry, "norm"), lines, ranges, logy=logy)]
    if geometry.correlation:
        source = Source(geometry, "correlation")
        look: dict[str, Any] = {"ylim": correlation_ylim, "limits": (-1.0, 1.0)}
        views.append(LayerLines(f"{what} Correlation", source, lines, ranges, **look))
    return views
