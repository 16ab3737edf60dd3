"""The kernel that compares a tensor with the one before by random projections instead of a copy."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
from __future__ import annotations

from .. import columns
from . import reference
from .device import DOT, add_sums, describe, finished, load, pointer, tile_sums, usual
from .triton_import import constant, jit, tl

DEAD = constant(int(columns.DEAD))

BUCKETS = constant(4096)
"""Elements in a block, and numbers in a sketch."""
GRAIN = constant(reference.GRAIN)
"""Elements that stay neighbours, so that a thread reads them at once."""


@jit
def finish_sketch(state, row, follows):
    """Compare the two sketches; the current one becomes the previous one."""
    lane = tl.arange(0, BUCKETS)
    previous = pointer(state, tl.float32, False) + lane
    current = previous + BUCKETS
    now = tl.load(current, cache_modifier=".cg")
    if follows:
        dot = tl.sum(now.to(tl.float64) * tl.load(previous).to(tl.float64))
        tl.store(pointer(row, tl.float64, False) + DOT, dot)
    tl.store(previous, now)
    tl.store(current, tl.zeros([BUCKETS], tl.float32))


@jit
def drawn(block):
    """By how many buckets a block is shifted, where in the pool its signs begin, its own sign as that of an int32."""
    number = tl.cast(block, tl.uint32) * 2654435761
    number = (number ^ (number >> 16)) * 0x85EBCA6B
    number = number ^ (number >> 13)
    shift = (number >> 20) & (BUCKETS - GRAIN)
    return shift.to(tl.int32), (number & (0x10000 - GRAIN)).to(tl.int32), (number << 15).to(tl.int32)


@jit
def added(source, before, lane, count, UPDATE: tl.constexpr):
    """A tile of a tensor, or with UPDATE of what was added to it."""
    tile = load(source, lane, count, BUCKETS).to(tl.float32)
    if UPDATE:
        tile -= load(before, lane, count, BUCKETS).to(tl.float32)
    return tile


@jit(do_not_specialize=["x", "before", "state", "signs", "row", "size", "follows"])
def sketch_kernel(
    x: tl.int64,
    before: tl.int64,
    state: tl.int64,
    signs: tl.int64,
    row: tl.int64,
    size: tl.int64,
    follows: tl.int32,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """Row of one tensor, or with UPDATE of ``x - before``, with DOT estimated from its sketch and the one before.

    The column that counts dead channels counts finished programs in the meantime.
    """
    source = pointer(x, DTYPE, ALIGNED)
    kept = pointer(before, DTYPE, ALIGNED)
    pool = pointer(signs, tl.int8, True)
    bucket = tl.arange(0, BUCKETS)
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64)
    sketch = tl.zeros([BUCKETS], tl.float32)
    sums = tl.zeros([BUCKETS], tl.float32)
    tops = tl.zeros([BUCKETS], tl.float32)
    for block in range(program, tl.cdiv(size, BUCKETS), step):
        shift, begin, own = drawn(block)
        # read in the order of the buckets, so that these stay in registers
        place = tl.max_contiguous(tl.multiple_of((bucket - shift) & (BUCKETS - 1), GRAIN), GRAIN)
        start = block * BUCKETS
        count = tl.minimum(size - start, BUCKETS).to(tl.int32)
        tile = added(source + start, kept + start, place, count, UPDATE)
        sign = (tl.load(pool + tl.multiple_of(begin, GRAIN) + place).to(tl.int32) ^ own) & -2147483648
        sketch += (tile.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)
        sums += tile * tile
        tops = tl.maximum(tops, tl.abs(tile))
    largest = tl.max(tops)
    squares = tl.sum(sums).to(tl.float64)
    broken = tl.full((), 0, tl.int32)
    if not usual(squares, largest):
        squares = tl.full((), 0.0, tl.float64)
        largest = tl.full((), 0.0, tl.float32)
        for block in range(program, tl.cdiv(size, BUCKETS), step):
            start = block * BUCKETS
            count = tl.minimum(size - start, BUCKETS).to(tl.int32)
            flat = added(source + start, kept + start, bucket, count, UPDATE)
            more_squares, _dot, more_broken, more_largest = tile_sums(flat, flat, False)
            squares += more_squares
            broken += more_broken
            largest = tl.maximum(largest, more_largest)
    tl.atomic_add(pointer(state, tl.float32, False) + BUCKETS + bucket, sketch, sem="relaxed")
    add_sums(row, squares, squares, broken, largest, 0)
    if program == 0:
        describe(row, size, follows)
    if finished(pointer(row + 8 * DEAD, tl.int32, False), tl.num_programs(0)):
        finish_sketch(state, row, follows)
