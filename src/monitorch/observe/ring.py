"""Arithmetic of a ring buffer: how many slots there are, and between which of them a time falls."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import OptionError
from ..numerical.precision import wide_dtype_of


def _number(value: Any) -> float:
    """The value as a float; NaN if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def positive(option: str, value: float) -> float:
    """A number greater than 0."""
    if not 0 < _number(value) < math.inf:
        raise OptionError(f"{option}={value!r} must be a number greater than 0")
    return float(value)


def not_negative(option: str, value: float) -> float:
    """A number that is at least 0."""
    if not 0 <= _number(value) < math.inf:
        raise OptionError(f"{option}={value!r} must be a number, 0 or more")
    return float(value)


def share(option: str, value: float) -> float:
    """A number from 0 to 1."""
    if not 0 <= _number(value) <= 1:
        raise OptionError(f"{option}={value!r} must be a number from 0 to 1")
    return float(value)


def slots(step_time: float, duration: float, inclusive: bool = False) -> int:
    """How many samples cover ``duration``; ``inclusive`` adds one, so that ``duration`` itself can be read.

    >>> slots(1, 3), slots(1, 3, inclusive=True), slots(1, 0), slots(0.3, 1), slots(0.3, 2.1)
    (3, 4, 1, 4, 7)
    """
    steps = duration / step_time
    whole = round(steps)
    # 2.1 / 0.3 comes out a little above 7 in floating point, but means 7
    count = whole if math.isclose(steps, whole, rel_tol=1e-9) else math.ceil(steps)
    return max(count + bool(inclusive), 1)


def axis(dim: int) -> int:
    """A dimension of a sample as a dimension of the storage, whose first dimension is the slots."""
    return dim + 1 if dim >= 0 else dim


class Place(NamedTuple):
    """Where times fall: on a sample or between two, the slots of these, and the time since the older one."""

    exact: Tensor
    older: Tensor
    newer: Tensor
    since: Tensor


def locate(times: Tensor, dt: float, size: int, now: int, tolerance: Tensor) -> Place:
    """Find times, measured back from slot ``now``, in a ring of ``size`` slots."""
    furthest = dt * (size - 1)
    if not bool(((times >= -tolerance) & (times <= furthest + tolerance)).all()):
        raise OptionError(f"times lie between 0 and {furthest:g} before now, not at {times.flatten().tolist()}")
    steps = times / dt
    near = steps.round().clamp(0, size - 1)
    exact = (near * dt - times).abs() <= tolerance
    older, newer = (((now - torch.where(exact, near, back)) % size).long() for back in (steps.ceil(), steps.floor()))
    return Place(exact, older, newer, torch.where(exact, 0.0, dt - dt * (steps % 1)))


def rounding(time: float | Tensor, times: Tensor) -> Tensor:
    """The rounding error of times, because of the dtype they were given or are computed in."""
    dtypes = {times.dtype} | ({time.dtype} if isinstance(time, Tensor) and time.is_floating_point() else set())
    return times.abs() * max(torch.finfo(dtype).eps for dtype in dtypes)


def spread(time: float | Tensor, shape: torch.Size, device: torch.device) -> tuple[Tensor, bool]:
    """Times for samples of ``shape``, with the axis of several times first, and whether there is such an axis."""
    dtype = wide_dtype_of(device)
    if not isinstance(time, Tensor):
        return torch.full((1, *shape), float(time), dtype=dtype, device=device), False
    several = time.dim() == len(shape) + 1
    if not several and time.dim() != len(shape):
        raise OptionError(f"times for samples of shape {tuple(shape)} cannot have shape {tuple(time.shape)}")
    times = time.detach().to(device, dtype)
    times = times.movedim(-1, 0) if several else times[None]
    if any(have > most for have, most in zip(times.shape[1:], shape, strict=True)):
        raise OptionError(f"times of shape {tuple(time.shape)} do not fit into samples of shape {tuple(shape)}")
    return times, several


def run(data: Tensor, length: int, now: int, offset: int | Tensor, forward: bool) -> Tensor:
    """Slots of ``length`` samples, oldest first: the last is ``offset`` before now, or with ``forward`` the first."""
    if not 1 <= length <= len(data):
        raise OptionError(f"length={length} must be between 1 and {len(data)}, the number of slots")
    back = offset.to(data.device) if isinstance(offset, Tensor) else offset
    steps = torch.arange(length, dtype=torch.int64, device=data.device).reshape(-1, *[1] * (data.dim() - 1))
    start = now - back - (0 if forward else length - 1)
    return ((start + steps) % len(data)).expand(length, *data.shape[1:])
