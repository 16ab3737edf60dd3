"""From accumulators to what a visualizer gets: one view is one tag."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ..numerical import Accumulator, extract_point, extract_range, parse_range_name
from ..numerical.extraction import count_nonfinite
from ..preprocessor.accumulating import AccumulatingPreprocessor
from ..preprocessor.geometry import GeometryPreprocessor
from ..preprocessor.rates import RateStatistics
from ..visualizer.abstract_visualizer import AbstractVisualizer, TagAttributes, TagType
from ..visualizer.record_sink import flatten

Lines = dict[str, float]
Bands = dict[tuple[str, str], tuple[float, float]]


@dataclass
class Frame:
    """The numbers of one tag at one tick, by layer; a big tag has only itself as a layer."""

    tag: str
    type: TagType
    values: OrderedDict[str, Lines] = field(default_factory=OrderedDict)
    ranges: OrderedDict[str, Bands] | None = None
    nonfinite: dict[str, int] = field(default_factory=dict)
    nonfinite_lines: dict[str, int] = field(default_factory=dict)
    """The counts of single lines, if a tag has several curves."""

    def show(self, visualizer: AbstractVisualizer, epoch: int) -> None:
        """Pass on the numbers by the method for their type, after the counts of non-finite samples."""
        counts = {layer: count for layer, count in self.nonfinite.items() if count}
        if counts and hasattr(visualizer, "count_nonfinite"):
            visualizer.count_nonfinite(epoch, self.tag, counts)
        if self.type is TagType.NUMERICAL:
            visualizer.plot_numerical_values(epoch, self.tag, self.values, self.ranges)
        elif self.type is TagType.PROBABILITY:
            visualizer.plot_probabilities(epoch, self.tag, self.values)
        else:
            visualizer.plot_relations(epoch, self.tag, self.values)

    def numbers(self) -> Iterator[tuple[str, str, float, int]]:
        """``(layer, statistic, value, non-finite samples behind it)`` for every line and band edge."""
        for layer, statistic, value in flatten(self.values, self.ranges):
            yield layer, statistic, value, self.nonfinite_lines.get(statistic, self.nonfinite.get(layer, 0))


@dataclass(frozen=True)
class Source:
    """One statistic of one preprocessor."""

    preprocessor: AccumulatingPreprocessor
    statistic: str

    def read(self, layers: Iterable[str]) -> OrderedDict[str, Accumulator]:
        """Accumulators of the layers that have samples, in the order of ``layers``."""
        series = self.preprocessor.series(self.statistic)
        return OrderedDict((layer, series[layer]) for layer in layers if layer in series and has_samples(series[layer]))


class View(ABC):
    """One tag: how it looks, and how its numbers are read."""

    type = TagType.NUMERICAL
    big = False

    def __init__(
        self, tag: str, *, logy: bool = False, annotate: bool = True, ylim: tuple[float, float] | None = None
    ) -> None:
        self.tag = tag
        self.attributes = TagAttributes(logy, self.big, annotate, self.type, ylim)

    @abstractmethod
    def read(self, layers: Sequence[str]) -> Frame:
        """The numbers since the last tick."""


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
    ) -> None:
        super().__init__(tag, logy=logy, annotate=annotate, ylim=ylim)
        self.source, self.lines, self.ranges = source, lines, ranges

    def read(self, layers: Sequence[str]) -> Frame:
        """Aggregate each layer's samples."""
        frame = Frame(self.tag, self.type, ranges=None if self.ranges is None else OrderedDict())
        for layer, acc in self.source.read(layers).items():
            frame.values[layer] = {method: extract_point(acc, method) for method in self.lines}
            frame.nonfinite[layer] = count_nonfinite(acc)
            if frame.ranges is not None:
                frame.ranges[layer] = {
                    parse_range_name(method): extract_range(acc, method) for method in self.ranges or ()
                }
        return frame


class LayerRates(View):
    """Activation and death rate for each layer."""

    type = TagType.PROBABILITY

    def __init__(self, tag: str, rates: RateStatistics, activation_method: str, death_method: str) -> None:
        super().__init__(tag)
        self.rates, self.methods = rates, {"activation": activation_method, "death": death_method}

    def read(self, layers: Sequence[str]) -> Frame:
        """Aggregate each layer's rates."""
        frame = Frame(self.tag, self.type)
        for statistic, method in self.methods.items():
            for layer, acc in Source(self.rates, statistic).read(layers).items():
                frame.values.setdefault(layer, {})[self.rates.label(layer, statistic)] = extract_point(acc, method)
                frame.nonfinite[layer] = count_nonfinite(acc)
        return frame


class WorstRates(View):
    """The lowest activation and highest death rate of all layers."""

    type = TagType.PROBABILITY
    big = True

    def __init__(self, tag: str, views: Sequence[LayerRates]) -> None:
        super().__init__(tag)
        self.views = views

    def read(self, layers: Sequence[str]) -> Frame:
        """Look for the worst layer."""
        frame = Frame(self.tag, self.type)
        rates = [lines for view in self.views for lines in view.read(layers).values.values()]
        if rates:
            frame.values[self.tag] = {
                "worst activation_rate": _extreme(min, rates, "activation_rate"),
                "worst death_rate": _extreme(max, rates, "death_rate"),
            }
        return frame


class Shares(View):
    """The share of each layer in the sum over all layers."""

    type = TagType.RELATIONS
    big = True

    def __init__(self, tag: str, source: Source, method: str) -> None:
        super().__init__(tag, annotate=False)
        self.source, self.method = source, method

    def read(self, layers: Sequence[str]) -> Frame:
        """Divide by the sum of the finite values."""
        frame = Frame(self.tag, self.type)
        values = {layer: extract_point(acc, self.method) for layer, acc in self.source.read(layers).items()}
        total = math.fsum(value for value in values.values() if math.isfinite(value))
        if values:
            frame.values[self.tag] = {
                layer: value / (total or 1.0) if math.isfinite(value) else math.nan for layer, value in values.items()
            }
        return frame


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
        self.named, self.lines, self.ranges = named, lines, ranges

    def read(self, layers: Sequence[str], step: int | None = None) -> Frame:
        """Aggregate each name's samples; a name without any is left out."""
        frame = Frame(self.tag, self.type, ranges=OrderedDict())
        values: Lines = {}
        bands: Bands = {}
        for name, acc in self.named(step).items():
            count = count_nonfinite(acc)
            frame.nonfinite[self.tag] = frame.nonfinite.get(self.tag, 0) + count
            if not has_samples(acc):
                continue
            lines = {f"{name} {method}": extract_point(acc, method) for method in self.lines}
            edges = {_edges(name, method): extract_range(acc, method) for method in self.ranges}
            values.update(lines)
            bands.update(edges)
            frame.nonfinite_lines.update(dict.fromkeys([*lines, *chain(*edges)], count))
        if values:
            frame.values[self.tag] = values
            frame.ranges = OrderedDict({self.tag: bands})
        return frame


def _edges(name: str, method: str) -> tuple[str, str]:
    low, high = parse_range_name(method)
    return f"{name} {low}", f"{name} {high}"


def has_samples(acc: Accumulator) -> bool:
    """Whether there are samples, finite or not."""
    return len(acc) > 0 or count_nonfinite(acc) > 0


def _extreme(choose: Callable[[list[float]], float], layers: Iterable[Lines], rate: str) -> float:
    known = [lines[rate] for lines in layers if math.isfinite(lines.get(rate, math.nan))]
    return choose(known) if known else math.nan


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
        views.append(LayerLines(f"{what} Correlation", source, lines, ranges, ylim=correlation_ylim))
    return views
