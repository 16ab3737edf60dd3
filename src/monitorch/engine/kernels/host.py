"""Rows of raw sums on the CPU: fast for dense float32, bfloat16 and float16, else by the reference."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...numerical.norms import as_dense
from ...numerical.precision import difference
from . import reference
from .host_pieces import (
    HIGH,
    LOW,
    Array,
    Rates,
    careful,
    largest,
    line_up,
    memory_order,
    product,
    raw,
    scratch,
    spans,
    squares_by_row,
    widened,
)
from .host_sketch import Sketch

FAST = frozenset((torch.float32, torch.bfloat16, torch.float16))

LOW_BATCH = 1e-16
"""If the squares of a batch sum up to less, samples may have lost digits in float32."""

Row = tuple[float, ...]

# non-finite numbers are counted, without NumPy's warnings
_quiet = np.errstate(all="ignore")


def output(x: Tensor, channel_dim: int | None, eps: float) -> Row:
    """Row of a layer's output ``[B, ...]``; a channel none of whose numbers is larger than eps is dead."""
    row = _output(x, channel_dim, eps) if _is_fast(x) else None
    return row or tuple(reference.output(x, channel_dim, eps).tolist())


def geometry(x: Tensor, previous: Tensor | None, follows: bool, eps: float | None) -> Row:
    """Row of a tensor compared with the one before, which it replaces; with eps also the rates of its rows."""
    if not _is_fast(x):
        row = tuple(reference.geometry(x, previous if follows else None, eps).tolist())
    else:
        lines = line_up([raw(x)] if previous is None else [raw(x), raw(previous)], eps is not None)
        if lines:
            rates = None if eps is None else Rates(len(x) if x.dim() else 1, math.prod(x.shape[1:]), eps)
            return _geometry(lines, x.dtype, follows, rates)
        row = geometry(x.contiguous(), None if previous is None else previous.contiguous(), follows, eps)
    if previous is not None:
        previous.copy_(as_dense(x))
    return row


def update(x: Tensor, before: Tensor, previous: Tensor | None, follows: bool) -> Row:
    """Row of the change from ``before`` to ``x``, compared with the previous change, which it replaces."""
    if x.dtype == torch.float32 and _is_fast(x):
        lines = line_up([raw(tensor) for tensor in (x, before, previous) if tensor is not None], False)
        if lines:
            return _update(lines, follows)
    return geometry(difference(as_dense(x), before), previous, follows, None)


def sketch(x: Tensor, state: Tensor, follows: bool) -> Row:
    """Row whose DOT is an estimate from sketches: the first row of ``state`` holds that of the tensor before."""
    if not _is_fast(x):
        return tuple(reference.sketch(x, state, follows).tolist())
    x = x.detach()
    array = raw(x)
    lines = line_up([array], False)
    return _sketch(lines[0] if lines else array.flatten(), x.dtype, state.numpy(), follows)


def _is_fast(x: Tensor) -> bool:
    return x.dtype in FAST and x.layout == torch.strided and not x.is_neg() and x.numel() > 0


@_quiet
def _output(x: Tensor, channel_dim: int | None, eps: float) -> Row | None:
    """The row, or None if float32 is not precise enough."""
    array = raw(x)
    lines = line_up([array], True)
    if lines is None:
        array = np.ascontiguousarray(array)
        lines = [array.ravel()]
    batch, size = len(array), array.size
    group, unit = size // batch, 1
    rates = None
    if channel_dim is not None:
        rates = Rates(array.shape[channel_dim], _inner(array.shape, array.strides, channel_dim), eps)
        unit = rates.inner if rates.period == group else rates.period
    squares = np.zeros(batch)
    top = 0.0
    for start, stop in spans(size, group, unit):
        piece = widened(lines[0][start:stop], x.dtype, "x")
        if stop - start < group:
            squares[start // group] += piece.dot(piece)
        else:
            squares[start // group : stop // group] = squares_by_row(piece.reshape(-1, group))
        top = max(top, rates.add(piece, start) if rates else largest(piece))
    total = float(squares.sum())
    if not (LOW_BATCH < total < HIGH or total == top == 0):
        return None
    return _row(total, 0.0, False, size, 0, top, rates, float(np.sqrt(squares).sum()), batch)


@_quiet
def _geometry(lines: list[Array], dtype: torch.dtype, follows: bool, rates: Rates | None) -> Row:
    x, *rest = lines
    squares = dot = 0.0
    tops: list[float] = []
    nonfinite = 0
    for start, stop in spans(x.size, x.size, rates.inner if rates else 1):
        piece = widened(x[start:stop], dtype, "x")
        square, top, bad = _length(piece, rates.add(piece, start) if rates else largest(piece))
        squares += square
        tops.append(top)
        nonfinite += bad
        for previous in rest:
            if follows:
                dot += product(piece, widened(previous[start:stop], dtype, "previous"))
            previous[start:stop] = x[start:stop]
    return _row(squares, dot, follows and bool(rest), x.size, nonfinite, max(tops), rates)


@_quiet
def _update(lines: list[Array], follows: bool) -> Row:
    x, before, *rest = lines
    squares = dot = 0.0
    tops: list[float] = []
    nonfinite = 0
    for start, stop in spans(x.size, x.size, 1):
        now, then = x[start:stop], before[start:stop]
        piece = np.subtract(now, then, out=scratch.get("x", stop - start))
        square, top, bad = _length(piece, largest(piece))
        squares += square
        tops.append(top)
        nonfinite += bad
        for previous in rest:
            if follows:
                dot += product(piece, previous[start:stop])
            previous[start:stop] = piece
    return _row(squares, dot, follows and bool(rest), x.size, nonfinite, max(tops))


@_quiet
def _sketch(x: Array, dtype: torch.dtype, state: Array, follows: bool) -> Row:
    squares = dot = 0.0
    tops: list[float] = []
    nonfinite = 0
    sketch = Sketch()
    for start, stop in spans(x.size, x.size, 1):
        piece = widened(x[start:stop], dtype, "x")
        square, top, bad = _length(piece, largest(piece))
        squares += square
        tops.append(top)
        nonfinite += bad
        sketch.add(piece, start)
    now = sketch.folded()
    if follows:
        dot = product(now, state[0])
    state[0] = now
    state[1] = 0
    return _row(squares, dot, follows, x.size, nonfinite, max(tops))


def _length(piece: Array, top: float) -> tuple[float, float, int]:
    """Sum of squares, largest absolute value and number of non-finite elements."""
    square = float(piece.dot(piece))
    if LOW < square < HIGH or square == top == 0:
        return square, top, 0
    return careful(piece)


@lru_cache(maxsize=1024)
def _inner(shape: tuple[int, ...], strides: tuple[int, ...], channel_dim: int) -> int:
    """How many elements of one channel are adjacent in memory."""
    order = memory_order(strides)
    place = order.index(channel_dim % len(shape))
    return math.prod([shape[dim] for dim in order[place + 1 :]])


def _row(
    squares: float,
    dot: float,
    follows: bool,
    size: int,
    nonfinite: int,
    largest: float,
    rates: Rates | None = None,
    norms: float = 0.0,
    batch: int = 0,
) -> Row:
    active, dead, channels = (rates.active, rates.dead, rates.channels) if rates else (0, 0, 0)
    return tuple(map(float, (squares, dot, 1, follows, norms, batch, active, dead, channels, size, nonfinite, largest)))
