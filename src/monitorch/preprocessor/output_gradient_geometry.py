"""Length and direction of gradients with respect to layer outputs."""

from typing import Any

from torch import nn

from ..engine.meter import through_row
from .abstract import AbstractBackwardPreprocessor
from .geometry import GeometryPreprocessor


class OutputGradientGeometry(GeometryPreprocessor, AbstractBackwardPreprocessor):
    """Norms of output gradients, and correlations of consecutive ones."""

    needs_grad_input = False
    remembers = False

    @through_row
    def process_bw(self, name: str, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        """Take the gradient of the first output; an unused output has none."""
        if grad_output[0] is not None:
            self.measure(name, grad_output[0])
