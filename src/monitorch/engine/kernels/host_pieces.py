"""Sums over pieces of a float32 tensor that fit into the cache of one core, so that only the first read is slow.

NumPy does the work: for such pieces its calls cost less than torch's, and its comparisons are several times faster.
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

# within these bounds a sum of float32 products has neither overflowed nor lost digits that matter
LOW, HIGH = 1e-24, 1e36
LOW_PRODUCT = 1e-28


class _Scratch(local):
    """Reusable memory, separate for each thread."""

    def __init__(self) -> None:
        self.buffers: dict[str, Array] = {}

    def get(self, name: str, size: int, dtype: torch.dtype = torch.float32) -> Array:
        """An array of this size; overwrites the last one of this name."""
        buffer = self.buffers.get(name)
        if buffer is None or buffer.size < size:
            # torch aligns memory to cache lines; NumPy does not, which halves the speed of some operations
            self.buffers[name] = buffer = torch.empty(max(size, PIECE), dtype=dtype, device=HOST).numpy()
        return buffer[:size]


scratch = _Scratch()


def raw(tensor: Tensor) -> Array:
    """A view of the numbers of a tensor, or of their bits where NumPy does not know its dtype."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    array: Array = (tensor if tensor.dtype == torch.float32 else tensor.view(torch.int16)).numpy()
    return array


def widened(piece: Array, dtype: torch.dtype, name: str) -> Array:
    """A piece of raw numbers as float32, valid until the next one of this name."""
    if dtype == torch.float32:
        return piece
    wide = scratch.get(name, piece.size)
    torch.from_numpy(wide).copy_(torch.from_numpy(piece).view(dtype))
    return wide


def memory_order(strides: Sequence[int]) -> list[int]:
    """Dimensions in descending order of their strides."""
    return sorted(range(len(strides)), key=strides.__getitem__, reverse=True)


def line_up(arrays: Sequence[Array], first_leads: bool) -> list[Array] | None:
    """Arrays of one shape, flattened in memory order; None unless all are dense in the same order."""
    first = arrays[0]
    if not first.flags.c_contiguous:
        order = memory_order(first.strides)
        if first_leads and order[0] != 0:
            return None
        arrays = [array.transpose(order) for array in arrays]
    if not all(array.flags.c_contiguous for array in arrays):
        return None
    return [array.ravel() for array in arrays]


def spans(size: int, group: int, unit: int) -> Iterator[tuple[int, int]]:
    """Cut a flat array into pieces: whole groups or, if a group is too large, a number of its units."""
    if group <= PIECE:
        step = PIECE // group * group
        for start in range(0, size, step):
            yield start, min(start + step, size)
    else:
        step = max(PIECE // unit, 1) * unit
        for first in range(0, size, group):
            for start in range(first, first + group, step):
                yield start, min(start + step, first + group)


def largest(piece: Array) -> float:
    """Largest absolute value of a piece of finite numbers.

    The bits of floats are ordered like integers, negative ones by their absolute value, and integers are faster.
    """
    high: float = piece.item(piece.view(np.int32).argmax())
    low: float = piece.item(piece.view(np.uint32).argmax())
    return max(abs(high), abs(low))


def careful(piece: Array) -> tuple[float, float, int]:
    """Sum of squares, largest finite absolute value and number of non-finite elements, for any values."""
    wide = piece.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    return float(np.square(wide).sum()), float(finite.max(initial=0)), wide.size - finite.size


def product(first: Array, second: Array) -> float:
    """Sum of products."""
    fast = float(first.dot(second))
    if LOW_PRODUCT < abs(fast) < HIGH or (fast == 0 and not (first.any() and second.any())):
        return fast
    return float(np.multiply(first, second, dtype=np.float64).sum())


def squares_by_row(rows: Array) -> Array:
    """Sum of squares of every row."""
    squares: Array = np.vecdot(rows, rows) if hasattr(np, "vecdot") else np.einsum("ij,ij->i", rows, rows)
    return squares


@lru_cache
def float32_below(eps: float) -> np.float32:
    """The largest float32 not above ``eps``: float32 values compare with both in the same way."""
    with np.errstate(over="ignore"):
        rounded = np.float32(eps)
    below: np.float32 = np.nextafter(rounded, np.float32(-np.inf))
    return below if float(rounded) > eps else rounded


class Rates:
    """Counts active elements, for memory where ``channels`` follow one another, each of ``inner`` elements."""

    def __init__(self, channels: int, inner: int, eps: float) -> None:
        self.channels = self.dead = channels
        self.inner = inner
        self.period = channels * inner
        self.eps = float32_below(eps)
        self.active = 0
        self.alive = np.zeros(channels, bool)

    def add(self, piece: Array, start: int) -> float:
        """Count a piece of whole periods, or of channels of one period; returns its largest absolute value."""
        size = piece.size
        magnitude = np.abs(piece, out=scratch.get("magnitude", size))
        mask = np.greater(magnitude, self.eps, out=scratch.get("mask", size, torch.bool))
        active = int(np.count_nonzero(mask))
        self.active += active
        if active and self.dead:
            self._revive(mask, start % self.period // self.inner, active == size)
        return magnitude.item(magnitude.view(np.int32).argmax())  # type: ignore[no-any-return]

    def _revive(self, mask: Array, first: int, everything: bool) -> None:
        """Note which channels have active elements."""
        count = min(mask.size // self.inner, self.channels)
        if everything:
            self.alive[first : first + count] = True
        else:
            if mask.size > self.period:
                mask = np.logical_or.reduce(mask.reshape(-1, self.period), axis=0)
            self.alive[first : first + count] |= mask.reshape(count, -1).any(axis=1) if self.inner > 1 else mask
        self.dead = self.channels - int(np.count_nonzero(self.alive))
