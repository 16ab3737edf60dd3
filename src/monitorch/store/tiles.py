"""Numbers of many ticks as blobs, and their summaries over 16 and 256 ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .types import Floats

TILE_LAYERS = 64
BLOCK_TICKS = 256
BLOCK_BYTES = 16 * 2**20
"""A block of ticks is sealed early if it would take more bytes than this."""

WIDTHS = (1, 16, 256)
"""Ticks per column of each level."""

_ABSENT_BITS = 0x7FC5_A9E3  # a quiet NaN that no computation produces


def absent(shape: Sequence[int]) -> Floats:
    """An array of numbers that were not measured."""
    return np.full(shape, _ABSENT_BITS, np.uint32).view(np.float32)


def is_absent(values: Floats) -> NDArray[np.bool_]:
    """Which numbers were not measured. They are NaN, but differ from a measured NaN.

    >>> is_absent(np.float32([1, np.nan, np.inf])).tolist(), is_absent(absent([2])).tolist()
    ([False, False, False], [True, True])
    """
    return np.equal(values.view(np.uint32), _ABSENT_BITS)


def block_ticks(numbers: int) -> int:
    """How many ticks a block has if each tick has this many numbers: a multiple of 16.

    >>> block_ticks(2_000), block_ticks(100_000)
    (256, 32)
    """
    fitting = BLOCK_BYTES // (4 * max(numbers, 1))
    return min(BLOCK_TICKS, max(16, fitting // 16 * 16))


class Columns(NamedTuple):
    """Summaries of ticks, along the last axis.

    ``numbers[0]``, ``[1]`` and ``[2]`` are mean, minimum and maximum of the finite numbers, NaN if there is none;
    ``counts[0]`` is how many were finite, ``counts[1]`` how many were not.
    """

    numbers: Floats
    counts: NDArray[np.integer[Any]]

    def take(self, which: Any) -> Columns:
        """Some of the columns."""
        return Columns(self.numbers[..., which], self.counts[..., which])

    def totals(self) -> NDArray[np.int64]:
        """The sum of the finite numbers of each column, for whole numbers."""
        known = self.counts[0] > 0
        means = np.where(known, self.numbers[0], 0).astype(np.float64)
        return np.asarray(np.rint(means * self.counts[0]), np.int64)

    def to_bytes(self) -> bytes:
        """The blob of a tile."""
        return self.numbers.tobytes() + self.counts.astype(np.uint16).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, count: int) -> Columns:
        """Read the blob of a tile with this many columns."""
        cells = len(data) // (3 * 4 + 2 * 2)
        counts = np.frombuffer(data, np.uint16, 2 * cells, offset=12 * cells)
        return cls(np.frombuffer(data, np.float32, 3 * cells).reshape(3, -1, count), counts.reshape(2, -1, count))

    @classmethod
    def single(cls, values: Floats) -> Columns:
        """Each number as its own column, infinite ones as they are."""
        numbers = np.broadcast_to(values, (3, *values.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(values.sum()):  # much faster than checking each
                ones = np.broadcast_to(np.array([1, 0], np.uint8).reshape(2, *(1,) * values.ndim), (2, *values.shape))
                return cls(numbers, ones)
        finite = np.isfinite(values)
        return cls(numbers, np.stack([finite, ~finite & ~is_absent(values)]).view(np.uint8))


def summarise(values: Floats, width: int) -> Columns:
    """Every ``width`` numbers of the last axis become one column; the last one may cover fewer.

    >>> summarise(np.float32([1, 3, np.inf, 5, 7]), 2).numbers[0]
    array([2., 5., 7.], dtype=float32)
    """
    groups = _grouped(values, width, absent)
    known = np.isfinite(groups)
    if known.all():
        total, low, high = _fold(np.add, groups, np.float64), _fold(np.minimum, groups), _fold(np.maximum, groups)
        counts = np.zeros((2, *total.shape), np.uint16)
        counts[0] = width
        return Columns(np.stack([(total / width).astype(np.float32), low, high]), counts)
    finite = _fold(np.add, known, np.uint16)
    nonfinite = width - finite - _fold(np.add, is_absent(groups), np.uint16)
    total = _fold(np.add, np.where(known, groups, 0), np.float64)
    low, high = (np.where(known, groups, np.float32(limit)) for limit in (np.inf, -np.inf))
    return _columns(total, _fold(np.minimum, low), _fold(np.maximum, high), np.stack([finite, nonfinite]))


def merge(columns: Columns, group: int) -> Columns:
    """Every ``group`` columns become one."""
    if group == 1:
        return columns
    mean, low, high = _grouped(columns.numbers, group, absent)
    counts = _grouped(columns.counts, group, np.zeros)
    finite, known = counts[0].astype(np.float64), counts[0] > 0
    if not known.all():
        mean = np.where(known, mean, 0)
        low, high = np.where(known, low, np.float32(np.inf)), np.where(known, high, np.float32(-np.inf))
    total = _fold(np.add, mean * finite)
    return _columns(total, _fold(np.minimum, low), _fold(np.maximum, high), _fold(np.add, counts, np.int32))


def join(parts: Sequence[Columns]) -> Columns:
    """Columns one after the other."""
    return Columns(*(np.concatenate(arrays, -1) for arrays in zip(*parts, strict=True)))


def _fold(operation: np.ufunc, groups: NDArray[Any], kind: Any = None) -> NDArray[Any]:
    """Reduce the last axis. NumPy is slow at this if the axis is short and contiguous."""
    if groups.strides[-1] > groups.itemsize:
        return np.asarray(operation.reduce(groups, -1, dtype=kind))
    folded = groups[..., 0].astype(kind or groups.dtype)
    for number in range(1, groups.shape[-1]):
        operation(folded, groups[..., number], out=folded, dtype=kind)
    return folded


def _grouped(array: NDArray[Any], width: int, filling: Any) -> NDArray[Any]:
    missing = -array.shape[-1] % width
    if missing:
        array = np.concatenate([array, filling((*array.shape[:-1], missing)).astype(array.dtype)], -1)
    return array.reshape(*array.shape[:-1], array.shape[-1] // width, width)


def _columns(total: NDArray[np.float64], low: Floats, high: Floats, counts: NDArray[np.integer[Any]]) -> Columns:
    """NaN where there is no finite number."""
    known = counts[0] > 0
    numbers = np.full((3, *total.shape), np.nan, np.float32)
    np.divide(total, counts[0], out=numbers[0], where=known, casting="same_kind")
    for row, edge in zip(numbers[1:], (low, high), strict=True):
        np.copyto(row, edge, where=known)
    return Columns(numbers, counts)
