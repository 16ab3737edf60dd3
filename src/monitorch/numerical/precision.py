"""Which dtype sums are done in, and where the host is."""

import torch
from torch import Tensor

HOST = torch.device("cpu")
"""Named wherever a tensor is made on the host: a program may have another default device."""

UNIT_DTYPES = frozenset((torch.float64, torch.complex128))
"""Dtypes whose squares may leave float64: tensors of them are measured in a unit of their own."""


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Float64, or float32 on a device that has no float64."""
    return wide_dtype_of(tensor.device)


def difference_dtype(tensor: Tensor) -> torch.dtype:
    """What differences of such tensors are computed and kept in: short floats would round them."""
    return torch.float32 if tensor.is_floating_point() and tensor.element_size() < 4 else tensor.dtype


def difference(now: Tensor, before: Tensor) -> Tensor:
    """How far ``before`` is from ``now``."""
    dtype = difference_dtype(now)
    return now.detach().to(dtype) - before.detach().to(dtype)


def wide_dtype_of(device: torch.device) -> torch.dtype:
    """The same for tensors that are still to be made."""
    return torch.float32 if device.type == "mps" else torch.float64
