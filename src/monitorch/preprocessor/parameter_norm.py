"""How large parameters are."""

from collections.abc import Iterable

from torch import Tensor

from ..engine.kernels import reference
from ..engine.meter import Request
from ..engine.rows import Rows
from .accumulating import Samples
from .geometry import norms
from .parameter_statistics import ParameterStatistics


class ParameterNorm(ParameterStatistics):
    """Euclidean norm of each parameter, divided by the root of its size with ``normalize``."""

    def __init__(self, attrs: Iterable[str], normalize: bool, inplace: bool) -> None:
        self.normalize = normalize
        super().__init__(attrs, inplace)

    def request(self) -> Request:
        """What gatherers should measure for it."""
        return Request()

    def derive(self, rows: Rows) -> Samples:
        """The norms."""
        return norms(rows, by_size=self.normalize)

    def _measure(self, key: tuple[str, str], parameter: Tensor) -> None:
        self._take_row(key, reference.geometry(parameter, None, None))
