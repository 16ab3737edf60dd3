"""Which neurons receive a gradient at all."""

from functools import partial

import torch
from torch import Tensor

from ..numerical import reduce_activation_to_activation_rates
from ..numerical.length import as_dense
from .abstract import AbstractTensorPreprocessor
from .ask import Ask
from .rates import RateStatistics


class GradientActivation(RateStatistics, AbstractTensorPreprocessor):
    """Share of gradient entries that are not zero and, with ``death``, share of rows that are zero throughout.

    Args:
        death: also record the death rate.
        inplace: keep moments only, instead of every sample.
        eps: up to this absolute value a number counts as zero.
    """

    def __init__(self, death: bool, inplace: bool, eps: float = 1e-8) -> None:
        super().__init__(inplace)
        self._declare(death, eps)

    @torch.no_grad()
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one gradient; its rows are the neurons."""
        gradient = as_dense(tensor)
        rows = gradient.flatten(1) if gradient.dim() > 1 else gradient.reshape(-1, 1)
        self._record_rates(name, rows, partial(reduce_activation_to_activation_rates, batch=False))

    def ask(self) -> Ask:
        """What gatherers are to measure in passing."""
        return Ask(rates=(self.eps, False))
