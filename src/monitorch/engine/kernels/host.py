"""Rows of raw sums on the CPU: fast for dense float32, bfloat16 and float16, else by the reference.

Between two layers of a training step our code and objects are in no cache, and a line of Python takes several times as
long as in a loop. So few functions and few objects are used per tensor; for small models this is most of the cost of
watching. Large tensors are read in pieces, see :mod:`.host_pieces`.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...numerical.norms import as_dense
from ...numerical.precision import difference
from ...numerical.spread import HIGH, LOW, squares_by_row
from ..columns import (
    ACTIVE,
    ALL,
    BATCH,
    CHANNELS,
    DEAD,
    DOT,
    FOLLOWS,
    LARGEST,
    NONFINITE,
    NORMS,
    NOTHING_MORE,
    SIZE,
    SQUARES,
    UNIT,
    WIDTH,
    has,
)
from . import host_pieces, reference
from .host_pieces import Array, cuts, flags, float32_below, floats, lines, memory_order, raw, widened
from .host_sketch import Sketch

FLOAT32 = torch.float32
FAST = frozenset((FLOAT32, torch.bfloat16, torch.float16))

LOW_PRODUCT = 1e-28
"""The same as ``LOW``, for a sum of products of two tensors."""
SMALL = 1 << 14
"""Tensors up to this many elements are summed in one go."""
LOW_BATCH = 1e-16
"""If the squares of a batch sum to less, single samples may have lost precision in float32."""

Row = tuple[float, ...]
"""Numbers in the order of the columns. Costly columns that were not asked for are 0: the rates and LARGEST."""

# non-finite numbers are counted, without NumPy's warnings
_quiet = np.errstate(all="ignore")


@_quiet
def output(x: Tensor, channel_dim: int | None, eps: float, wanted: int = ALL) -> Row:
    """Row of a layer's output ``[B, ...]``; a channel none of whose numbers is larger than eps is dead."""
    row = _output(x, channel_dim, eps, wanted) if _is_fast(x) else None
    return tuple(row or reference.output(x, channel_dim, eps).tolist())


@_quiet
def geometry(x: Tensor, previous: Tensor | None, follows: bool, eps: float | None, wanted: int = ALL) -> Row:
    """Row of a tensor compared with the one before, which it replaces; with eps also the rates of its rows."""
    if _is_fast(x):
        flat = lines((x, previous), first_leads=eps is not None)
        if flat:
            now, past = flat
            channels = x.shape[0] if eps is not None and x.dim() else 1
            return tuple(_measured(now, x.dtype, wanted, None, past, follows, channels, eps))
        row = geometry(x.contiguous(), None if previous is None else previous.contiguous(), follows, eps, wanted)
    else:
        row = tuple(reference.geometry(x, previous if follows else None, eps).tolist())
    if previous is not None:
        previous.copy_(as_dense(x))
    return row


@_quiet
def lengths(tensors: Sequence[Tensor]) -> NDArray[np.float64]:
    """Rows of many tensors that are neither compared nor counted; small ones cost little more than one call each."""
    small = [x.dtype is FLOAT32 and x.numel() <= SMALL and x.is_contiguous() and not x.is_neg() for x in tensors]
    flat = [x.numpy().reshape(-1) if is_small else None for x, is_small in zip(tensors, small, strict=True)]
    squares = np.array([math.nan if line is None else line.dot(line) for line in flat], np.float64)
    rows = np.zeros((len(tensors), WIDTH))
    rows[:, UNIT], rows[:, SQUARES], rows[:, SIZE] = 1.0, squares, [x.numel() for x in tensors]
    for index in np.flatnonzero(~((squares > LOW) & (squares < HIGH))).tolist():  # also what is zero, or not finite
        rows[index] = geometry(tensors[index], None, False, None, NOTHING_MORE)
    return rows


@_quiet
def update(x: Tensor, before: Tensor, previous: Tensor | None, follows: bool, wanted: int = ALL) -> Row:
    """Row of the change from ``before`` to ``x``, compared with the previous change, which it replaces."""
    if x.dtype is FLOAT32 and _is_fast(x):
        flat = lines((x, before, previous))
        if flat:
            now, then, past = flat
            return tuple(_measured(now, FLOAT32, wanted, then, past, follows))
    return geometry(difference(as_dense(x), before), previous, follows, None, wanted)


@_quiet
def sketch(x: Tensor, state: Tensor, follows: bool, wanted: int = ALL) -> Row:
    """Row whose DOT is an estimate from sketches: the first row of ``state`` holds that of the tensor before."""
    if not _is_fast(x):
        return tuple(reference.sketch(x, state, follows).tolist())
    sums, kept = Sketch(), state.numpy()
    flat = lines((x,))
    row = _measured(flat[0] if flat else raw(x).flatten(), x.dtype, wanted, sums=sums)
    now = sums.folded()
    if follows:
        row[DOT], row[FOLLOWS] = _product(now, kept[0]), 1.0
    kept[0], kept[1] = now, 0
    return tuple(row)


@_quiet
def keep_sketch(x: Tensor, state: Tensor) -> None:
    """Keep the sketch of a parameter before a step in the second row of ``state``, which is of float64."""
    if not _is_fast(x):
        reference.keep_sketch(x, state)
        return
    np.copyto(state.numpy()[1], _wide_sketch(x))


@_quiet
def sketched_update(x: Tensor, state: Tensor, follows: bool) -> Row:
    """Row of the change since :func:`keep_sketch`, estimated; its sketch goes into the first row of ``state``."""
    if not _is_fast(x):
        return tuple(reference.sketched_update(x, state, follows).tolist())
    last, before = state.numpy()
    change = _wide_sketch(x) - before
    row = [0.0] * WIDTH
    row[UNIT], row[SIZE], row[NONFINITE], row[LARGEST] = 1.0, float(x.numel()), math.nan, math.nan
    row[SQUARES] = float(change.dot(change))
    if follows:
        row[DOT], row[FOLLOWS] = float(change.dot(last)), 1.0
    np.copyto(last, change)
    return tuple(row)


def _wide_sketch(x: Tensor) -> Array:
    """The sketch of a tensor, in float64: the difference of two may be a million times smaller than either."""
    sums, flat = Sketch(np.float64), lines((x,))
    line = flat[0] if flat else raw(x).flatten()
    for part in cuts(line.size, line.size, 1, host_pieces.PIECE):
        sums.add(line[part] if x.dtype is FLOAT32 else widened(line[part], x.dtype, 0), part.start)
    return sums.folded()


def _is_fast(x: Tensor) -> bool:
    return x.dtype in FAST and x.layout is torch.strided and not x.is_neg() and x.numel() > 0


def _measured(
    x: Array,
    dtype: torch.dtype,
    wanted: int,
    before: Array | None = None,
    previous: Array | None = None,
    follows: bool = False,
    channels: int = 1,
    eps: float | None = None,
    sums: Sketch | None = None,
) -> list[float]:
    """Row of raw numbers in a line, or of their change from ``before``; with eps the rates of channels in sequence."""
    largest = has(wanted, LARGEST)
    size = x.size
    inner = size // channels
    squares = dot = peak = 0.0
    nonfinite = active = alive = 0
    for part in cuts(size, size, 1 if eps is None else inner, host_pieces.PIECE):
        piece = kept = x[part]
        if dtype is not FLOAT32:
            piece = widened(piece, dtype, 0)
        if before is not None:
            piece = kept = np.subtract(piece, before[part], floats(piece.size))
        square, low = float(piece.dot(piece)), -math.inf
        if not (LOW < square < HIGH or (square == 0 and not piece.any())):
            square, high, bad = _careful(piece)
            peak, low = max(peak, high), math.nan
            nonfinite += bad
        elif largest:
            low = piece.item(piece.argmin())
            peak = max(peak, piece.item(piece.argmax()), -low)
        squares += square
        if eps is not None:
            is_active, count = _active(piece, eps, low)
            active += count
            if count == piece.size:
                alive += count // inner
            elif count:
                alive += np.count_nonzero(_any_by_row(is_active.reshape(-1, inner)))
        if sums is not None:
            sums.add(piece, part.start)
        if previous is not None:
            past = previous[part]
            if follows:
                dot += _product(piece, past if dtype is FLOAT32 else widened(past, dtype, 1))
            np.copyto(past, kept)
    row = [0.0] * WIDTH
    row[UNIT], row[SIZE], row[NONFINITE] = 1.0, float(size), float(nonfinite)
    row[SQUARES], row[LARGEST] = squares, peak if largest else 0.0
    if follows and previous is not None:
        row[DOT], row[FOLLOWS] = dot, 1.0
    if eps is not None:
        row[ACTIVE], row[DEAD], row[CHANNELS] = float(active), float(channels - alive), float(channels)
    return row


def _output(x: Tensor, channel_dim: int | None, eps: float, wanted: int) -> list[float] | None:
    """The row, or None if float32 is not precise enough."""
    largest = has(wanted, LARGEST)
    flat = lines((x,), first_leads=True)
    if not flat:
        x = x.contiguous()
        flat = lines((x,))
    line = flat[0]
    size, batch, dtype = line.size, x.shape[0], x.dtype
    group = size // batch
    inner, period, parts = _layout(x.shape, x.stride(), channel_dim, host_pieces.PIECE)
    channels = dead = 0 if channel_dim is None else x.shape[channel_dim]
    alive, samples = np.zeros(channels, bool), np.zeros(batch)
    active, peak = 0, 0.0
    for part in parts:
        piece, sample = line[part], part.start // group
        if dtype is not FLOAT32:
            piece = widened(piece, dtype, 0)
        if piece.size < group:
            samples[sample] += piece.dot(piece)
        else:
            rows = piece.reshape(-1, group)
            squares_by_row(rows, samples[sample : sample + len(rows)])
        low = math.nan
        if largest:
            low = piece.item(piece.argmin())
            peak = max(peak, piece.item(piece.argmax()), -low)
        if channel_dim is not None:
            is_active, count = _active(piece, eps, low)
            active += count
            if count and dead:
                if piece.size > period:
                    is_active = np.logical_or.reduce(is_active.reshape(-1, period), axis=0)
                first = part.start % period // inner
                those = alive[first : first + is_active.size // inner]
                np.logical_or(those, _any_by_row(is_active.reshape(-1, inner)), those)
                dead = channels - np.count_nonzero(alive)
    norms = np.sqrt(samples, samples)
    squares = float(norms.dot(norms))
    if not (LOW_BATCH < squares < HIGH or (squares == 0 and not line.any())):
        return None
    row = [0.0] * WIDTH
    row[UNIT], row[SIZE], row[BATCH] = 1.0, float(size), float(batch)
    row[SQUARES], row[LARGEST], row[NORMS] = squares, peak, float(np.add.reduce(norms))
    row[ACTIVE], row[DEAD], row[CHANNELS] = float(active), float(dead), float(channels)
    return row


@lru_cache(maxsize=1024)
def _layout(
    shape: tuple[int, ...], strides: tuple[int, ...], channel_dim: int | None, most: int
) -> tuple[int, int, tuple[slice, ...]]:
    """How many elements of one channel lie side by side, how many of all channels, and the pieces to read."""
    size, group = math.prod(shape), math.prod(shape[1:])
    if channel_dim is None:
        return 1, 1, cuts(size, group, 1, most)
    order = memory_order(strides)
    inner = math.prod([shape[dim] for dim in order[order.index(channel_dim % len(shape)) + 1 :]])
    period = shape[channel_dim] * inner
    return inner, period, cuts(size, group, inner if period == group else period, most)


def _careful(piece: Array) -> tuple[float, float, int]:
    """Sum of squares, largest finite absolute value and how many are not finite, for any numbers."""
    wide = piece.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    return float(np.square(wide).sum()), float(finite.max(initial=0)), wide.size - finite.size


def _product(first: Array, second: Array) -> float:
    """Sum of products."""
    fast = float(first.dot(second))
    if LOW_PRODUCT < abs(fast) < HIGH or (fast == 0 and not (first.any() and second.any())):
        return fast
    return float(np.multiply(first, second, dtype=np.float64).sum())


def _active(piece: Array, eps: float, low: float) -> tuple[Array, int]:
    """Which elements are larger than eps in absolute value, and how many.

    ``low`` is the smallest element, or NaN if there may be NaN.
    """
    above, below = _bounds(eps)
    active = flags(piece.size, 0)
    if eps == 0 and low < 0:
        np.not_equal(piece, above, active)
    else:
        np.greater(piece, above, active)
        if not low >= -eps:
            np.logical_or(active, np.less(piece, below, flags(piece.size, 1)), active)
    return active, int(np.count_nonzero(active))


@lru_cache
def _bounds(eps: float) -> tuple[Array, Array]:
    """The float32 thresholds that replace eps and -eps; NumPy compares fastest with arrays."""
    below = float32_below(eps)
    return np.array(below), np.array(-below)


def _any_by_row(rows: Array) -> Array:
    """Which rows contain a True; finding the first one is faster than ``any``."""
    first: Array = rows[:, 0]
    return first if rows.shape[1] == 1 else np.logical_or(first, rows.argmax(axis=1))
