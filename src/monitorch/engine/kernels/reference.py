"""Rows of raw sums in plain torch: any device, dtype and layout, in float64, without waiting for the GPU."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from ...numerical.norms import as_dense, as_real
from ...numerical.precision import HOST, UNIT_DTYPES, wide_dtype
from ..allocation import lasting
from ..columns import (
    ACTIVE,
    BATCH,
    CHANNELS,
    DEAD,
    DOT,
    FOLLOWS,
    LARGEST,
    NONFINITE,
    NORMS,
    SIZE,
    SQUARES,
    UNIT,
    WIDTH,
)

SKETCH = 4096
"""Numbers in a sketch."""
GRAIN = 2
"""Elements that stay adjacent in a sketch: kernels read them together."""
SIGNS: Tensor = (
    torch.randint(0, 2, (1 << 16,), generator=torch.Generator(HOST).manual_seed(0), dtype=torch.int8, device=HOST) * 2
    - 1
)
"""The pool of signs for sketches."""


def output(x: Tensor, channel_dim: int | None, eps: float) -> Tensor:
    """Row of a layer's output ``[B, ...]``; a channel none of whose numbers is larger than eps is dead."""
    x = as_dense(x)
    row, real = _measured(x)
    if x.numel():
        row[NORMS] = torch.linalg.vector_norm(real.reshape(len(x), -1), dim=1).sum() * row[UNIT]
        row[BATCH].fill_(len(x))
        if channel_dim is not None:
            _rate(row, x.movedim(channel_dim, 0), eps)
    return row


def geometry(x: Tensor, previous: Tensor | None, eps: float | None) -> Tensor:
    """Row of a tensor compared with the one before; with eps also its rates, where rows of ``x`` are the channels."""
    x = as_dense(x)
    row, real = _measured(x)
    if previous is not None:
        row[DOT] = (real * _in_units(as_dense(previous))[0]).sum()
        row[FOLLOWS].fill_(1)
    if x.numel() and eps is not None:
        _rate(row, x if x.dim() else x.reshape(1), eps)
    return row


def sketch(x: Tensor, state: Tensor, follows: bool) -> Tensor:
    """Row whose DOT is an estimate from sketches: the first row of ``state`` holds that of the tensor before.

    Afterwards it holds the sketch of ``x``, and the second row is zero.
    """
    x = in_memory_order(as_dense(x))
    row, real = _measured(x)
    if x.numel():
        current = _sketch(real.reshape(-1))
        if follows:
            row[DOT] = (current * state[0]).sum()
            row[FOLLOWS].fill_(1)
        state[0] = current
        state[1].zero_()
    return row


def keep_sketch(x: Tensor, state: Tensor) -> None:
    """Keep the sketch of a parameter before a step in the second row of ``state``, which is of float64."""
    state[1] = _sketch_of(x)


def sketched_update(x: Tensor, state: Tensor, follows: bool) -> Tensor:
    """Row of the change since :func:`keep_sketch`, estimated: the sketch of a difference is a difference of sketches.

    The first row of ``state`` holds the sketch of the change before, and then that of this one. An unchanged parameter
    gives exactly 0, because the same numbers are added in the same order.
    """
    change, unit = _in_own_unit(_sketch_of(x) - state[1], x.dtype)
    row = change.new_zeros(WIDTH)
    row[UNIT] = unit
    row[SIZE].fill_(x.numel())
    row[NONFINITE].fill_(math.nan)  # a sketch knows nothing about single elements
    row[LARGEST].fill_(math.nan)
    row[SQUARES] = change.square().sum()
    if follows:
        row[DOT] = (change * state[0]).sum()
        row[FOLLOWS].fill_(1)
    state[0] = change
    return row


@lru_cache
def signs(device: torch.device) -> Tensor:
    """The pool of signs on a device; copied only once, because the copy waits for the GPU."""
    return lasting(lambda: SIGNS.to(device), device, in_graph=True)


def drawn(block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For blocks of a tensor: the shift of each in buckets, the start of its signs in the pool, and its own sign.

    Some blocks share signs and buckets. Without a sign of their own, they would all add up.
    """
    number = (block * 2654435761) & 0xFFFFFFFF
    number = ((number ^ (number >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    number = number ^ (number >> 13)
    return (
        (number >> 20) & (SKETCH - GRAIN),
        number & (len(SIGNS) - GRAIN),
        (1 - 2 * ((number >> 16) & 1)).to(torch.int8),
    )


def in_memory_order(x: Tensor) -> Tensor:
    """All elements flattened: in memory order if they are dense, else in logical order."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    permuted = x.permute(order)
    return (permuted if permuted.is_contiguous() else x).reshape(-1)


def _measured(x: Tensor) -> tuple[Tensor, Tensor]:
    """A row with the sums that every tensor needs, and the tensor in the row's unit."""
    real, unit = _in_units(x)
    row = real.new_zeros(WIDTH)
    row[UNIT] = unit
    row[SIZE].fill_(x.numel())  # assigning a number would wait for a GPU
    if x.numel():
        magnitude = _magnitude(x)
        finite = magnitude.isfinite()
        row[SQUARES] = real.square().sum()
        row[NONFINITE] = x.numel() - finite.sum()
        row[LARGEST] = magnitude.where(finite, 0).max()
    return row, real


def _in_units(x: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of a tensor in a unit that keeps squares of float64 within bounds, and this unit."""
    return _in_own_unit(as_real(x).to(wide_dtype(x)), x.dtype)


def _in_own_unit(wide: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers that come from a tensor of this dtype, in their unit, and this unit."""
    unit = wide.new_ones(())
    if wide.numel() and dtype in UNIT_DTYPES:
        largest = wide.abs().where(wide.isfinite(), 0).max()
        unit = largest.where(largest > 0, 1)
        wide = wide / unit
    return wide, unit


def _magnitude(x: Tensor) -> Tensor:
    return x.to(torch.complex128).abs() if x.is_complex() else x.to(wide_dtype(x)).abs()


def _rate(row: Tensor, channels: Tensor, eps: float) -> None:
    """Fill in the activation counts; channels are the first dimension."""
    active = (_magnitude(channels) > eps).reshape(len(channels), -1)
    row[ACTIVE] = active.sum()
    row[DEAD] = len(channels) - active.any(dim=1).sum()
    row[CHANNELS].fill_(len(channels))


def _sketch_of(x: Tensor) -> Tensor:
    """The sketch of the numbers themselves, in no unit."""
    x = in_memory_order(as_dense(x.detach()))
    return _sketch(as_real(x).to(wide_dtype(x)).reshape(-1))


def _sketch(line: Tensor) -> Tensor:
    """Sums of the elements in buckets, with signs that depend only on the position of an element.

    The elements of a bucket are added in a fixed order, on a GPU as well.
    """
    blocks = math.ceil(line.numel() / SKETCH)
    block = torch.arange(blocks, dtype=torch.int64, device=line.device).unsqueeze(1)
    bucket = torch.arange(SKETCH, dtype=torch.int64, device=line.device)
    shift, begin, own = drawn(block)
    place = (bucket - shift) % SKETCH
    sign = signs(line.device)[(place + begin) % len(SIGNS)] * own
    whole = torch.nn.functional.pad(line, (0, blocks * SKETCH - line.numel())).reshape(blocks, SKETCH)
    return (whole.gather(1, place) * sign).sum(dim=0)
