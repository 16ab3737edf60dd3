"""The kernel for the output of a layer: norms of the single samples, and which channels are alive."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803, N806
from __future__ import annotations

from .. import columns
from .device import LARGEST, NONFINITE, SIZE, SQUARES, UNIT, pointer, raise_largest, usual
from .triton_import import constant, jit, tl

NORMS = constant(int(columns.NORMS))
BATCH = constant(int(columns.BATCH))
ACTIVE = constant(int(columns.ACTIVE))
DEAD = constant(int(columns.DEAD))
CHANNELS = constant(int(columns.CHANNELS))

NO_CHANNELS, IN_COLUMNS, IN_ROWS = 0, 1, 2
"""FLAGS: no channels are counted, or they are the columns, or the rows, of the matrix that is read."""
COLUMNS = constant(IN_COLUMNS)

OF_SEVERAL, OF_ONE, OF_ROWS = 0, 1, 2
"""SUMS: several programs add to the squares of a sample, each for several samples, or each for only one; or a program
reads all of its samples, each of them a row."""
SHARED, SINGLE, WHOLE = constant(OF_SEVERAL), constant(OF_ONE), constant(OF_ROWS)

PROGRAM = constant(1 << 40)
"""One finished program in the counter, whose lower bits count active elements."""


@jit
def load_tile(source, lane_row, lane_column, height, width, stride, EVEN: tl.constexpr):
    """A tile in float32 from the top left ``height`` by ``width`` part of a matrix with rows of ``stride``."""
    inside = (lane_row < height)[:, None]
    if not EVEN:
        inside = inside & (lane_column < width)[None, :]
    return tl.load(source + (lane_row[:, None] * stride + lane_column[None, :]), mask=inside, other=0.0).to(tl.float32)


@jit
def exact_sums(source, lane_row, lane_column, height, width, stride, down, along, steps, EVEN: tl.constexpr):
    """Squares of each row in float64, how many elements are not finite, and the largest of the others."""
    squares = tl.zeros(lane_row.shape, tl.float64)
    broken = tl.full((), 0, tl.int32)
    largest = tl.full((), 0.0, tl.float32)
    for _step in range(steps):
        tile = load_tile(source, lane_row, lane_column, height, width, stride, EVEN)
        wide = tile.to(tl.float64)
        squares += tl.sum(wide * wide, axis=1)
        finite = tl.abs(tile) < float("inf")
        broken += tl.sum(tl.sum(finite.to(tl.int32) ^ 1, axis=1))
        largest = tl.maximum(largest, tl.max(tl.max(tl.where(finite, tl.abs(tile), 0.0), axis=1)))
        source += down * stride + along
        height -= down
        width -= along
    return squares, broken, largest


@jit
def count_bits(words, count, WORDS: tl.constexpr):
    """How many bits are set in ``count`` words; they are cleared for the next call."""
    lane = tl.arange(0, WORDS)
    total = tl.zeros([WORDS], tl.int32)
    for start in range(0, count, WORDS):
        inside = start + lane < count
        bits = tl.load(words + start + lane, mask=inside, other=0, cache_modifier=".cg").to(tl.uint32, bitcast=True)
        tl.store(words + start + lane, tl.zeros([WORDS], tl.int32), mask=inside)
        bits = bits - ((bits >> 1) & 0x55555555)
        bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
        bits = (bits + (bits >> 4)) & 0x0F0F0F0F
        bits = bits + (bits >> 8)
        total += ((bits + (bits >> 16)) & 0x3F).to(tl.int32)
    return tl.sum(total)


@jit
def finish(scratch, row, batch, channels, size, FLAGS: tl.constexpr, SUMS: tl.constexpr, SAMPLES: tl.constexpr):
    """Write the row from the sums of all programs in the scratch memory, and clear it."""
    target = pointer(row, tl.float64, False)
    if SUMS != WHOLE:
        sums = pointer(scratch + 8, tl.float64, False)
        lane = tl.arange(0, SAMPLES)
        squares = tl.zeros([SAMPLES], tl.float64)
        norms = tl.zeros([SAMPLES], tl.float64)
        for start in range(0, batch, SAMPLES):
            inside = start + lane < batch
            more = tl.load(sums + start + lane, mask=inside, other=0.0, cache_modifier=".cg")
            squares += more
            norms += tl.sqrt(more)
            tl.store(sums + start + lane, tl.zeros([SAMPLES], tl.float64), mask=inside)
        tl.store(target + SQUARES, tl.sum(squares))
        tl.store(target + NORMS, tl.sum(norms))
    tl.store(target + BATCH, batch.to(tl.float64))
    tl.store(target + UNIT, 1.0)
    tl.store(target + SIZE, size.to(tl.float64))
    if FLAGS:
        alive = count_bits(pointer(scratch + 8 + 8 * batch, tl.int32, False), tl.cdiv(channels, 32), 512)
        tl.store(target + DEAD, (channels - alive).to(tl.float64))
        tl.store(target + CHANNELS, channels.to(tl.float64))


@jit
def add_squares(scratch, row, exact, part, first, height, group, SUMS: tl.constexpr):
    """Add the squares of the rows of a program to those of their samples."""
    sums = pointer(scratch + 8, tl.float64, False)
    if SUMS == SINGLE:
        tl.atomic_add(sums + part, tl.sum(exact), sem="relaxed")
    elif SUMS == SHARED:
        lane = tl.arange(0, exact.shape[0])
        tl.atomic_add(sums + (first + lane) // group, exact, mask=lane < height, sem="relaxed")
    else:
        target = pointer(row, tl.float64, False)
        tl.atomic_add(target + SQUARES, tl.sum(exact), sem="relaxed")
        tl.atomic_add(target + NORMS, tl.sum(tl.sqrt(exact)), sem="relaxed")


@jit
def coarse_sums(
    source,
    lane_row,
    lane_column,
    height,
    width,
    stride,
    steps,
    eps,
    FLAGS: tl.constexpr,
    EVEN: tl.constexpr,
    DOWN: tl.constexpr,
    ALONG: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Per element of the tiles, in float32: the sum of squares, the largest size, how often it was active."""
    if UNROLL == 0:  # a single step needs no sums beside the tile
        tile = load_tile(source, lane_row, lane_column, height, width, stride, EVEN)
        squares = tile * tile
        largest = tl.abs(tile)
        active = (largest > eps).to(tl.int32) if FLAGS else tl.zeros_like(tile).to(tl.int32)
    else:
        squares = tl.zeros([lane_row.shape[0], lane_column.shape[0]], tl.float32)
        largest = tl.zeros([lane_row.shape[0], lane_column.shape[0]], tl.float32)
        active = tl.zeros([lane_row.shape[0], lane_column.shape[0]], tl.int32)
        for _step in range(0, steps, UNROLL):
            for _part in tl.static_range(UNROLL):
                tile = load_tile(source, lane_row, lane_column, height, width, stride, EVEN)
                size = tl.abs(tile)
                squares += tile * tile
                largest = tl.maximum(largest, size)
                if FLAGS:
                    active += (size > eps).to(tl.int32)
                source += DOWN * stride + ALONG
                height -= DOWN
                width -= ALONG
    return squares, largest, active


@jit
def mark_channels(words, first, column, largest, height, channels, eps, FLAGS: tl.constexpr):
    """Set the bits of the channels that are alive; skips bits that are set already, since atomics queue up."""
    if FLAGS == COLUMNS:
        COUNT: tl.constexpr = largest.shape[1] // 32
        word = (column // 32).to(tl.int32) + tl.arange(0, COUNT)
        known = tl.load(words + word, mask=word < tl.cdiv(channels, 32), other=0, cache_modifier=".cg")
        alive = tl.reshape((tl.max(largest, axis=0) > eps).to(tl.int32), [COUNT, 32])
        bits = tl.sum(alive << tl.arange(0, 32)[None, :], axis=1)
    else:
        lane = tl.arange(0, largest.shape[0])
        place = ((first + lane) % channels).to(tl.int32)
        word = place // 32
        known = tl.load(words + word, mask=lane < height, other=0, cache_modifier=".cg")
        bits = (tl.max(largest, axis=1) > eps).to(tl.int32) << (place % 32)
    tl.atomic_or(words + word, bits, mask=(bits & ~known) != 0, sem="relaxed")


@jit(
    do_not_specialize=["x", "scratch", "row", "eps", "batch", "span", "group", "length", "channels", "steps", "across"]
)
def output_kernel(
    x: tl.int64,
    scratch: tl.int64,
    row: tl.int64,
    eps: tl.float32,
    batch: tl.int64,
    span: tl.int64,
    group: tl.int64,
    length: tl.int64,
    channels: tl.int64,
    steps: tl.int32,
    across: tl.int64,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    FLAGS: tl.constexpr,
    SUMS: tl.constexpr,
    EVEN: tl.constexpr,
    HEIGHT: tl.constexpr,
    BREADTH: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """A matrix with rows of ``length``, ``group`` of them a sample, read by programs that stay in a span of rows.

    A program reads ``steps`` tiles: downwards where the channels are the columns, along the rows otherwise, so that
    an element of a tile always belongs to the same channel. A span is a sample (SINGLE), else the matrix.
    """
    DOWN: tl.constexpr = HEIGHT if FLAGS == COLUMNS else 0
    ALONG: tl.constexpr = 0 if FLAGS == COLUMNS else BREADTH
    program = tl.program_id(0).to(tl.int64)
    rows = (HEIGHT * steps if FLAGS == COLUMNS else HEIGHT + 0 * steps).to(tl.int64)
    column = (program % across) * BREADTH * (1 if FLAGS == COLUMNS else steps)
    bands = tl.cdiv(span, rows)
    part = program // across // bands
    top = (program // across % bands) * rows
    base = pointer(x, DTYPE, ALIGNED) + (part * span + top) * length + column
    height = tl.minimum(span - top, rows).to(tl.int32)
    width = tl.minimum(length - column, 1 << 30).to(tl.int32)
    stride = length.to(tl.int32)
    if ALIGNED:  # rows begin and end at multiples of 16 elements
        base = tl.multiple_of(base, 16)
        width = tl.multiple_of(width, 16)
        stride = tl.multiple_of(stride, 16)
    down = tl.arange(0, HEIGHT)
    along = tl.arange(0, BREADTH)
    squares, largest, active = coarse_sums(
        base, down, along, height, width, stride, steps, eps, FLAGS, EVEN, DOWN, ALONG, UNROLL
    )
    target = pointer(row, tl.float64, False)
    if FLAGS:
        words = pointer(scratch + 8 + 8 * batch, tl.int32, False)
        mark_channels(words, part * span + top, column, largest, height, channels, eps, FLAGS)
    known = tl.load(target + LARGEST, cache_modifier=".cg")
    narrow = tl.sum(squares, axis=1)
    exact = narrow.to(tl.float64)
    peak = tl.max(tl.max(largest, axis=1))
    if not usual(tl.sum(narrow), peak):
        exact, broken, peak = exact_sums(base, down, along, height, width, stride, DOWN, ALONG, steps, EVEN)
        tl.atomic_add(target + NONFINITE, broken.to(tl.float64), sem="relaxed")
    if peak > known:
        raise_largest(row + 8 * LARGEST, peak)
    add_squares(scratch, row, exact, part, top, height, group, SUMS)
    # one atomic counts both the programs and the active elements
    counter = pointer(scratch, tl.int64, False)
    count = tl.sum(tl.sum(active, axis=1)).to(tl.int64)
    tl.debug_barrier()
    seen = count + tl.atomic_add(counter, count + PROGRAM, sem="acq_rel")
    if seen >> 40 == tl.num_programs(0) - 1:
        tl.store(counter, 0)
        tl.store(target + ACTIVE, (seen & (PROGRAM - 1)).to(tl.float64))
        finish(scratch, row, batch, channels, batch * group * length, FLAGS, SUMS, 512)
