"""The common part of the preprocessors that measure a tensor's length and direction."""

from typing import Any

import numpy as np
from torch import Tensor

from ..engine.columns import DOT, FOLLOWS, SQUARES, UNIT
from ..numerical.geometry_computation import GeometryComputation
from ..numerical.notes import Mask, Rows, lengths
from .accumulating import AccumulatingPreprocessor


class GeometryPreprocessor(AccumulatingPreprocessor):
    """Norm of each tensor and, with ``correlation``, its cosine with the one before.

    Args:
        correlation: compare each tensor with the one before; keeps a copy of the last one.
        normalize: divide norms by the root of the number of elements.
        inplace: keep only running moments, instead of every sample.
        eps: added to the product of the two norms.
        sketch: let gatherers compare random projections of fixed size instead of keeping whole tensors.
    """

    remembers = True
    """Whether the last tensors are small enough to be saved."""

    def __init__(
        self, correlation: bool, normalize: bool, inplace: bool, eps: float = 1e-8, *, sketch: bool = False
    ) -> None:
        super().__init__(inplace)
        self.correlation, self.normalize, self.eps = correlation, normalize, eps
        self.comparison = ("sketch" if sketch else "exact") if correlation else None
        self.statistics = ("norm", "correlation") if correlation else ("norm",)
        self._geometries: dict[str, GeometryComputation] = {}
        self._last_lengths: dict[str, tuple[float, float]] = {}  # the length in its own unit, and this unit

    def reset(self) -> None:
        """Forget the samples; the last tensors stay, so that correlations continue across ticks."""
        super().reset()
        for geometry in self._geometries.values():
            geometry.reset()

    def clear(self) -> None:
        """Forget the last tensors as well."""
        super().clear()
        self._geometries.clear()
        self._last_lengths.clear()

    def interrupt(self, name: str) -> None:
        """Do not compare the next tensor of ``name`` with the last one."""
        if name in self._geometries:
            self._geometries[name].interrupt()

    def state_dict(self) -> dict[str, Any]:
        """Also what the next tensors are compared with, unless it is too large."""
        kept = {name: geometry.last(self.remembers) for name, geometry in self._geometries.items()}
        return {**super().state_dict(), "lengths": dict(self._last_lengths), "geometries": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        known = state["lengths"].items()
        # older releases saved lengths only; the unit matters only for float64 numbers far from 1
        self._last_lengths = {name: (last, 1.0) if isinstance(last, float) else tuple(last) for name, last in known}
        for name, last in state["geometries"].items():
            geometry = self._geometries[name] = self._new_geometry()
            geometry.go_on(self._values.get(name), *last)

    @np.errstate(all="ignore")  # non-finite numbers are counted, without NumPy's warnings
    def take(self, name: str, rows: Rows, is_lead: Mask) -> None:
        """Add the samples in rows of raw sums; a lead row only gives what the next one is compared with."""
        norms = lengths(rows, by_size=self.normalize)
        if not self.correlation:
            samples: tuple[Rows, ...] = (norms[~is_lead],)
        else:
            correlations, compared = self._correlations(name, rows)
            samples = norms[~is_lead], correlations[compared & ~is_lead]
        if not is_lead.all():
            self._extend(name, *samples)

    def _correlations(self, name: str, rows: Rows) -> tuple[Rows, Mask]:
        """Cosines with the tensor before, and which of them exist."""
        sizes, units = np.sqrt(rows[:, SQUARES]), rows[:, UNIT]
        first = name not in self._last_lengths
        size, unit = self._last_lengths.get(name, (0.0, 1.0))
        product = sizes * np.concatenate(([size], sizes[:-1]))
        self._last_lengths[name] = float(sizes[-1]), float(units[-1])
        compared = rows[:, FOLLOWS] > 0
        cosine = np.where(product == 0, 0.0, rows[:, DOT] / product)
        if self.eps:  # dot / (lengths + eps); one after the other, since the product of two units may overflow
            cosine /= 1 + self.eps / units / np.concatenate(([unit], units[:-1])) / product
        if first:
            cosine[0], compared[0] = 0.0, True
        return cosine, compared

    def _measure(self, name: str, tensor: Tensor) -> None:
        geometry = self._geometries.get(name)
        if geometry is None:
            geometry = self._geometries[name] = self._new_geometry()
        geometry.update(tensor)
        self._values[name] = geometry.value

    def _new_geometry(self) -> GeometryComputation:
        return GeometryComputation(self.inplace, self.normalize, self.correlation, self.eps)
