"""The common part of the preprocessors that count active neurons."""

import numpy as np

from ..engine.columns import ACTIVE, CHANNELS, DEAD, SIZE
from ..engine.rows import Rows
from .accumulating import AccumulatingPreprocessor, Samples


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
