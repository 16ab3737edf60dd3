"""Allocates memory that is kept longer than one pass."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor


def lasting(make: Callable[[], Tensor], device: torch.device, *, in_graph: bool) -> Tensor:
    """A tensor from ``make`` that may be kept, even if a compiled model calls this.

    A compiled model may run with its own memory pool before it is captured into a CUDA graph, and tensors from that
    pool must not be kept. The pool belongs to the thread, so another thread allocates.
    """
    if not in_graph or device.type != "cuda":
        return make()
    with ThreadPoolExecutor(max_workers=1) as elsewhere:
        tensor = elsewhere.submit(make).result()
        if is_capturing(device):  # a captured graph cannot wait for work outside of it
            elsewhere.submit(torch.cuda.default_stream(device).synchronize).result()
        else:
            torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))
    return tensor


def is_like(kept: Tensor | None, tensor: Tensor) -> bool:
    """Whether ``tensor`` can be copied into ``kept``."""
    if kept is None or kept.shape != tensor.shape or kept.dtype is not tensor.dtype or kept.layout is not tensor.layout:
        return False
    return kept.device == tensor.device and (kept.layout is not torch.strided or kept.stride() == tensor.stride())


def renewed(kept: Tensor | None, tensor: Tensor) -> Tensor:
    """A copy of ``tensor``, in the memory of the last one if it fits: allocating is slow."""
    if kept is None or not is_like(kept, tensor):
        return tensor.detach().clone()
    return kept.copy_(tensor.detach())


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
