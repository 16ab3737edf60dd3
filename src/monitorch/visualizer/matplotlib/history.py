"""All numbers received so far, over epochs or steps, per tag and layer."""

from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..abstract_visualizer import Ranges, Values

Numbers: TypeAlias = NDArray[np.float64]
Edges: TypeAlias = tuple[str, str]


class EpochSeries:
    """One number per epoch; packed, because long runs hold millions of them."""

    def __init__(self) -> None:
        self._epochs = array("d")
        self._values = array("d")

    def add(self, epoch: float, value: float) -> None:
        """Add the number of an epoch; a later one for the same epoch replaces it."""
        if self._epochs and self._epochs[-1] == epoch:
            self._values[-1] = value
        else:
            self._epochs.append(epoch)
            self._values.append(value)

    def points(self) -> tuple[Numbers, Numbers]:
        """Increasing epochs and their numbers, as copies: a view would lock the arrays against growing."""
        epochs, values = np.array(self._epochs), np.array(self._values)
        if np.all(np.diff(epochs) > 0):
            return epochs, values
        # epochs were repeated: np.unique keeps the first, so go backwards to keep the last
        ordered, latest = np.unique(epochs[::-1], return_index=True)
        return ordered, values[::-1][latest]


@dataclass
class Curves:
    """The lines and bands of one plot."""

    lines: dict[str, EpochSeries] = field(default_factory=lambda: defaultdict(EpochSeries))
    bands: dict[Edges, tuple[EpochSeries, EpochSeries]] = field(
        default_factory=lambda: defaultdict(lambda: (EpochSeries(), EpochSeries()))
    )
    nonfinite: EpochSeries = field(default_factory=EpochSeries)
    """How many samples were left out because they were not finite."""

    def __bool__(self) -> bool:
        return bool(self.lines or self.bands)


class History:
    """Everything received, copied: callers may change their dictionaries afterwards."""

    def __init__(self) -> None:
        self._tags: dict[str, dict[str, Curves]] = {}
        self.epochs: tuple[float, float] | None = None
        """The first and last position on the x axis."""
        self.axis = ""
        """The unit of the x axis, given by the first tick."""
        self._tick: tuple[float, float] | None = None

    def begin_tick(self, epoch: float, step: float, axis: str) -> None:
        """Numbers for ``epoch`` belong to ``step``; an x axis that counts steps shows them there."""
        self.axis = self.axis or axis
        self._tick = epoch, step

    def add(self, epoch: float, tag: str, values: Values, ranges: Ranges | None = None) -> None:
        """Take the numbers of one tag at one epoch."""
        epoch = self._place(epoch)
        layers = self._tags.setdefault(tag, {})
        for layer, lines in values.items():
            curves = layers.setdefault(layer, Curves())
            for name, value in lines.items():
                curves.lines[name].add(epoch, float(value))
        for layer, bands in (ranges or {}).items():
            curves = layers.setdefault(layer, Curves())
            for names, edges in bands.items():
                for series, edge in zip(curves.bands[names], edges, strict=True):
                    series.add(epoch, float(edge))
        first, last = self.epochs or (epoch, epoch)
        self.epochs = min(first, epoch), max(last, epoch)

    def add_nonfinite(self, epoch: float, tag: str, counts: Mapping[str, int]) -> None:
        """Take how many samples of each layer were not finite."""
        epoch = self._place(epoch)
        for layer, count in counts.items():
            self._tags.setdefault(tag, {}).setdefault(layer, Curves()).nonfinite.add(epoch, count)

    def _place(self, epoch: float) -> float:
        if self.axis == "step" and self._tick is not None and self._tick[0] == epoch:
            return self._tick[1]
        return epoch

    def layers(self, tag: str) -> dict[str, Curves]:
        """The layers of a tag that have any number, in the order received."""
        return {layer: curves for layer, curves in self._tags.get(tag, {}).items() if curves}

    def line_names(self, tag: str) -> list[str]:
        """The lines of a tag, over all of its layers."""
        return list(dict.fromkeys(name for curves in self.layers(tag).values() for name in curves.lines))

    def band_names(self, tag: str) -> list[Edges]:
        """The bands of a tag, over all of its layers."""
        return list(dict.fromkeys(edges for curves in self.layers(tag).values() for edges in curves.bands))
