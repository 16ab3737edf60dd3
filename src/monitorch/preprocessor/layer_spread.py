"""How much the samples of a batch differ in a layer's output."""

from typing import Any

import torch
from torch import Tensor

from ..numerical.spread import relative_spreads
from .accumulating import AccumulatingPreprocessor, Kept

MOST, SMALL = 1 << 19, 1 << 14
"""The most elements read per output; outputs up to the second size are copied and read together with others."""


class LayerSpread(AccumulatingPreprocessor):
    """The batch spread of outputs: near 0 all samples give the same."""

    statistics = ("batch spread",)
    computes_in_half = False
    """Whether an output was in float16."""

    @torch.no_grad()
    def process_output(self, name: str, output: Tensor) -> None:
        """Take one output, whose first dimension is the batch; it may be changed afterwards."""
        self.computes_in_half |= output.dtype is torch.float16
        if output.dim() < 2 or len(output) < 2 or not output.is_floating_point() or not output.numel():
            return
        x = output.detach()
        if x.numel() <= SMALL:
            self._gather(name, x.clone())
            return
        x = x.flatten(1)
        x = x[:, :: -(-x.numel() // MOST)]
        self._handle(self._kept, (name,), (self._kept.series.now(),), [x[None]])

    def _handle(
        self, kept: Kept, keys: tuple[Any, ...], steps: tuple[int, ...], columns: list[Tensor], *_: Any
    ) -> None:
        """Look at outputs of one shape."""
        kept.series.add_all(keys, relative_spreads(columns[0], 1), steps)
