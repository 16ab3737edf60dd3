"""Memory of CPU tensors as flat arrays, and the pieces in which it is read.

A piece is small enough to stay in a cache while several sums are taken, so that only the first read is slow. NumPy does
the work: for such pieces its calls cost less than torch's, and its comparisons are several times faster.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...numerical.precision import HOST

Array = NDArray[Any]

PIECE = 1 << 16
"""Elements per piece: a few arrays of this size fit into the cache of one core."""


class _Scratch(local):
    """Reusable memory for pieces, separate for each thread."""

    def __init__(self) -> None:
        # torch aligns memory to cache lines; NumPy does not, which halves the speed of some operations
        self.floats = [torch.empty(PIECE, dtype=torch.float32, device=HOST).numpy() for _ in range(2)]
        self.flags = [torch.empty(PIECE, dtype=torch.bool, device=HOST).numpy() for _ in range(2)]


_scratch = _Scratch()


def floats(size: int, index: int = 0) -> Array:
    """Memory for a piece; overwrites the last one of this index."""
    return _scratch.floats[index][:size] if size <= PIECE else np.empty(size, np.float32)


def flags(size: int, index: int) -> Array:
    """Memory for a mask; overwrites the last one of this index."""
    return _scratch.flags[index][:size] if size <= PIECE else np.empty(size, bool)


def raw(tensor: Tensor) -> Array:
    """A view of the numbers of a tensor, or of their bits where NumPy does not know its dtype."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    array: Array = (tensor if tensor.dtype is torch.float32 else tensor.view(torch.int16)).numpy()
    return array


def widened(piece: Array, dtype: torch.dtype, index: int) -> Array:
    """A piece of raw short floats as float32, valid until the next one of this index."""
    wide = floats(piece.size, index)
    torch.from_numpy(wide).copy_(torch.from_numpy(piece).view(dtype))
    return wide


@lru_cache(maxsize=1024)
def memory_order(strides: tuple[int, ...]) -> list[int]:
    """Dimensions in descending order of their strides."""
    return sorted(range(len(strides)), key=strides.__getitem__, reverse=True)


def lines(tensors: Sequence[Tensor | None], first_leads: bool = False) -> list[Any]:
    """Raw tensors of one shape, flattened in memory order; an empty list unless all are dense in the same order."""
    flat: list[Array | None] = []
    order = None
    for tensor in tensors:
        if tensor is None:
            flat.append(None)
            continue
        array = raw(tensor)
        if not flat and not array.flags.c_contiguous:
            order = memory_order(array.strides)
            if first_leads and order[0] != 0:
                return []
        if order is not None:
            array = array.transpose(order)
        if not array.flags.c_contiguous:
            return []
        flat.append(array.ravel())
    return flat


@lru_cache(maxsize=1024)
def cuts(size: int, group: int, unit: int, most: int) -> tuple[slice, ...]:
    """Cut a flat array into pieces: whole groups or, if one is larger than ``most``, some of its units.

    >>> cuts(12, 4, 1, most=8)
    (slice(0, 8, None), slice(8, 12, None))
    >>> cuts(12, 6, 2, most=4)
    (slice(0, 4, None), slice(4, 6, None), slice(6, 10, None), slice(10, 12, None))
    """
    return tuple(_cut(size, group, unit, most))


def _cut(size: int, group: int, unit: int, most: int) -> Iterator[slice]:
    if group <= most:
        step = most // group * group
        for start in range(0, size, step):
            yield slice(start, min(start + step, size))
    else:
        step = max(most // unit, 1) * unit
        for first in range(0, size, group):
            for start in range(first, first + group, step):
                yield slice(start, min(start + step, first + group))


@lru_cache
def float32_below(eps: float) -> np.float32:
    """The largest float32 not above ``eps``: float32 values compare with both in the same way."""
    with np.errstate(over="ignore"):
        rounded = np.float32(eps)
    below: np.float32 = np.nextafter(rounded, np.float32(-np.inf))
    return below if float(rounded) > eps else rounded
