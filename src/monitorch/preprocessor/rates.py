"""The common half of the preprocessors that count active neurons."""

import math
from typing import Any

from torch import Tensor

from ..errors import SkippedSample
from ..numerical.precision import wide_dtype


class RateStatistics:
    """Activation and death rates from the rates of single neurons; mix in before AccumulatingPreprocessor."""

    statistics: tuple[str, ...]

    def _declare(self, death: bool, eps: float) -> None:
        self.death, self.eps = death, eps
        self.statistics = ("activation", "death") if death else ("activation",)

    def _is_active(self, tensor: Tensor) -> Tensor:
        return tensor.abs() > self.eps

    def _record_rates(self, name: str, source: Tensor, rates: Tensor) -> None:
        """Record the mean of ``rates`` and the share of zeros among them.

        One non-finite number in ``source`` makes the sample non-finite: NaN compares as zero, and a layer full of NaN
        must not look like a dead one.
        """
        if not source.numel():
            raise SkippedSample(f"the tensor is empty, shape {tuple(source.shape)}")
        rates = rates.to(wide_dtype(rates))
        finite = source.isfinite().all()
        samples = (rates.mean(), (rates == 0).to(rates.dtype).mean())
        masked = [sample.where(finite, math.nan) for sample in samples]
        self._record(name, *masked[: len(self.statistics)])

    def _record(self, name: str, *samples: Any) -> None:
        super()._record(name, *samples)  # type: ignore[misc]
