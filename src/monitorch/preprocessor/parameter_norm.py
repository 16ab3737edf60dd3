"""How large parameters are."""

import math
from collections.abc import Iterable

from torch import Tensor

from ..numerical.length import as_real, l2_norm
from ..numerical.notes import Mask, Rows, lengths
from .ask import Ask
from .parameter_statistics import ParameterStatistics


class ParameterNorm(ParameterStatistics):
    """Euclidean norm of each parameter, divided by the root of its size with ``normalize``."""

    def __init__(self, attrs: Iterable[str], normalize: bool, inplace: bool) -> None:
        super().__init__(attrs, inplace)
        self.normalize = normalize

    def ask(self) -> Ask:
        """What gatherers should measure for it."""
        return Ask()

    def take(self, name: str, rows: Rows, is_lead: Mask) -> None:
        """Add the norms in rows of raw sums."""
        self._accumulator(name, self.attrs_[0]).extend_by(lengths(rows, by_size=self.normalize))

    def _measure(self, parameter: Tensor) -> Tensor:
        norm = l2_norm(as_real(parameter))
        return norm / math.sqrt(max(parameter.numel(), 1)) if self.normalize else norm
