"""A few numbers that summarise a model, however many layers it has."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...diagnosis.finding import Finding
from ...diagnosis.ranking import FACT, RECENT_TICKS, LayerHealth, Severity, judged, open_problems
from ...statistic import Statistic
from ...store import Layer
from ...store.types import SEVERITIES
from ..frame import Counts, Numbers, TagFrame
from ..scalar_name import scalar_name, scalar_part
from .tracker import Histogram

MOST = 50
"""The approximate number of series; numbers of the whole run are always included."""

WORST, MOST_WORST = 3, 9
"""How many of the worst layers are shown at a time, and how many over the whole run."""

RANK_EVERY = 10
"""Layers are ranked every this many ticks, and when there are other findings."""

FIRST = (
    "Parameter Update Ratio",
    "Parameter Gradient Norm",
    "Output Norm",
    "Output Gradient Norm",
    "Activation Dead Units",
    "Activation Saturation",
    "Activation Zeros",
    "Parameter Norm",
    "Attention Entropy",
    "Attention Largest Logit",
    "Routing Entropy",
    "Output Activations",
    "Parameter Gradient Correlation",
)
"""The most telling tags; others follow while there is room."""

FACTS = {"Gradient Was Empty", "Parameter Changed"}
"""Tags whose numbers are facts, not sizes."""

COUNTS = "Non-Finite "
"""Prefix of tags that count elements; the sum over all layers is shown for them."""

SUMMARY = ("min", "median", "max")

Signal: TypeAlias = tuple[str, Statistic]
Scalars: TypeAlias = dict[str, float]


class Digest:
    """Turns the numbers of all layers at a tick into those for a tracker.

    These are all numbers of the whole run; counts of what is not finite; how many findings are open; for the tags that
    tell most, the smallest, the median and the largest number of all blocks, where the number of a block is the median
    of its layers; and for the worst layers the number in which each is worst. A layer that was shown once stays.

    Args:
        include: a pattern for numbers to also show one by one; None for none.
    """

    def __init__(self, include: re.Pattern[str] | None = None) -> None:
        self._include = include
        self._layers: tuple[Layer, ...] = ()
        self._findings: tuple[Finding, ...] = ()
        self._totals: set[str] = set()
        self._signals: dict[Signal, SignalHistory] = {}
        self._worst: dict[str, Signal] = {}
        self._ticks, self._has_news = 0, False
        self._named: dict[str, NamedFrame] = {}

    def describe_layers(self, layers: Iterable[Layer]) -> None:
        """Take the layers of the model."""
        self._layers = tuple(layers)

    def take_findings(self, findings: Iterable[Finding]) -> None:
        """Take what is wrong now."""
        before, self._findings = self._findings, tuple(findings)
        self._has_news |= before != self._findings

    def of_findings(self) -> Scalars:
        """How many findings are open."""
        lasting = [one.severity for one in self._findings if one.is_open]
        return {f"findings/{severity}s": float(lasting.count(severity)) for severity in SEVERITIES[1:]}

    def of(self, frames: Sequence[TagFrame]) -> Scalars:
        """The numbers of a tick."""
        frames = [frame for frame in frames if frame.layers]
        found = {name: value for frame in frames if frame.is_total for name, value in totals(frame).items()}
        of_layers = [frame for frame in frames if not frame.is_total and not frame.is_share]
        found |= self._counts(frames) | self.of_findings()
        self._totals |= found.keys()
        self._choose(of_layers)
        for frame in of_layers:
            for place, statistic in enumerate(frame.statistics):
                history = self._signals.get((frame.tag, statistic))
                if history is not None:
                    found |= history.add(frame, place)
        found |= self._of_worst()
        if self._include is not None:
            for frame in frames:
                found |= self._single(frame, self._include)
        return found

    def _counts(self, frames: Sequence[TagFrame]) -> Scalars:
        samples = sum(sum(frame.nonfinite_by_layer().values()) for frame in frames)
        found = {"non-finite/samples": float(samples)}
        for frame in frames:
            if frame.tag.startswith(COUNTS):
                there = frame.values[frame.is_measured() & ~np.isnan(frame.values)]
                found[scalar_name("non-finite", frame.tag.removeprefix(COUNTS), "")] = float(there.sum())
        return found

    def _choose(self, frames: Iterable[TagFrame]) -> None:
        """Take up further signals while there is room; those that tell most first."""
        new = [
            (frame, statistic)
            for frame in frames
            if not frame.tag.startswith(COUNTS) and frame.tag not in FACTS
            for statistic in frame.statistics
            if statistic.role == "line" and statistic.line != FACT and (frame.tag, statistic) not in self._signals
        ]
        new.sort(key=lambda signal: FIRST.index(signal[0].tag) if signal[0].tag in FIRST else len(FIRST))
        for frame, statistic in new:
            if len(self._totals) + len(SUMMARY) * (len(self._signals) + 1) + WORST > MOST:
                break
            lines = [known for known in frame.statistics if known.role == "line"]
            name = scalar_name(frame.tag, "", statistic.text if len(lines) > 1 else "")
            self._signals[frame.tag, statistic] = SignalHistory(name)

    def _of_worst(self) -> Scalars:
        """The numbers of layers that are or were the worst."""
        self._ticks += 1
        if self._has_news or self._ticks % RANK_EVERY == 0:
            self._has_news = False
            self._find_worst()
        found = {}
        for layer, signal in self._worst.items():
            value = self._signals[signal].newest(layer)
            if value is not None:
                found[f"worst/{layer}/{self._signals[signal].name}"] = value
        return found

    def _find_worst(self) -> None:
        known = dict.fromkeys(layer for history in self._signals.values() for layer in history.layers)
        described = {layer.name for layer in self._layers}
        layers = [*self._layers, *(Layer(name) for name in known if name not in described)]
        problems = open_problems(self._findings, layers)
        healths: dict[str, tuple[LayerHealth, Signal]] = {}
        for (tag, statistic), history in self._signals.items():
            for layer, severity in zip(history.layers, history.severities(statistic), strict=True):
                health = LayerHealth(layer, problems.get(layer, ()), "", statistic, severity)
                if severity.ticks and (layer not in healths or health.key > healths[layer][0].key):
                    healths[layer] = health, (tag, statistic)
        bad = sorted((pair for pair in healths.values() if pair[0].tone), key=lambda pair: pair[0].key, reverse=True)
        for health, signal in bad[:WORST]:
            if len(self._worst) < MOST_WORST:
                self._worst.setdefault(health.layer, signal)

    def _single(self, frame: TagFrame, wanted: re.Pattern[str]) -> Scalars:
        named = self._named.get(frame.tag)
        if named is None or (named.layers, named.statistics) != (frame.layers, frame.statistics):
            named = self._named[frame.tag] = NamedFrame.of(frame, wanted)
        return named.read(frame)


def totals(frame: TagFrame) -> Scalars:
    """The lines of the whole run by name, and how many of their samples were not finite, if any."""
    found = {}
    for _, statistic, value, count in frame.numbers():
        if statistic.role != "edge":
            is_told = scalar_part(statistic.label) == scalar_part(frame.tag)
            found[scalar_name(frame.tag, "", "" if is_told else statistic.label)] = value
            if count:
                found[scalar_name(frame.tag, "", statistic.nonfinite().text)] = float(count)
    return found


def histograms(frames: Iterable[TagFrame], wanted: re.Pattern[str]) -> dict[str, Histogram]:
    """The histograms whose names match."""
    found = {}
    for frame in frames:
        for place, layer in enumerate(frame.layers if frame.bins is not None else ()):
            name = scalar_name(frame.tag, layer, "")
            if frame.bins is not None and wanted.search(name) and frame.bins.counts[place].any():
                found[name] = Histogram(frame.bins.edges, frame.bins.counts[place])
    return found


def block_of(layer: str) -> str:
    """The repeated part of a model that a layer or parameter is in; else the layer itself.

    >>> block_of("transformer.h.3.mlp.c_fc.weight"), block_of("lm_head")
    ('transformer.h.3', 'lm_head')
    """
    parts = layer.split(".")
    place = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return layer if place is None else ".".join(parts[: place + 1])


class SignalHistory:
    """The recent numbers of one statistic of all layers.

    Args:
        name: what it is called.
    """

    def __init__(self, name: str) -> None:
        self.name, self.layers = name, tuple[str, ...]()
        self._recent: deque[tuple[Numbers, Counts]] = deque(maxlen=RECENT_TICKS)
        self._places: NDArray[np.intp] = np.empty((0, 0), np.intp)

    def add(self, frame: TagFrame, place: int) -> Scalars:
        """Take the numbers of a tick, and return the summary of them."""
        if frame.layers != self.layers:
            self.layers, self._places = frame.layers, _block_places(frame.layers)
            self._recent.clear()
        values = np.where(frame.is_measured()[place], frame.values[place], np.nan)
        self._recent.append((values, frame.counts()[place]))
        blocks = medians(np.append(values, np.nan)[self._places])
        there = blocks[~np.isnan(blocks)]
        numbers = (there.min(), medians(there[None])[0], there.max()) if len(there) else [np.nan] * 3
        return {f"{self.name}/{part}": float(x) for part, x in zip(SUMMARY, numbers, strict=True)}

    def severities(self, statistic: Statistic) -> list[Severity]:
        """How bad each layer is."""
        values, counts = (np.stack(part, axis=1) for part in zip(*self._recent, strict=True))
        return judged(statistic, values, counts)

    def newest(self, layer: str) -> float | None:
        """The number of one layer at this tick; None if it has none."""
        return float(self._recent[-1][0][self.layers.index(layer)]) if layer in self.layers else None


def _block_places(layers: Sequence[str]) -> NDArray[np.intp]:
    """The places of the layers of each block, a row for each; filled with the place behind the last one."""
    blocks: dict[str, list[int]] = {}
    for place, layer in enumerate(layers):
        blocks.setdefault(block_of(layer), []).append(place)
    longest = max(map(len, blocks.values()))
    return np.array([[*own, *[len(layers)] * (longest - len(own))] for own in blocks.values()], np.intp)


def medians(rows: Numbers) -> Numbers:
    """The median of each row without NaN; NaN if there is nothing else.

    >>> medians(np.array([[3.0, 1.0, np.nan, 2.0], [np.nan] * 4])).tolist()
    [2.0, nan]
    """
    ordered, count = np.sort(rows, axis=1), (~np.isnan(rows)).sum(axis=1)
    low, high = (np.maximum(place, 0)[:, None] for place in ((count - 1) // 2, count // 2 - (count == 0)))
    with np.errstate(invalid="ignore"):  # infinity less infinity
        middle = np.take_along_axis(ordered, low, 1) / 2 + np.take_along_axis(ordered, high, 1) / 2
    found: Numbers = middle[:, 0]
    return found


class NamedFrame(NamedTuple):
    """Which numbers of a frame are shown one by one, and their names."""

    layers: tuple[str, ...]
    statistics: tuple[Statistic, ...]
    cells: list[tuple[int, int, str, str]]
    """The place of the statistic and of the layer, the name of the number, and that of its count."""

    @classmethod
    def of(cls, frame: TagFrame, wanted: re.Pattern[str]) -> "NamedFrame":
        """Those whose names match."""
        cells = []
        for row, statistic in enumerate(frame.statistics):
            line, count = ("", "") if frame.is_share else (statistic.text, statistic.nonfinite().text)
            for column, layer in enumerate(frame.layers):
                place = "" if frame.is_total else layer
                name = scalar_name(frame.tag, place, line)
                if wanted.search(name):
                    cells.append((row, column, name, scalar_name(frame.tag, place, count)))
        return cls(frame.layers, frame.statistics, cells)

    def read(self, frame: TagFrame) -> Scalars:
        """The numbers by name, and how many samples were not finite where some were."""
        found, values, there, counts = {}, frame.values.tolist(), frame.is_measured(), frame.counts()
        for row, column, name, count in self.cells:
            if there[row, column]:
                found[name] = values[row][column]
                if counts[row, column]:
                    found[count] = float(counts[row, column])
        return found
