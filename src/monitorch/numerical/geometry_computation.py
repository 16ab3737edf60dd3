"""Length of a tensor, and the angle to the one before."""

import math
from typing import Any

import torch
from torch import Tensor

from .accumulator import accumulators_in, new_accumulator
from .length import as_real, cosine, l2_norm
from .memory import renewed
from .running_mean_var import finish_sync_rmv_or_error, start_sync_rmv_or_error


class GeometryComputation:
    """Accumulates norms and, if wanted, correlations of consecutive tensors.

    The first tensor has correlation 0. A tensor with another shape than the one before, or the first one after
    :meth:`interrupt`, has none.

    >>> geometry = GeometryComputation(inplace=False, normalize=False, correlation=True, eps=0.0)
    >>> geometry.update(torch.tensor([3.0, 4.0]))
    >>> geometry.update(torch.tensor([-3.0, -4.0]))
    >>> geometry.value
    ([5.0, 5.0], [0.0, -1.0])
    """

    prev_value: Any
    prev_norm: Any

    def __init__(self, inplace: bool, normalize: bool, correlation: bool, eps: float) -> None:
        self.inplace, self.normalize, self.correlation, self.eps = inplace, normalize, correlation, eps
        if correlation:
            self.prev_value, self.prev_norm = 0.0, 1.0
        self.reset()

    @property
    def value(self) -> Any:
        """The norms, or norms and correlations."""
        return (self.norm, self.product) if self.correlation else self.norm

    def reset(self) -> None:
        """Forget the samples, but not the last tensor: the next one is still compared with it."""
        self.norm = new_accumulator(self.inplace)
        if self.correlation:
            self.product = new_accumulator(self.inplace)

    def interrupt(self) -> None:
        """Forget the last tensor: the next one is not compared with it."""
        if self.correlation and isinstance(self.prev_value, Tensor):
            self.prev_value = None

    @torch.no_grad()
    def update(self, tensor: Tensor) -> None:
        """Add one tensor."""
        size = tensor.numel()
        tensor = as_real(tensor)
        norm = l2_norm(tensor)
        self.norm.adopt(norm / math.sqrt(max(size, 1)) if self.normalize else norm)
        if self.correlation:
            self._correlate(tensor, norm)

    def _correlate(self, tensor: Tensor, norm: Tensor) -> None:
        previous = self.prev_value
        if isinstance(previous, float):
            self.product.append(0.0)
        elif comparable(previous, tensor):
            similarity = cosine(previous, self.prev_norm, tensor, norm)
            if self.eps:  # dot / (lengths + eps), in a form in which no length overflows
                similarity = similarity / (1 + self.eps / (self.prev_norm * norm))
            self.product.adopt(similarity)
        self.prev_value = renewed(previous if isinstance(previous, Tensor) else None, tensor)
        self.prev_norm = norm

    def last(self, with_tensor: bool) -> tuple[Any, Any]:
        """The last tensor (or None if it is left out) and its norm."""
        if not self.correlation:
            return 0.0, 1.0
        left_out = isinstance(self.prev_value, Tensor) and not with_tensor
        return None if left_out else self.prev_value, self.prev_norm

    def go_on(self, value: Any, last: Any, norm: Any) -> None:
        """Continue with the accumulators of ``value``, if given, and compare the next tensor with ``last``."""
        if value is not None:
            self.norm, *product = accumulators_in(value)
            if product:
                (self.product,) = product
        if self.correlation:
            self.prev_value, self.prev_norm = last, norm

    def start_sync(self, dst_rank: int = 0) -> None:
        """Begin to merge with the other ranks."""
        for accumulator in accumulators_in(self.value):
            start_sync_rmv_or_error(accumulator, dst_rank)

    def finish_sync(self) -> None:
        """Finish :meth:`start_sync`."""
        for accumulator in accumulators_in(self.value):
            finish_sync_rmv_or_error(accumulator)


def comparable(previous: Any, tensor: Tensor) -> bool:
    """Whether there was a tensor before, of the same shape and on the same device."""
    return isinstance(previous, Tensor) and previous.shape == tensor.shape and previous.device == tensor.device
