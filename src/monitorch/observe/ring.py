"""Arithmetic of a ring of slots: how many there are, and in which ones a time falls."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import OptionError


def positive(option: str, value: float) -> float:
    """A number greater than 0."""
    if not 0 < float(value) < math.inf:
        raise OptionError(f"{option}={value!r} must be a number greater than 0")
    return float(value)


def not_negative(option: str, value: float) -> float:
    """A number of at least 0."""
    if not 0 <= float(value) < math.inf:
        raise OptionError(f"{option}={value!r} must be a number, 0 or more")
    return float(value)


def slots(step_time: float, duration: float, inclusive: bool = False) -> int:
    """How many samples cover ``duration``; ``inclusive`` adds one, so that this far back can be looked.

    >>> slots(1, 3), slots(1, 3, inclusive=True), slots(1, 0), slots(0.3, 1), slots(0.3, 2.1)
    (3, 4, 1, 4, 7)
    """
    steps = duration / step_time
    whole = round(steps)
    # 2.1 / 0.3 is a little more than 7: a multiple is a multiple whatever the noise
    count = whole if math.isclose(steps, whole, rel_tol=1e-9) else math.ceil(steps)
    return max(count + bool(inclusive), 1)


def axis(dim: int) -> int:
    """A dimension of a sample as a dimension of the storage, where slots come first."""
    return dim + 1 if dim >= 0 else dim


class Place(NamedTuple):
    """Where times fall: on a sample or between two, in which slots these are, and how long after the older one."""

    exact: Tensor
    older: Tensor
    newer: Tensor
    since: Tensor


def locate(times: Tensor, dt: float, size: int, now: int, tolerance: float) -> Place:
    """Find times, measured back from slot ``now``, in a ring of ``size`` slots."""
    furthest = dt * (size - 1)
    if not bool(((times >= -tolerance) & (times <= furthest + tolerance)).all()):
        raise OptionError(f"times lie between 0 and {furthest:g} before now, not at {times.flatten().tolist()}")
    steps = times / dt
    near = steps.round()
    exact = (near * dt - times).abs() <= tolerance
    older, newer = (((now - torch.where(exact, near, back)) % size).long() for back in (steps.ceil(), steps.floor()))
    return Place(exact, older, newer, torch.where(exact, 0.0, dt - dt * (steps % 1)))


def spread(time: float | Tensor, shape: torch.Size, device: torch.device) -> tuple[Tensor, bool]:
    """Times for samples of ``shape``, with an axis of several times put first; and whether there was one."""
    if not isinstance(time, Tensor):
        return torch.full((1, *shape), float(time), dtype=torch.float64, device=device), False
    several = time.dim() == len(shape) + 1
    if not several and time.dim() != len(shape):
        raise OptionError(f"times for samples of shape {tuple(shape)} cannot have the shape {tuple(time.shape)}")
    times = time.detach().to(device, torch.float64)
    times = times.movedim(-1, 0) if several else times[None]
    if any(have > most for have, most in zip(times.shape[1:], shape, strict=True)):
        raise OptionError(f"times of shape {tuple(time.shape)} are more than samples of shape {tuple(shape)} hold")
    return times, several


def run(data: Tensor, length: int, now: int, offset: int | Tensor, forward: bool) -> Tensor:
    """Slots of ``length`` samples, oldest first, that end ``offset`` before now, or with ``forward`` begin there."""
    if not 1 <= length <= len(data):
        raise OptionError(f"length={length} must be between 1 and the {len(data)} slots there are")
    start = now - torch.as_tensor(offset, device=data.device) - (0 if forward else length - 1)
    steps = torch.arange(length, device=data.device).reshape(-1, *[1] * (data.dim() - 1))
    return ((start + steps) % len(data)).expand(length, *data.shape[1:])
