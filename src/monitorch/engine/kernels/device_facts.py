"""The kernel that finds the finite extremes of a tensor and counts its special elements."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
from __future__ import annotations

from .device import finished, load, pointer
from .triton_import import constant, jit, tl

SMALLEST, GREATEST, ZEROS, BROKEN, NAN = 0, 1, 2, 3, 4
"""What is found, in this order."""
FOUND = 5

_SMALLEST, _GREATEST = constant(SMALLEST), constant(GREATEST)
_ZEROS, _BROKEN, _NAN = constant(ZEROS), constant(BROKEN), constant(NAN)
_FOUND = constant(FOUND)
_OFFSET = constant((1 << 31) + 1)
_REST = constant(0x7FFFFFFF)


@jit
def rank(x):
    """A positive integer for each float32, in the same order; 0 is left for none."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & _REST)).to(tl.int64) + _OFFSET


@jit
def of_rank(number):
    """The float32 of a rank; minus infinity for none."""
    bits = (number - _OFFSET).to(tl.int32)
    x = (bits ^ ((bits >> 31) & _REST)).to(tl.float32, bitcast=True)
    return tl.where(number == 0, float("-inf"), x).to(tl.float64)


@jit
def load_or_nan(source, lane, count, TILE: tl.constexpr):
    """``count`` elements, NaN after them."""
    if count >= TILE:  # noqa: SIM108
        tile = tl.load(source + lane)
    else:
        tile = tl.load(source + lane, mask=lane < count, other=float("nan"))
    return tile


@jit(do_not_specialize=["x", "scratch", "found", "size"])
def facts_kernel(
    x: tl.int64,
    scratch: tl.int64,
    found: tl.int64,
    size: tl.int64,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):
    """What is found of one tensor; ``scratch`` is zeros, one more than is found."""
    source = pointer(x, DTYPE, ALIGNED)
    lane = tl.arange(0, TILE)
    first = tl.program_id(0).to(tl.int64) * TILE
    stride = tl.num_programs(0).to(tl.int64) * TILE
    # kept for each lane, and joined once: joining a tile takes longer than reading it
    low = tl.full([TILE], float("inf"), tl.float32)
    high = tl.full([TILE], float("-inf"), tl.float32)
    zero = tl.zeros([TILE], tl.int32)
    good = tl.zeros([TILE], tl.int32)
    read = tl.full((), 0, tl.int64)
    for start in range(first, size, stride):
        count = tl.minimum(size - start, TILE).to(tl.int32)
        tile = load_or_nan(source + start, lane, count, TILE).to(tl.float32)
        finite = tl.abs(tile) < float("inf")
        low = tl.minimum(low, tl.where(finite, tile, float("inf")))
        high = tl.maximum(high, tl.where(finite, tile, float("-inf")))
        zero += (tile == 0.0).to(tl.int32)
        good += finite.to(tl.int32)
        read += count
    zeros = tl.sum(zero.to(tl.int64))
    broken = read - tl.sum(good.to(tl.int64))
    smallest = tl.where(broken < read, rank(-tl.min(low)), 0)
    greatest = tl.where(broken < read, rank(tl.max(high)), 0)
    sums = pointer(scratch, tl.int64, False)
    tl.atomic_max(sums + _SMALLEST, smallest, sem="relaxed")
    tl.atomic_max(sums + _GREATEST, greatest, sem="relaxed")
    tl.atomic_add(sums + _ZEROS, zeros, sem="relaxed")
    if broken > 0:
        nan = tl.full((), 0, tl.int64)
        for start in range(first, size, stride):
            count = tl.minimum(size - start, TILE).to(tl.int32)
            tile = load(source + start, lane, count, TILE).to(tl.float32)
            nan += tl.sum((tile != tile).to(tl.int64))
        tl.atomic_add(sums + _BROKEN, broken, sem="relaxed")
        tl.atomic_add(sums + _NAN, nan, sem="relaxed")
    if finished(sums + _FOUND, tl.num_programs(0).to(tl.int64)):
        target = pointer(found, tl.float64, False)
        tl.store(target + _SMALLEST, -of_rank(tl.load(sums + _SMALLEST)))
        tl.store(target + _GREATEST, of_rank(tl.load(sums + _GREATEST)))
        tl.store(target + _ZEROS, tl.load(sums + _ZEROS).to(tl.float64))
        tl.store(target + _BROKEN, tl.load(sums + _BROKEN).to(tl.float64))
        tl.store(target + _NAN, tl.load(sums + _NAN).to(tl.float64))
