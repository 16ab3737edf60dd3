"""Which dtype sums are computed in, and the CPU device."""

import torch
from torch import Tensor

HOST = torch.device("cpu")
"""Passed wherever a CPU tensor is made: a program may have another default device."""

UNIT_DTYPES = frozenset((torch.float64, torch.complex128))
"""Dtypes whose squares may overflow float64: their tensors are measured in their own unit."""


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Float64, or float32 on a device that has no float64."""
    return wide_dtype_of(tensor.device)


def computable(tensor: Tensor) -> Tensor:
    """The same numbers in a dtype that torch computes in: floats of 8 bits can only be converted.

    >>> computable(torch.ones(1).to(torch.float8_e5m2)).dtype, computable(torch.ones(1).half()).dtype
    (torch.float32, torch.float16)
    """
    return tensor.to(torch.float32) if tensor.is_floating_point() and tensor.dtype.itemsize < 2 else tensor


def full_dtype(dtype: torch.dtype) -> torch.dtype:
    """Float32 for shorter floats, which would round what is computed in them; other dtypes as they are."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def in_full(tensor: Tensor) -> Tensor:
    """The same numbers in their full dtype.

    >>> in_full(torch.ones(1, dtype=torch.bfloat16)).dtype, in_full(torch.ones(1, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return tensor.to(full_dtype(tensor.dtype))


def difference(now: Tensor, before: Tensor) -> Tensor:
    """How far ``before`` is from ``now``."""
    dtype = full_dtype(now.dtype)
    return now.detach().to(dtype) - before.detach().to(dtype)


def wide_dtype_of(device: torch.device) -> torch.dtype:
    """The same for a device, before tensors are made."""
    return torch.float32 if device.type == "mps" else torch.float64
