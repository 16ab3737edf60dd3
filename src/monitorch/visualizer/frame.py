"""The numbers of one tag at one tick, as columns; records and dictionaries are made only for those that want them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..statistic import SHARE, Statistic
from .abstract_visualizer import AbstractVisualizer, TagAttributes, TagType
from .record import Record

Numbers: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Lines: TypeAlias = OrderedDict[str, dict[str, float]]
Bands: TypeAlias = OrderedDict[str, dict[tuple[str, str], tuple[float, float]]]


class Moment(NamedTuple):
    """When numbers were measured, and by what."""

    step: int
    epoch: int
    time: float
    rank: int
    lens: str


class Bins(NamedTuple):
    """How many elements of each layer are in each bin: ``counts[layer, bin]``, and the ``edges`` of the bins."""

    edges: Numbers
    counts: Counts


@dataclass(eq=False)
class TagFrame:
    """The numbers of one tag at one tick: ``values[statistic, layer]``.

    Args:
        tag: the plot.
        type: what kind of numbers they are.
        layers: the layers that have numbers, in the order of the model; a big tag has only itself as a layer.
        statistics: lines first, then the edges of bands in pairs.
        values: the numbers; NaN if all samples were non-finite.
        nonfinite: how many samples of each were NaN or infinite and left out; None for none.
        measured: where there is a number; None for everywhere.
        banded: whether the tag can have bands.
        bins: the histograms that the numbers are taken from, if they are.
        may_be_infinite: infinity is an answer, not a sample that went wrong.
    """

    tag: str
    type: TagType
    layers: tuple[str, ...]
    statistics: tuple[Statistic, ...]
    values: Numbers
    nonfinite: Counts | None = None
    measured: Mask | None = None
    banded: bool = False
    bins: Bins | None = None
    may_be_infinite: bool = False

    @classmethod
    def empty(cls, tag: str, kind: TagType, *, banded: bool = False) -> TagFrame:
        """A tick without numbers."""
        return cls(tag, kind, (), (), np.empty((0, 0)), banded=banded)

    @property
    def is_share(self) -> bool:
        """Whether the numbers are shares of a whole, of which each layer has one."""
        return self.type is TagType.RELATIONS

    @property
    def is_total(self) -> bool:
        """Whether the numbers are those of the whole run."""
        return self.layers == (self.tag,) and not self.is_share

    def is_measured(self) -> Mask:
        """Where there is a number."""
        return np.ones(self.values.shape, np.bool_) if self.measured is None else self.measured

    def counts(self) -> Counts:
        """How many samples of each number were NaN or infinite."""
        return np.zeros(self.values.shape, np.int64) if self.nonfinite is None else self.nonfinite

    def number(self, statistic: str) -> float:
        """The number of the first layer; NaN if there is none."""
        names = [known.text for known in self.statistics]
        return float(self.values[names.index(statistic), 0]) if statistic in names else float("nan")

    def numbers(self) -> Iterator[tuple[str, Statistic, float, int]]:
        """``(layer, statistic, value, non-finite samples behind it)`` for every line and band edge, layer by layer."""
        columns = zip(self.layers, self.values.T.tolist(), self.counts().T.tolist(), strict=True)
        measured = self.is_measured().T
        for (layer, values, counts), there in zip(columns, measured, strict=True):
            for statistic, value, count, is_there in zip(self.statistics, values, counts, there, strict=True):
                if is_there:
                    yield layer, statistic, value, count

    def records(self, moment: Moment) -> list[Record]:
        """One record for each number."""
        found = []
        for layer, known, value, count in self.numbers():
            place, name = (self.tag, layer) if self.is_share else (layer, known.text)
            what: Any = known.role, known.curve, known.band, known.side, known.limits, known.error
            found.append(Record(*moment, place, self.tag, name, value, count, *what))
        return found

    def lines(self) -> Lines:
        """The numbers of lines, as the plot methods of a visualizer take them."""
        found: Lines = OrderedDict()
        if self.is_share:
            if self.layers:
                found[self.tag] = dict(zip(self.layers, self.values[0].tolist(), strict=True))
            return found
        for layer, statistic, value, _ in self.numbers():
            lines = found.setdefault(layer, {})
            if statistic.role != "edge":
                lines[statistic.text] = value
        return found

    def bands(self) -> Bands | None:
        """The edges of bands, as the plot methods of a visualizer take them; None if the tag has none."""
        if not self.banded:
            return None
        first = next((place for place, known in enumerate(self.statistics) if known.role == "edge"), None)
        if first is None:
            return OrderedDict((layer, {}) for layer in self.layers)
        names = [known.text for known in self.statistics[first:]]
        pairs = list(zip(names[::2], names[1::2], strict=True))
        edges = self.values[first:].T.tolist()
        return OrderedDict(
            (layer, dict(zip(pairs, zip(own[::2], own[1::2], strict=True), strict=True)))
            for layer, own in zip(self.layers, edges, strict=True)
        )

    def nonfinite_by_layer(self) -> dict[str, int]:
        """How many samples of each layer were left out; layers without any are omitted."""
        if self.nonfinite is None or not self.nonfinite.any():
            return {}
        total = np.zeros(len(self.layers), np.int64)
        curves = [known.curve for known in self.statistics]
        for curve in dict.fromkeys(curves):  # the lines of a curve have the same samples
            total += self.nonfinite[[place for place, own in enumerate(curves) if own == curve]].max(axis=0)
        return {layer: count for layer, count in zip(self.layers, total.tolist(), strict=True) if count}

    def show(self, visualizer: AbstractVisualizer, epoch: int) -> None:
        """Pass on the numbers by the method for their type, after the counts of non-finite samples."""
        counts = self.nonfinite_by_layer()
        if counts and hasattr(visualizer, "count_nonfinite"):
            visualizer.count_nonfinite(epoch, self.tag, counts)
        if self.type is TagType.NUMERICAL:
            visualizer.plot_numerical_values(epoch, self.tag, self.lines(), self.bands())
        elif self.type is TagType.PROBABILITY:
            visualizer.plot_probabilities(epoch, self.tag, self.lines())
        else:
            visualizer.plot_relations(epoch, self.tag, self.lines())


def frames_of(records: Iterable[Record], tags: Mapping[str, TagAttributes]) -> Iterator[tuple[Moment, TagFrame]]:
    """Records as frames, one per tag and moment; layers and whole-model numbers are kept apart."""
    for moment, own in groupby(records, key=lambda record: Moment(*record[:5])):
        plots: dict[tuple[str, bool], list[Record]] = {}
        for record in own:
            plots.setdefault((record.tag, record.layer == record.tag), []).append(record)
        for (tag, _), plot in plots.items():
            yield moment, _frame_of(tag, tags.get(tag), plot)


def _frame_of(tag: str, attributes: TagAttributes | None, records: Sequence[Record]) -> TagFrame:
    kind = attributes.type if attributes else TagType.NUMERICAL
    if records[0].role == "share":
        kind = TagType.RELATIONS
    statistics: dict[Statistic, int] = {}
    layers: dict[str, int] = {}
    cells: dict[tuple[int, int], tuple[float, int]] = {}
    for record in records:
        known = _statistic_of(record, attributes, is_share=kind is TagType.RELATIONS)
        layer = record.statistic if kind is TagType.RELATIONS else record.layer
        place = statistics.setdefault(known, len(statistics)), layers.setdefault(layer, len(layers))
        cells[place] = record.value + 0.0, record.nonfinite  # the sum fails for anything but numbers
    shape = len(statistics), len(layers)
    values, counts, measured = np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for place, (value, count) in cells.items():
        values[place], counts[place], measured[place] = value, count, True
    return TagFrame(tag, kind, tuple(layers), tuple(statistics), values, counts, measured)


def _statistic_of(record: Record, attributes: TagAttributes | None, *, is_share: bool) -> Statistic:
    limits = record.limits or (attributes.limits if attributes else None)
    look: dict[str, Any] = {"scale": attributes.scale if attributes else "linear", "limits": limits}
    if is_share:
        return Statistic.of(record.tag, SHARE, role="share", **look)
    what: dict[str, Any] = {"role": record.role, "band": record.band, "side": record.side, "error": record.error}
    return Statistic.of(record.tag, record.line, record.curve, **what, **look)
