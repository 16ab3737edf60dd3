"""Length of a tensor, correct for every dtype and scale, without waiting for the GPU."""

import torch
from torch import Tensor

from .precision import computable, wide_dtype


def as_dense(tensor: Tensor) -> Tensor:
    """The same numbers as a dense tensor without a graph."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def as_real(tensor: Tensor) -> Tensor:
    """The same numbers as a dense tensor of real floating-point numbers without a graph."""
    tensor = as_dense(tensor)
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.is_floating_point() else tensor.to(wide_dtype(tensor))


def l2_norm(tensor: Tensor) -> Tensor:
    """Euclidean length, in float64.

    >>> l2_norm(torch.tensor([3e-30, 4e-30]))
    tensor(5.0000e-30, dtype=torch.float64)
    """
    if tensor.dtype != torch.float64:
        return _norm(tensor)
    largest = tensor.abs().max() if tensor.numel() else tensor.new_zeros(())
    unit = largest.where((largest > 0) & largest.isfinite(), 1.0)  # in which squares neither overflow nor underflow
    return _norm(tensor / unit) * unit


def _norm(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(computable(tensor), dtype=wide_dtype(tensor))
    return norm
