"""Length of a tensor, and the angle to the one before."""

import math
from typing import Any

import torch
from torch import Tensor

from .accumulator import accumulators_in, new_accumulator
from .precision import wide_dtype
from .running_mean_var import finish_sync_rmv_or_error, start_sync_rmv_or_error

CHUNK = 1 << 22
"""Elements converted to float64 at a time: bounds the memory of a dot product."""


def as_real(tensor: Tensor) -> Tensor:
    """The same numbers as a dense, real tensor without a graph."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor if tensor.is_floating_point() else tensor.to(wide_dtype(tensor))


def l2_norm(tensor: Tensor) -> Tensor:
    """Euclidean length in float64 of a tensor of any dtype and scale."""
    if tensor.dtype != torch.float64:
        norm: Tensor = torch.linalg.vector_norm(tensor, dtype=wide_dtype(tensor))
        return norm
    # squares of float64 numbers may over- or underflow: measure in units of the largest one
    unit = tensor.abs().max() if tensor.numel() else tensor.new_zeros(())
    safe = unit.where((unit > 0) & unit.isfinite(), 1.0)
    scaled: Tensor = torch.linalg.vector_norm(tensor / safe)
    return scaled * safe


def cosine(first: Tensor, first_norm: Tensor, second: Tensor, second_norm: Tensor) -> Tensor:
    """Cosine of the angle between two tensors of one shape; 0 where one of them is 0."""
    pairs = zip(torch.split(first.reshape(-1), CHUNK), torch.split(second.reshape(-1), CHUNK), strict=True)
    parts = [torch.dot(a.to(wide_dtype(a)) / first_norm, b.to(wide_dtype(b)) / second_norm) for a, b in pairs]
    total = torch.stack(parts).sum()
    return total.where((first_norm != 0) & (second_norm != 0), 0.0)


class GeometryComputation:
    """Accumulates norms and, if wanted, correlations of consecutive tensors.

    The first tensor has correlation 0. A tensor of another shape than the one before, or one after :meth:`interrupt`,
    has none.

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
        """Forget the last tensor: the next one does not follow it."""
        if self.correlation and isinstance(self.prev_value, Tensor):
            self.prev_value = None

    @torch.no_grad()
    def update(self, tensor: Tensor) -> None:
        """Add one tensor."""
        tensor = as_real(tensor)
        norm = l2_norm(tensor)
        self.norm.append(norm / math.sqrt(max(tensor.numel(), 1)) if self.normalize else norm)
        if self.correlation:
            self._correlate(tensor, norm)

    def _correlate(self, tensor: Tensor, norm: Tensor) -> None:
        previous = self.prev_value
        if isinstance(previous, float):
            self.product.append(0.0)
        elif _comparable(previous, tensor):
            similarity = cosine(previous, self.prev_norm, tensor, norm)
            if self.eps:
                lengths = self.prev_norm * norm
                similarity = similarity * (lengths / (lengths + self.eps))
            self.product.append(similarity)
        if _comparable(previous, tensor) and previous.dtype == tensor.dtype:
            previous.copy_(tensor)
        else:
            self.prev_value = tensor.clone()
        self.prev_norm = norm

    def start_sync(self, dst_rank: int = 0) -> None:
        """Begin to merge with the other ranks."""
        for accumulator in accumulators_in(self.value):
            start_sync_rmv_or_error(accumulator, dst_rank)

    def finish_sync(self) -> None:
        """Finish :meth:`start_sync`."""
        for accumulator in accumulators_in(self.value):
            finish_sync_rmv_or_error(accumulator)


def _comparable(previous: Any, tensor: Tensor) -> bool:
    return isinstance(previous, Tensor) and previous.shape == tensor.shape and previous.device == tensor.device
