"""Allocates memory that outlives a pass, and limits how much of it copies may take."""

import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

MOST_COPIES = 64 << 20
"""The most bytes that copies kept for comparison may take together, unless the user asked for exact comparison."""
SHARE_OF_MEMORY = 0.01
"""And the share of their device's memory."""


class Allowance:
    """Limits the memory for copies. A meter that does not fit uses a sketch instead."""

    def __init__(self) -> None:
        self._held: dict[Any, tuple[int, torch.device]] = {}
        self.taken: defaultdict[torch.device, int] = defaultdict(int)
        """Bytes of all copies, by device."""

    def has_room(self, size: int, device: torch.device) -> bool:
        """Whether a copy of this many bytes may be made."""
        together, there = sum(self.taken.values()) + size, self.taken[device] + size
        return together <= MOST_COPIES and there <= SHARE_OF_MEMORY * memory_of(device)

    def hold(self, owner: Any, size: int, device: torch.device) -> None:
        """Note that the copies of an owner now take this many bytes."""
        self.release(owner)
        self._held[owner] = size, device
        self.taken[device] += size

    def release(self, owner: Any) -> None:
        """Note that an owner has no copies any more."""
        size, device = self._held.pop(owner, (0, None))
        if device is not None:
            self.taken[device] -= size


@lru_cache(maxsize=64)
def memory_of(device: torch.device) -> int:
    """The memory of a device in bytes; a device that does not report it is taken to share the host's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on this system
        return MOST_COPIES * 100


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
