"""Where memory that outlives a pass comes from."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
    torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))
    return tensor


def is_capturing(device: torch.device) -> bool:
    """Whether what is launched now is only recorded, to be run later any number of times."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
