"""Where memory that outlives a pass comes from."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


def lasting(make: Callable[[], Tensor], device: torch.device, *, in_graph: bool) -> Tensor:
    """A tensor from ``make`` that may be kept, whoever calls.

    A compiled model may run with a memory pool of its own before it is captured into a CUDA graph, and what comes from
    that pool must not stay. The pool belongs to the thread, so another one allocates.
    """
    if not in_graph or device.type != "cuda":
        return make()
    with ThreadPoolExecutor(max_workers=1) as elsewhere:
        tensor = elsewhere.submit(make).result()
        if is_capturing(device):  # the graph cannot wait for what is not part of it
            elsewhere.submit(torch.cuda.default_stream(device).synchronize).result()
        else:
            torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))
    return tensor


def is_like(kept: Tensor | None, tensor: Tensor) -> bool:
    """Whether ``tensor`` can be copied into what was kept before."""
    return kept is not None and _kind(kept) == _kind(tensor)


def renewed(kept: Tensor | None, tensor: Tensor) -> Tensor:
    """A copy of ``tensor``, in the memory of the one before if that fits: allocating is slow."""
    if kept is None or not is_like(kept, tensor):
        return tensor.detach().clone()
    return kept.copy_(tensor.detach())


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    stride = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout, stride


def is_capturing(device: torch.device) -> bool:
    """Whether what is launched now is only recorded, to be run later any number of times."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
