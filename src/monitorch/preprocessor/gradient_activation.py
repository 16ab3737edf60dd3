"""Which neurons receive a gradient."""

import numpy as np
import torch
from torch import Tensor

from ..engine.kernels import reference
from ..engine.meter import Request, through_row
from ..engine.rows import Rows
from ..errors import SkippedSample
from .abstract import AbstractTensorPreprocessor
from .accumulating import Samples
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
        self._count(death, eps)
        super().__init__(inplace)
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

    @through_row
    @torch.no_grad()
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one gradient; its rows are the neurons."""
        if not tensor.numel():
            raise SkippedSample(f"the tensor is empty, shape {tuple(tensor.shape)}")
        self._take_row(name, reference.geometry(tensor, None, self.eps))

    def request(self) -> Request:
        """What gatherers should measure for it."""
        return Request(rates=(self.eps, False))

    def derive(self, rows: Rows) -> Samples | tuple[Samples, ...]:
        """The rates; for lookup tables those of the rows that were used, and how many were."""
        if not self.lookups or not self.death:
            return super().derive(rows)
        activation, death = super().derive(rows)
        is_lookup = np.array([name in self.lookups for name in rows.names])[rows.places]
        used = 1 - death
        by_used = activation / np.maximum(used, TINY)
        activation[is_lookup], death[is_lookup] = by_used[is_lookup], used[is_lookup]
        return activation, death
