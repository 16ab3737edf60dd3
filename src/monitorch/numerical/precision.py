"""Which dtype sums are done in, and where the host is."""

import torch
from torch import Tensor

HOST = torch.device("cpu")
"""Named wherever a tensor is made on the host: a program may have another default device."""


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Float64, or float32 on a device that has no float64."""
    return wide_dtype_of(tensor.device)


def wide_dtype_of(device: torch.device) -> torch.dtype:
    """The same for tensors that are still to be made."""
    return torch.float32 if device.type == "mps" else torch.float64
