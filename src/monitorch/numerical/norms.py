"""Length of a tensor and angle between two, correct for every dtype and scale, without waiting for the GPU."""

import torch
from torch import Tensor

from .precision import wide_dtype

CPU_CHUNK = 1 << 16
"""Elements summed at a time on a CPU: as many as fit into its cache. On other devices it only limits memory."""
CHUNK = 1 << 24

# within these bounds a sum of float32 products has neither overflowed nor lost digits that matter
SAFE_FLOAT32 = 1e-24, 1e36


def as_dense(tensor: Tensor) -> Tensor:
    """The same numbers as a dense tensor without a graph."""
    tensor = tensor.detach()
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
    if tensor.dtype == torch.float64:
        unit = _unit(tensor)
        return _norm(tensor / unit) * unit
    if _is_host_float32(tensor):
        square = _inner_product(tensor, tensor, torch.float32)
        if _is_safe(square):
            return square.sqrt()
    return _norm(tensor)


def cosine(first: Tensor, first_norm: Tensor, second: Tensor, second_norm: Tensor) -> Tensor:
    """Cosine of the angle between two tensors of one shape, given their lengths; 0 if one length is 0."""
    if first.dtype == torch.float64:
        return _inner_product(first / _not_zero(first_norm), second / _not_zero(second_norm))
    lengths = first_norm * second_norm
    fast = _is_host_float32(first) and _is_host_float32(second) and _is_safe(lengths)
    return _inner_product(first, second, torch.float32 if fast else None) / _not_zero(lengths)


def _norm(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=wide_dtype(tensor))
    return norm


def _not_zero(length: Tensor) -> Tensor:
    """The length, or the smallest positive number: dividing 0 by it gives 0."""
    limits = torch.finfo(length.dtype)
    return length.clamp(min=limits.smallest_normal * limits.eps)


def _inner_product(first: Tensor, second: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Sum of products: pieces are summed in ``dtype`` (by default the widest), and the pieces added in the widest."""
    size = CPU_CHUNK if first.device.type == "cpu" else CHUNK
    wide = wide_dtype(first)
    pieces = zip(torch.split(first.reshape(-1), size), torch.split(second.reshape(-1), size), strict=True)
    parts = [torch.dot(a.to(dtype or wide), b.to(dtype or wide)) for a, b in pieces]
    return parts[0].to(wide) if len(parts) == 1 else torch.stack(parts).to(wide).sum()


def _unit(tensor: Tensor) -> Tensor:
    """The unit for a float64 tensor in which squares neither overflow nor underflow."""
    largest = tensor.abs().max() if tensor.numel() else tensor.new_zeros(())
    return largest.where((largest > 0) & largest.isfinite(), 1.0)


def _is_host_float32(tensor: Tensor) -> bool:
    """Whether to try float32 sums: on a CPU they are several times faster, and checking one is cheap."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _is_safe(number: Tensor) -> bool:
    low, high = SAFE_FLOAT32
    return bool(low < number.numpy() < high)
