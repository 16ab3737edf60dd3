"""Shares of active neurons: of outputs and of gradients."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..engine.columns import ACTIVE, CHANNELS, DEAD, SIZE
from ..engine.kernels import reference
from ..engine.meter import Request, through_row
from ..engine.rows import Rows
from ..errors import SkippedSample
from .abstract import AbstractTensorPreprocessor
from .accumulating import AccumulatingPreprocessor, Samples
from .outputs import OutputPreprocessor

TINY = 1e-300
"""Replaces 0 as a divisor: if no row was used, none is active."""


class RateStatistics(AccumulatingPreprocessor):
    """Share of active elements and, with ``death``, of channels without one.

    A layer full of NaN must not look like a dead one: samples of tensors that are not finite are not finite either.
    """

    def _count(self, death: bool, eps: float) -> None:
        """Say what to count, before the accumulators are made."""
        self.death, self.eps = death, eps
        self._name_statistics(*(("activation", "death") if death else ("activation",)))

    def label(self, name: str, statistic: str) -> str:
        """The name under which a statistic of a layer is shown."""
        return f"{statistic}_rate"

    def derive(self, rows: Rows) -> Samples | tuple[Samples, ...]:
        """Activation rates and death rates; an empty tensor has none."""
        is_empty = rows[SIZE] == 0
        activation = np.ma.array(rows[ACTIVE] / rows[SIZE], mask=is_empty)
        return (activation, np.ma.array(rows[DEAD] / rows[CHANNELS], mask=is_empty)) if self.death else activation


class OutputActivation(RateStatistics, OutputPreprocessor):
    """Share of output entries that are not zero and, with ``death``, share of channels that are all zero.

    Args:
        death: also record the death rate.
        eps: numbers up to this absolute value count as zero.
        channel_last: where the channels are: ``[B, ..., C]`` if true, else ``[B, C, ...]``; or a function of the
            layer name that says which.
        exact_death: with several processes, count a channel as dead only if it is dead in all of them.

    The others are those of OutputPreprocessor.
    """

    def __init__(
        self,
        death: bool,
        inplace: bool,
        record_eval: bool,
        evaluation_from_grad: bool | None,
        eps: float = 1e-8,
        channel_last: bool | Callable[[str], bool] = False,
        *,
        output_index: int | str | None = None,
        exact_death: bool = False,
    ) -> None:
        self._count(death, eps)
        super().__init__(inplace, record_eval, evaluation_from_grad, output_index)
        self.channel_last, self.exact_death = channel_last, exact_death

    def request(self) -> Request:
        """What gatherers should measure for it."""
        rates = self.eps, self.channel_last
        return Request(self.output_index, rates, passes=self.passes(), exact_death=self.exact_death)


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
