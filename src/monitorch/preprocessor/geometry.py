"""Length and direction of gradients, and the base class for everything that measures these."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.allocation import renewed
from ..engine.columns import DOT, FOLLOWS, SIZE, SQUARES, UNIT, WEIGHT
from ..engine.kernels import reference
from ..engine.meter import EXACT, Request, through_row
from ..engine.rows import Rows
from ..numerical.norms import as_real, l2_norm
from ..numerical.series import finish_sync_rmv_or_error, start_sync_rmv_or_error
from .abstract import AbstractBackwardPreprocessor, AbstractTensorPreprocessor
from .accumulating import AccumulatingPreprocessor, Samples

COSINE_ERROR = 0.022
"""The standard error of a cosine that is estimated from random projections of 4,096 numbers."""
NORM_ERROR = 0.011
"""The same for a norm, as a share of it."""


def norms(rows: Rows, *, by_size: bool) -> Samples:
    """The norm of the tensor behind each row; ``by_size`` divides it by the root of the number of elements."""
    found = np.sqrt(rows[SQUARES]) * rows[UNIT]
    return found / np.sqrt(np.maximum(rows[SIZE], 1)) if by_size else found


def cosines(rows: Rows, eps: float) -> Samples:
    """The cosine with the tensor before, where one was compared; 0 for the first one of a run, or if a norm is 0."""
    size, size_before = np.sqrt(rows[SQUARES]), np.sqrt(rows.before(SQUARES))
    product = size * size_before
    cosine = np.where(product == 0, 0.0, rows[DOT] / product)
    if eps:  # dot / (lengths + eps); one after the other, since the product of two units may overflow
        cosine /= 1 + eps / rows[UNIT] / np.where(rows.is_first, 1, rows.before(UNIT)) / product
    return np.ma.array(np.where(rows.is_first, 0.0, cosine), mask=~(rows.is_first | (rows[FOLLOWS] > 0)))


class GeometryPreprocessor(AccumulatingPreprocessor):
    """Norm of each tensor and, with ``correlation``, its cosine with the one before.

    Args:
        correlation: compare each tensor with the one before.
        normalize: divide norms by the root of the number of elements.
        inplace: keep only running moments, instead of every sample.
        eps: added to the product of the two norms.
        comparison: what gatherers keep to compare with: ``"exact"`` copies, a ``"sketch"``, that is a random projection
            of fixed size, or ``"auto"``: copies while these take little memory.
    """

    remembers = True
    """Whether the last tensors are small enough to be saved."""
    _errors: Mapping[str, float] = {"correlation": COSINE_ERROR}
    """The standard errors of statistics that come from sketches."""

    def __init__(
        self, correlation: bool, normalize: bool, inplace: bool, eps: float = 1e-8, *, comparison: str = EXACT
    ) -> None:
        self.correlation, self.normalize, self.eps = correlation, normalize, eps
        self.comparison = comparison
        self._name_statistics(*(("norm", "correlation") if correlation else ("norm",)))
        self._previous: dict[str, Tensor] = {}
        super().__init__(inplace)

    def request(self) -> Request:
        """What gatherers should measure for it."""
        return Request(correlation=self.comparison if self.correlation else None)

    def error(self, statistic: str) -> float | None:
        """The standard error of a statistic, if it is estimated for some layer."""
        return self._errors.get(statistic) if self.is_estimated else None

    def derive(self, rows: Rows) -> Samples | tuple[Samples, ...]:
        """Norms, and cosines with the tensor before."""
        found = norms(rows, by_size=self.normalize)
        return (found, cosines(rows, self.eps)) if self.correlation else found

    @torch.no_grad()
    def measure(self, name: str, tensor: Tensor, weight: Tensor | None = None) -> None:
        """Take one tensor, and keep a copy to compare the next one with.

        ``weight``: for updates, the sum of squares of the tensor before the change, if wanted.
        """
        previous = self._previous.get(name)
        row = reference.geometry(tensor, previous if comparable(previous, tensor) else None, None)
        if weight is not None:
            row[WEIGHT] = weight
        self._take_row(name, row)
        if self.correlation:
            self._previous[name] = renewed(previous, tensor)

    def clear(self) -> None:
        """Forget the last tensors as well."""
        self._previous.clear()
        super().clear()

    def interrupt(self, name: str) -> None:
        """Do not compare the next tensor of ``name`` with the last one."""
        self._previous.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """Also what the next tensors are compared with, unless it is too large."""
        values = super().state_dict()
        last = {name: self._last.row(place) for name, place in self._places.items()}
        kept = dict(self._previous) if self.remembers else {}
        return {**values, "last": {name: row for name, row in last.items() if row is not None}, "previous": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        for name, row in state["last"].items():
            self._last.set(self.place(name), row)
        self._previous = dict(state["previous"])


def comparable(previous: Tensor | None, tensor: Tensor) -> bool:
    """Whether there was a tensor before, of the same shape and on the same device."""
    return previous is not None and previous.shape == tensor.shape and previous.device == tensor.device


class GeometryComputation:
    """Norms and, if wanted, correlations of consecutive tensors of one stream.

    The first tensor has correlation 0. A tensor with another shape than the one before, or the first one after
    :meth:`interrupt`, has none.

    >>> geometry = GeometryComputation(inplace=False, normalize=False, correlation=True, eps=0.0)
    >>> geometry.update(torch.tensor([3.0, 4.0]))
    >>> geometry.update(torch.tensor([-3.0, -4.0]))
    >>> geometry.value
    ([5.0, 5.0], [0.0, -1.0])
    """

    def __init__(self, inplace: bool, normalize: bool, correlation: bool, eps: float) -> None:
        self.inplace, self.normalize, self.correlation, self.eps = inplace, normalize, correlation, eps
        self._numbers = GeometryPreprocessor(correlation, normalize, inplace, eps)
        self._was_updated = False
        self.reset()

    @property
    def value(self) -> Any:
        """The norms, or norms and correlations."""
        return self._numbers._kept.series.view("")

    @property
    def norm(self) -> Any:
        """The norms."""
        return self.value[0] if self.correlation else self.value

    @property
    def product(self) -> Any:
        """The correlations."""
        self._needs_correlation("product")
        return self.value[1]

    @property
    def prev_value(self) -> Any:
        """The last tensor, 0 before the first one, None after :meth:`interrupt`."""
        self._needs_correlation("prev_value")
        return self._numbers._previous.get("") if self._was_updated else 0.0

    @property
    def prev_norm(self) -> Any:
        """The norm of the last tensor, 1 before the first one."""
        self._needs_correlation("prev_norm")
        return l2_norm(as_real(self.prev_value)) if isinstance(self.prev_value, Tensor) else 1.0

    def _needs_correlation(self, name: str) -> None:
        if not self.correlation:
            raise AttributeError(f"there is no {name} without correlation=True")

    def reset(self) -> None:
        """Forget the samples, but not the last tensor: the next one is still compared with it."""
        self._numbers.reset()
        self._numbers._kept.series.place("")

    def interrupt(self) -> None:
        """Forget the last tensor: the next one is not compared with it."""
        self._numbers.interrupt("")

    def update(self, tensor: Tensor) -> None:
        """Add one tensor."""
        self._numbers.measure("", tensor)
        self._was_updated = True

    def start_sync(self, dst_rank: int = 0) -> None:
        """Begin to merge with the other ranks."""
        for accumulator in self.value if self.correlation else (self.value,):
            start_sync_rmv_or_error(accumulator, dst_rank)

    def finish_sync(self) -> None:
        """Finish :meth:`start_sync`."""
        for accumulator in self.value if self.correlation else (self.value,):
            finish_sync_rmv_or_error(accumulator)


class GradientGeometry(GeometryPreprocessor, AbstractTensorPreprocessor):
    """Norms of gradients, and correlations of consecutive ones."""

    @through_row
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one gradient."""
        self.measure(name, tensor)


class OutputGradientGeometry(GeometryPreprocessor, AbstractBackwardPreprocessor):
    """Norms of output gradients, and correlations of consecutive ones."""

    needs_grad_input = False
    remembers = False

    @through_row
    def process_bw(self, name: str, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        """Take the gradient of the first output; an unused output has none."""
        if grad_output[0] is not None:
            self.measure(name, grad_output[0])
