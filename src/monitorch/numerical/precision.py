"""Which dtype sums are done in."""

import torch
from torch import Tensor


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Float64, or float32 on a device that has no float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
