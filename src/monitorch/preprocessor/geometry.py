"""The common half of the preprocessors that follow a tensor's length and direction."""

from torch import Tensor

from ..numerical.geometry_computation import GeometryComputation
from .accumulating import AccumulatingPreprocessor


class GeometryPreprocessor(AccumulatingPreprocessor):
    """Norm of each tensor and, with ``correlation``, its cosine with the one before.

    Args:
        correlation: compare each tensor with the one before; keeps a copy of the last one.
        normalize: divide norms by the root of the number of elements.
        inplace: keep moments only, instead of every sample.
        eps: added to the product of the two norms.
    """

    def __init__(self, correlation: bool, normalize: bool, inplace: bool, eps: float = 1e-8) -> None:
        super().__init__(inplace)
        self.correlation, self.normalize, self.eps = correlation, normalize, eps
        self.statistics = ("norm", "correlation") if correlation else ("norm",)
        self._geometries: dict[str, GeometryComputation] = {}

    def reset(self) -> None:
        """Forget the samples; the last tensors stay, so that a tick does not cut a series in two."""
        super().reset()
        for geometry in self._geometries.values():
            geometry.reset()

    def clear(self) -> None:
        """Forget the last tensors as well."""
        self._geometries.clear()
        super().clear()

    def interrupt(self, name: str) -> None:
        """The next tensor of ``name`` does not follow the last one."""
        if name in self._geometries:
            self._geometries[name].interrupt()

    def _measure(self, name: str, tensor: Tensor) -> None:
        geometry = self._geometries.get(name)
        if geometry is None:
            geometry = GeometryComputation(self.inplace, self.normalize, self.correlation, self.eps)
            self._geometries[name] = geometry
        geometry.update(tensor)
        self._values[name] = geometry.value
