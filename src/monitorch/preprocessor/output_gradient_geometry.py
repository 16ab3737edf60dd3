"""Length and direction of gradients with respect to layer outputs."""

from typing import Any

from torch import nn

from .abstract import AbstractBackwardPreprocessor
from .ask import Ask
from .geometry import GeometryPreprocessor


class OutputGradientGeometry(GeometryPreprocessor, AbstractBackwardPreprocessor):
    """Norms of output gradients, and correlations of consecutive ones."""

    needs_grad_input = False
    remembers = False

    def process_bw(self, name: str, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        """Take the gradient of the first output; an unused output has none."""
        if grad_output[0] is not None:
            self._measure(name, grad_output[0])

    def ask(self) -> Ask:
        """What gatherers should measure for it."""
        return Ask(correlation=self.comparison)
