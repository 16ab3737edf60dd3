"""Device code shared by all fused kernels, and the kernel that keeps a copy of the previous tensor.

Addresses are plain integers, so that a launch needs no tensor and one compiled kernel serves every tensor of a dtype.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
from __future__ import annotations

from .. import columns
from .triton_import import constant, jit, tl

SQUARES = constant(int(columns.SQUARES))
DOT = constant(int(columns.DOT))
UNIT = constant(int(columns.UNIT))
FOLLOWS = constant(int(columns.FOLLOWS))
SIZE = constant(int(columns.SIZE))
NONFINITE = constant(int(columns.NONFINITE))
LARGEST = constant(int(columns.LARGEST))

HUGE = constant(1e15)
"""Squares of larger numbers may overflow in float32."""
TINY = constant(1e-14)
"""Squares of smaller numbers may vanish in float32."""


@jit
def pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Where ``address`` points to; aligned memory is read 16 bytes at a time."""
    result = address.to(tl.pointer_type(DTYPE))
    if ALIGNED:
        result = tl.multiple_of(result, 16)
    return result


@jit
def load(source, lane, count, TILE: tl.constexpr):
    """``count`` elements, zeros after them; only the last tile of a tensor pays for a mask."""
    if count >= TILE:  # noqa: SIM108
        tile = tl.load(source + lane)
    else:
        tile = tl.load(source + lane, mask=lane < count, other=0.0)
    return tile


@jit
def store(target, lane, tile, count, TILE: tl.constexpr):
    """Write ``count`` elements back."""
    if count >= TILE:
        tl.store(target + lane, tile)
    else:
        tl.store(target + lane, tile, mask=lane < count)


@jit
def usual(squares, largest):
    """Whether float32 was precise enough for these squares: finite, not huge, not tiny."""
    return (squares < float("inf")) & (largest <= HUGE) & ((largest >= TINY) | (largest == 0.0))


@jit
def join_alone(squares, size, other_squares, other_size):
    """Two partial results of a tile as one."""
    return squares + other_squares, tl.maximum(size, other_size)


@jit
def join_pair(squares, dot, size, before, other_squares, other_dot, other_size, other_before):
    """Two partial results of a tile and the one before as one."""
    return squares + other_squares, dot + other_dot, tl.maximum(size, other_size), tl.maximum(before, other_before)


@jit
def tile_sums(tile, before, PAIR: tl.constexpr):
    """Squares and products with ``before`` in float64, the number of non-finite elements, the largest finite one."""
    x = tile.to(tl.float32)
    dot = tl.full((), 0.0, tl.float32)
    if PAIR:
        y = before.to(tl.float32)
        squares, dot, largest, other = tl.reduce((x * x, x * y, tl.abs(x), tl.abs(y)), 0, join_pair)
        narrow = usual(squares, largest) & usual(0.0, other)
    else:
        squares, largest = tl.reduce((x * x, tl.abs(x)), 0, join_alone)
        narrow = usual(squares, largest)
    wide_squares = squares.to(tl.float64)
    wide_dot = dot.to(tl.float64)
    broken = tl.full((), 0, tl.int32)
    if not narrow:
        wide = tile.to(tl.float32).to(tl.float64)
        wide_squares = tl.sum(wide * wide)
        if PAIR:
            wide_dot = tl.sum(wide * before.to(tl.float32).to(tl.float64))
        size = tl.abs(tile.to(tl.float32))
        finite = size < float("inf")
        broken = tl.sum(finite.to(tl.int32) ^ 1)
        largest = tl.max(tl.where(finite, size, 0.0))
    return wide_squares, wide_dot, broken, largest


@jit
def raise_largest(address, value):
    """Raise the float64 at ``address`` to ``value``; floats of one sign are ordered as their bits are."""
    bits = value.to(tl.float64).to(tl.int64, bitcast=True)
    tl.atomic_max(address.to(tl.pointer_type(tl.int64)), bits, sem="relaxed")


@jit
def add_sums(row, squares, dot, broken, largest, follows):
    """Add the sums of one program to the row."""
    target = pointer(row, tl.float64, False)
    tl.atomic_add(target + SQUARES, squares, sem="relaxed")
    raise_largest(row + 8 * LARGEST, largest)
    if follows:
        tl.atomic_add(target + DOT, dot, sem="relaxed")
    if broken > 0:
        tl.atomic_add(target + NONFINITE, broken.to(tl.float64), sem="relaxed")


@jit
def describe(row, size, follows):
    """The facts about a tensor that need no reading."""
    target = pointer(row, tl.float64, False)
    tl.store(target + UNIT, 1.0)
    tl.store(target + SIZE, size.to(tl.float64))
    tl.store(target + FOLLOWS, follows.to(tl.float64))


@jit
def finished(counter, expected):
    """Whether this is the last of the ``expected`` programs to finish; it sees what all others wrote."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == expected - 1
    if last:
        tl.store(counter, 0)
    return last


@jit(do_not_specialize=["x", "previous", "row", "size", "follows"])
def geometry_kernel(
    x: tl.int64,
    previous: tl.int64,
    row: tl.int64,
    size: tl.int64,
    follows: tl.int32,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    KEEP: tl.constexpr,
    TILE: tl.constexpr,
):
    """Row of one tensor; with KEEP its products with ``previous``, which becomes ``x``."""
    source = pointer(x, DTYPE, ALIGNED)
    kept = pointer(previous, DTYPE, ALIGNED)
    lane = tl.arange(0, TILE)
    program = tl.program_id(0).to(tl.int64)
    squares = tl.full((), 0.0, tl.float64)
    dot = tl.full((), 0.0, tl.float64)
    broken = tl.full((), 0, tl.int32)
    largest = tl.full((), 0.0, tl.float32)
    for start in range(program * TILE, size, tl.num_programs(0).to(tl.int64) * TILE):
        count = tl.minimum(size - start, TILE).to(tl.int32)
        tile = load(source + start, lane, count, TILE)
        before = tile
        if KEEP:
            before = load(kept + start, lane, count * follows, TILE)
            store(kept + start, lane, tile, count, TILE)
        more_squares, more_dot, more_broken, more_largest = tile_sums(tile, before, KEEP)
        squares += more_squares
        dot += more_dot
        broken += more_broken
        largest = tl.maximum(largest, more_largest)
    add_sums(row, squares, dot, broken, largest, follows)
    if program == 0:
        describe(row, size, follows)
