"""How much samples, or units, differ: numbers that tell whether a layer can tell anything apart."""

import math

import torch
from torch import Tensor

from ..numerical.precision import wide_dtype
from .accumulating import AccumulatingPreprocessor
from .activations import deviations

MOST = 1 << 19
"""Elements of an output that are looked at."""


def relative_spread(x: Tensor, dim: int) -> Tensor:
    """The mean standard deviation along a dimension, over the root mean square of all elements; 0 if all are 0.

    >>> relative_spread(torch.tensor([[1.0, -1.0], [1.0, -1.0]]), 0)
    tensor(0.)
    """
    x = x.float() if x.dtype.itemsize < torch.float32.itemsize else x
    norm = torch.linalg.vector_norm(x)
    scale = (norm / math.sqrt(x.numel())).clamp_min(torch.finfo(torch.float32).tiny)
    spread: Tensor = deviations(x, dim).mean() / scale
    return spread


class LayerSpread(AccumulatingPreprocessor):
    """The batch spread of outputs: near 0 all samples give the same."""

    statistics = ("batch spread",)
    computes_in_half = False
    """Whether an output was in float16."""

    @torch.no_grad()
    def process_output(self, name: str, output: Tensor) -> None:
        """Take one output, whose first dimension is the batch."""
        self.computes_in_half |= output.dtype is torch.float16
        if output.dim() < 2 or len(output) < 2 or not output.is_floating_point():
            return
        with torch.autocast(output.device.type, enabled=False):
            x = output.detach().flatten(1)
            x = x[:, :: -(-x.numel() // MOST)]
            self._record(name, relative_spread(x, 0).to(wide_dtype(x)))
