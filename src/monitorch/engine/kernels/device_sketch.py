"""The kernels that compare tensors with earlier ones by random projections instead of copies."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
from __future__ import annotations

from .. import columns
from . import reference
from .device import DOT, LARGEST, NONFINITE, SQUARES, add_sums, describe, finished, load, pointer, tile_sums, usual
from .device_many import ENTRY, ROW_BYTES
from .triton_import import constant, jit, tl

DEAD = constant(int(columns.DEAD))

BUCKETS = constant(reference.SKETCH)
"""Elements in a block, and numbers in a sketch."""
GRAIN = constant(reference.GRAIN)
"""Elements that stay neighbours, so that a thread reads them at once."""
POOL = constant(len(reference.SIGNS))
"""Signs in the pool."""


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
    """A block's shift in buckets, where its signs begin in the pool, and its own sign as the sign bit of an int32."""
    number = tl.cast(block, tl.uint32) * 2654435761
    number = (number ^ (number >> 16)) * 0x85EBCA6B
    number = number ^ (number >> 13)
    shift = (number >> 20) & (BUCKETS - GRAIN)
    return shift.to(tl.int32), (number & (POOL - GRAIN)).to(tl.int32), (number << 15).to(tl.int32)


@jit
def signed_tile(source, pool, block, bucket, count):
    """A block of a tensor in bucket order, so that the buckets stay in registers; with and without signs."""
    shift, begin, own = drawn(block)
    place = tl.max_contiguous(tl.multiple_of((bucket - shift) & (BUCKETS - 1), GRAIN), GRAIN)
    tile = load(source + block * BUCKETS, place, count, BUCKETS).to(tl.float32)
    sign = (tl.load(pool + tl.multiple_of(begin, GRAIN) + place).to(tl.int32) ^ own) & -2147483648
    return (tile.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True), tile


@jit(do_not_specialize=["x", "state", "signs", "row", "size", "follows"])
def sketch_kernel(
    x: tl.int64,
    state: tl.int64,
    signs: tl.int64,
    row: tl.int64,
    size: tl.int64,
    follows: tl.int32,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Row of one tensor, with DOT estimated from its sketch and the one before.

    Until it is done, the DEAD column serves as the counter of finished programs.
    """
    source = pointer(x, DTYPE, ALIGNED)
    pool = pointer(signs, tl.int8, True)
    bucket = tl.arange(0, BUCKETS)
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64)
    sketch = tl.zeros([BUCKETS], tl.float32)
    sums = tl.zeros([BUCKETS], tl.float32)
    tops = tl.zeros([BUCKETS], tl.float32)
    for block in range(program, tl.cdiv(size, BUCKETS), step):
        count = tl.minimum(size - block * BUCKETS, BUCKETS).to(tl.int32)
        signed, tile = signed_tile(source, pool, block, bucket, count)
        sketch += signed
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
            flat = load(source + start, bucket, count, BUCKETS).to(tl.float32)
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


@jit(do_not_specialize=["table", "parts", "signs", "slots"])
def parts_kernel(
    table: tl.int64,
    parts: tl.int64,
    signs: tl.int64,
    slots: tl.int64,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Sketch of some blocks of one of many tensors, with sums of float64, in a slot of its own.

    An entry of the table: addresses of the tensor and of its two kept sketches, its size, how many blocks go into a
    slot, its first slot, the number of its slots, and whether its change is compared.
    """
    where = pointer(parts, tl.int32, False) + 2 * tl.program_id(0)
    entry = pointer(table, tl.int64, False) + tl.load(where) * ENTRY
    part = tl.load(where + 1).to(tl.int64)
    source = pointer(tl.load(entry), DTYPE, ALIGNED)
    pool = pointer(signs, tl.int8, True)
    size = tl.load(entry + 2)
    span = tl.load(entry + 3)
    bucket = tl.arange(0, BUCKETS)
    sketch = tl.zeros([BUCKETS], tl.float64)
    for block in range(part * span, tl.minimum((part + 1) * span, tl.cdiv(size, BUCKETS))):
        count = tl.minimum(size - block * BUCKETS, BUCKETS).to(tl.int32)
        signed, _tile = signed_tile(source, pool, block, bucket, count)
        sketch += signed.to(tl.float64)
    tl.store(pointer(slots, tl.float64, True) + (tl.load(entry + 4) + part) * BUCKETS + bucket, sketch)


@jit(do_not_specialize=["table", "slots", "block"])
def join_kernel(table: tl.int64, slots: tl.int64, block: tl.int64, KEEP: tl.constexpr):
    """Join the slots of one of many tensors, always in the same order.

    With KEEP the sketch is kept until the step is over. Else the row of the change since then is written, and the
    sketch of the change is kept for the next one.
    """
    index = tl.program_id(0).to(tl.int64)
    entry = pointer(table, tl.int64, False) + index * ENTRY
    bucket = tl.arange(0, BUCKETS)
    last = pointer(tl.load(entry + 1), tl.float64, False) + bucket
    before = last + BUCKETS
    source = pointer(slots, tl.float64, True) + tl.load(entry + 4) * BUCKETS + bucket
    sketch = tl.zeros([BUCKETS], tl.float64)
    for slot in range(tl.load(entry + 5)):
        sketch += tl.load(source + slot * BUCKETS)
    if KEEP:
        tl.store(before, sketch)
    else:
        change = sketch - tl.load(before)
        follows = tl.load(entry + 6).to(tl.int32)
        row = block + index * ROW_BYTES
        target = pointer(row, tl.float64, False)
        if follows:
            tl.store(target + DOT, tl.sum(change * tl.load(last)))
        tl.store(last, change)
        tl.store(target + SQUARES, tl.sum(change * change))
        tl.store(target + NONFINITE, float("nan"))  # a sketch knows nothing about single elements
        tl.store(target + LARGEST, float("nan"))
        describe(row, tl.load(entry + 2), follows)
