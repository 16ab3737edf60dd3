"""The common part of the preprocessors that count active neurons."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from ..engine.columns import ACTIVE, CHANNELS, DEAD, NONFINITE, SIZE
from ..errors import SkippedSample
from ..numerical.notes import Rows
from ..numerical.precision import wide_dtype
from .accumulating import AccumulatingPreprocessor


class RateStatistics(AccumulatingPreprocessor):
    """Activation and death rates from the rates of single neurons."""

    def _declare(self, death: bool, eps: float) -> None:
        self.death, self.eps = death, eps
        self.statistics = ("activation", "death") if death else ("activation",)

    def label(self, name: str, statistic: str) -> str:
        """The name under which a statistic of a layer is shown."""
        return f"{statistic}_rate"

    def _record_rates(self, name: str, tensor: Tensor, rate_of_neurons: Callable[[Tensor], Tensor]) -> None:
        """Record the mean rate of the neurons in ``tensor`` and the share of those whose rate is 0.

        One non-finite number makes the sample non-finite: NaN compares as zero, and a layer full of NaN must not look
        like a dead one.
        """
        if not tensor.numel():
            raise SkippedSample(f"the tensor is empty, shape {tuple(tensor.shape)}")
        magnitude = tensor.abs()
        poison = magnitude.max() * 0  # NaN if any number is non-finite
        rates = rate_of_neurons(magnitude.gt_(self.eps))  # 1.0 and 0.0 in place, without a bool tensor in between
        samples = [rates.mean(dtype=wide_dtype(rates)) + poison]
        if self.death:
            samples.append((rates == 0).mean(dtype=wide_dtype(rates)) + poison)
        self._record(name, *samples)

    def _samples(self, rows: Rows) -> tuple[Rows, ...]:
        poison = np.where(rows[:, NONFINITE] > 0, np.nan, 0.0)
        activation = rows[:, ACTIVE] / rows[:, SIZE] + poison
        return (activation, rows[:, DEAD] / rows[:, CHANNELS] + poison) if self.death else (activation,)
