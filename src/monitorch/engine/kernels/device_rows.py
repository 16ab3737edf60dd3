"""The kernel for outputs with many small samples, each of them a row that fits into a tile."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
from __future__ import annotations

from .device import LARGEST, NONFINITE, SQUARES, pointer, raise_largest, usual
from .device_output import ACTIVE, NORMS, PROGRAM, WHOLE, finish, load_tile, mark_channels
from .triton_import import jit, tl


@jit
def exact_rows(source, down, along, height, width, stride, steps, HEIGHT: tl.constexpr, EVEN: tl.constexpr):
    """Squares and norms of rows in float64, how many elements are not finite, and the largest of the others."""
    squares = tl.zeros([HEIGHT], tl.float64)
    norms = tl.zeros([HEIGHT], tl.float64)
    broken = tl.full((), 0, tl.int32)
    largest = tl.full((), 0.0, tl.float32)
    for _step in range(steps):
        tile = load_tile(source, down, along, height, width, stride, EVEN)
        wide = tile.to(tl.float64)
        sums = tl.sum(wide * wide, axis=1)
        squares += sums
        norms += tl.sqrt(sums)
        finite = tl.abs(tile) < float("inf")
        broken += tl.sum(tl.sum(finite.to(tl.int32) ^ 1, axis=1))
        largest = tl.maximum(largest, tl.max(tl.max(tl.where(finite, tl.abs(tile), 0.0), axis=1)))
        source += HEIGHT * stride
        height -= HEIGHT
    return tl.sum(squares), tl.sum(norms), broken, largest


@jit(do_not_specialize=["x", "scratch", "row", "eps", "batch", "length", "steps"])
def rows_kernel(
    x: tl.int64,
    scratch: tl.int64,
    row: tl.int64,
    eps: tl.float32,
    batch: tl.int64,
    length: tl.int64,
    steps: tl.int32,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    FLAGS: tl.constexpr,
    EVEN: tl.constexpr,
    HEIGHT: tl.constexpr,
    BREADTH: tl.constexpr,
):
    """A matrix ``batch`` by ``length`` whose rows are samples; a program reads ``steps`` tiles of whole rows."""
    top = tl.program_id(0).to(tl.int64) * HEIGHT * steps
    base = pointer(x, DTYPE, ALIGNED) + top * length
    height = tl.minimum(batch - top, HEIGHT * steps).to(tl.int32)
    width = length.to(tl.int32)
    stride = length.to(tl.int32)
    if ALIGNED:  # rows begin and end at multiples of 16 elements
        base = tl.multiple_of(base, 16)
        width = tl.multiple_of(width, 16)
        stride = tl.multiple_of(stride, 16)
    down = tl.arange(0, HEIGHT)
    along = tl.arange(0, BREADTH)
    tops = tl.zeros([HEIGHT, BREADTH], tl.float32)
    active = tl.zeros([HEIGHT, BREADTH], tl.int32)
    sums = tl.zeros([HEIGHT], tl.float32)
    norms = tl.zeros([HEIGHT], tl.float32)
    least = tl.full([HEIGHT], 1.0, tl.float32)
    source = base
    left = height
    for _step in range(steps):
        tile = load_tile(source, down, along, left, width, stride, EVEN)
        size = tl.abs(tile)
        narrow = tl.sum(tile * tile, axis=1)
        sums += narrow
        norms += tl.sqrt(narrow)
        # a row whose squares vanish in float32 must not hide behind the others
        least = tl.minimum(least, tl.where((narrow < 1e-28) & (tl.max(size, axis=1) > 0.0), 0.0, 1.0))
        tops = tl.maximum(tops, size)
        if FLAGS:
            active += (size > eps).to(tl.int32)
        source += HEIGHT * stride
        left -= HEIGHT
    target = pointer(row, tl.float64, False)
    if FLAGS:
        words = pointer(scratch + 8 + 8 * batch, tl.int32, False)
        mark_channels(words, top, tl.full((), 0, tl.int64), tops, height, length, eps, FLAGS)
    known = tl.load(target + LARGEST, cache_modifier=".cg")
    peak = tl.max(tl.max(tops, axis=1))
    squares = tl.sum(sums.to(tl.float64))
    lengths = tl.sum(norms.to(tl.float64))
    if not (usual(tl.sum(sums), peak) & (tl.min(least) > 0.0)):
        squares, lengths, broken, peak = exact_rows(base, down, along, height, width, stride, steps, HEIGHT, EVEN)
        tl.atomic_add(target + NONFINITE, broken.to(tl.float64), sem="relaxed")
    if peak > known:
        raise_largest(row + 8 * LARGEST, peak)
    tl.atomic_add(target + SQUARES, squares, sem="relaxed")
    tl.atomic_add(target + NORMS, lengths, sem="relaxed")
    counter = pointer(scratch, tl.int64, False)
    count = tl.sum(tl.sum(active, axis=1)).to(tl.int64)
    tl.debug_barrier()
    seen = count + tl.atomic_add(counter, count + PROGRAM, sem="acq_rel")
    if seen >> 40 == tl.num_programs(0) - 1:
        tl.store(counter, 0)
        tl.store(target + ACTIVE, (seen & (PROGRAM - 1)).to(tl.float64))
        finish(scratch, row, batch, length, batch * length, FLAGS, WHOLE, 512)
