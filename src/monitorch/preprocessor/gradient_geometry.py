"""Length and direction of parameter gradients."""

from torch import Tensor

from ..engine.meter import through_row
from .abstract import AbstractTensorPreprocessor
from .geometry import GeometryPreprocessor


class GradientGeometry(GeometryPreprocessor, AbstractTensorPreprocessor):
    """Norms of gradients, and correlations of consecutive ones."""

    @through_row
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one gradient."""
        self.measure(name, tensor)
