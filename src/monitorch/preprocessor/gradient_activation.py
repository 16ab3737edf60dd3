"""Which neurons receive a gradient."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..numerical import reduce_activation_to_activation_rates
from ..numerical.length import as_dense
from ..numerical.notes import Rows
from .abstract import AbstractTensorPreprocessor
from .ask import Ask
from .rates import RateStatistics

TINY = 1e-300
"""Replaces 0 as a divisor: if no row was used, none is active."""


class GradientActivation(RateStatistics, AbstractTensorPreprocessor):
    """Share of gradient entries that are not zero and, with ``death``, share of rows that are all zero.

    Args:
        death: also record the death rate.
        inplace: keep only running moments, instead of every sample.
        eps: numbers up to this absolute value count as zero.
    """

    def __init__(self, death: bool, inplace: bool, eps: float = 1e-8) -> None:
        super().__init__(inplace)
        self._declare(death, eps)
        self.lookups: set[str] = set()
        """Names of lookup tables, such as embeddings: a row that no batch used is not dead.

        Their activation rate is that of the used rows, and the share of used rows replaces the death rate.
        """

    def label(self, name: str, statistic: str) -> str:
        """The name of a statistic; the share of used rows has its own."""
        return "rows_used" if statistic == "death" and name in self.lookups else super().label(name, statistic)

    def clear(self) -> None:
        """Also forget which layers are lookup tables."""
        super().clear()
        self.lookups = set()

    @torch.no_grad()
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one gradient; its rows are the neurons."""
        gradient = as_dense(tensor)
        rows = gradient.flatten(1) if gradient.dim() > 1 else gradient.reshape(-1, 1)
        self._record_rates(name, rows, partial(reduce_activation_to_activation_rates, batch=False))

    def _record(self, name: str, *samples: Any) -> None:
        super()._record(name, *self._by_used_rows(name, *samples))

    def _extend(self, name: str, *samples: Rows) -> None:
        super()._extend(name, *self._by_used_rows(name, *samples))

    def _by_used_rows(self, name: str, activation: Any, death: Any = None) -> tuple[Any, ...]:
        if death is None:
            return (activation,)
        if name not in self.lookups:
            return activation, death
        used = 1 - death
        return activation / used.clip(min=TINY), used

    def ask(self) -> Ask:
        """What gatherers should measure for it."""
        return Ask(rates=(self.eps, False))
