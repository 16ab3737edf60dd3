"""The kernel that reads chunks of many tensors, found through a table."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
from __future__ import annotations

from .. import columns
from .device import add_sums, describe, finished, load, pointer, store, tile_sums
from .triton_import import constant, jit, tl

ACTIVE = constant(int(columns.ACTIVE))
DEAD = constant(int(columns.DEAD))
CHANNELS = constant(int(columns.CHANNELS))
ROW_BYTES = constant(8 * columns.WIDTH)

ENTRY = constant(8)
"""Integers per tensor in the table."""
HEADER_BYTES = 16
HEADER = constant(HEADER_BYTES)
"""Bytes before the flags of a tensor, where its finished programs are counted."""


@jit
def mark_active(tile, flags, start, inner, channels, eps, TILE: tl.constexpr, GROUP: tl.constexpr):
    """Flag the rows that hold an active element, and count those elements; GROUP neighbours share a row."""
    size = tl.abs(tile.to(tl.float32))
    shared = tl.max(tl.reshape(size, [TILE // GROUP, GROUP]), axis=1)
    first = start // inner
    place = (start - first * inner).to(tl.int32) + tl.arange(0, TILE // GROUP) * GROUP
    channel = ((first % channels).to(tl.int32) + place // inner.to(tl.int32)) % channels.to(tl.int32)
    tl.store(flags + channel, tl.full([TILE // GROUP], 1, tl.int8), mask=shared > eps)
    return tl.sum((size > eps).to(tl.int32))


@jit
def count_flags(flags, channels, FLAGS: tl.constexpr):
    """How many flags are set; they are cleared for the next call."""
    lane = tl.arange(0, FLAGS)
    seen = tl.zeros([FLAGS], tl.int32)
    for start in range(0, channels, FLAGS):
        inside = start + lane < channels
        seen += tl.load(flags + start + lane, mask=inside, other=0, cache_modifier=".cg").to(tl.int32)
        tl.store(flags + start + lane, tl.zeros([FLAGS], tl.int8), mask=inside)
    return tl.sum(seen)


@jit
def chunk_sums(
    entry,
    begin,
    size,
    follows,
    flags,
    eps,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    KEEP: tl.constexpr,
    UPDATE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Sums of the chunk that starts at ``begin``; updates the kept copy of the tensor."""
    source = pointer(tl.load(entry), DTYPE, ALIGNED)
    if UPDATE:  # noqa: SIM108  # differences of short floats are not rounded to their dtype
        kept = pointer(tl.load(entry + 1), tl.float32, ALIGNED)
    else:
        kept = pointer(tl.load(entry + 1), DTYPE, ALIGNED)
    old = pointer(tl.load(entry + 2), DTYPE, ALIGNED)
    inner = tl.load(entry + 5)
    channels = tl.load(entry + 6)
    lane = tl.arange(0, TILE)
    squares = tl.full((), 0.0, tl.float64)
    dot = tl.full((), 0.0, tl.float64)
    broken = tl.full((), 0, tl.int32)
    active = tl.full((), 0, tl.int32)
    largest = tl.full((), 0.0, tl.float32)
    for start in range(begin, tl.minimum(size, begin + CHUNK), TILE):
        count = tl.minimum(size - start, TILE).to(tl.int32)
        tile = load(source + start, lane, count, TILE)
        before = tile
        if KEEP:  # all reads come before all writes; the compiler must not reorder them
            before = load(kept + start, lane, count * follows, TILE)
        if UPDATE:
            tile = tile.to(tl.float32) - load(old + start, lane, count, TILE).to(tl.float32)
        if KEEP:
            store(kept + start, lane, tile, count, TILE)
        if GROUP:
            active += mark_active(tile, flags, start, inner, channels, eps, TILE, GROUP)
        more_squares, more_dot, more_broken, more_largest = tile_sums(tile, before, KEEP)
        squares += more_squares
        dot += more_dot
        broken += more_broken
        largest = tl.maximum(largest, more_largest)
    return squares, dot, broken, largest, active


@jit(do_not_specialize=["table", "chunks", "block", "eps"])
def many_kernel(
    table: tl.int64,
    chunks: tl.int64,
    block: tl.int64,
    eps: tl.float32,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    KEEP: tl.constexpr,
    UPDATE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One chunk of one of many tensors; with UPDATE of its change since it was last seen.

    An entry of the table: addresses of the tensor, of the one before (KEEP) and of the last seen one (UPDATE), whether
    to compare it, its size, the distance between the starts of its rows, their number, and the address of their flags.
    """
    where = pointer(chunks, tl.int32, False) + 2 * tl.program_id(0)
    index = tl.load(where)
    chunk = tl.load(where + 1)
    entry = pointer(table, tl.int64, False) + index * ENTRY
    follows = tl.load(entry + 3).to(tl.int32)
    size = tl.load(entry + 4)
    scratch = tl.load(entry + 7)
    flags = pointer(scratch + HEADER, tl.int8, False)
    row = block + index.to(tl.int64) * ROW_BYTES
    squares, dot, broken, largest, active = chunk_sums(
        entry, chunk.to(tl.int64) * CHUNK, size, follows, flags, eps, DTYPE, ALIGNED, KEEP, UPDATE, GROUP, TILE, CHUNK
    )
    add_sums(row, squares, dot, broken, largest, follows)
    if chunk == 0:
        describe(row, size, follows)
    if GROUP:
        target = pointer(row, tl.float64, False)
        tl.atomic_add(target + ACTIVE, active.to(tl.float64), sem="relaxed")
        if finished(pointer(scratch, tl.int32, False), tl.cdiv(size, CHUNK)):
            channels = tl.load(entry + 6)
            tl.store(target + DEAD, (channels - count_flags(flags, channels, 1024)).to(tl.float64))
            tl.store(target + CHANNELS, channels.to(tl.float64))
