"""Length and direction of parameter gradients."""

from torch import Tensor

from .abstract import AbstractTensorPreprocessor
from .ask import Ask
from .geometry import GeometryPreprocessor


class GradientGeometry(GeometryPreprocessor, AbstractTensorPreprocessor):
    """Norms of gradients, and correlations of consecutive ones."""

    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one gradient."""
        self._measure(name, tensor)

    def ask(self) -> Ask:
        """What gatherers should measure for it."""
        return Ask(correlation=self.comparison)
