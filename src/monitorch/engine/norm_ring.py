"""The norms of the last steps, kept on the device: nothing is copied until somebody asks."""

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..numerical.precision import HOST, wide_dtype_of
from .rows import Numbers, Places

STEPS = 64
"""How many steps are kept."""

UNMEASURED = -1.0
"""Stands for a missing norm: there was no gradient, or the step was skipped."""

OF_GRADIENTS, OF_PARAMETERS = 0, 1
"""The two lines of a step."""


class StepEntry(NamedTuple):
    """One step of a ring."""

    step: int
    """How many steps had ended before."""
    has_ended: bool
    """Whether the norms of parameters are those after the step, not before it."""
    places: Places
    """Which parameters were measured."""


class RingCopy(NamedTuple):
    """What was in a ring at one moment: its steps, oldest first, and ``numbers[step, line, place]``."""

    entries: list[StepEntry]
    numbers: Numbers


class DeviceFlag:
    """Whether something happened on a device, as far as the host knows without waiting.

    >>> flag = DeviceFlag(HOST)
    >>> flag.check(torch.ones(2))
    >>> flag.is_set()
    False
    >>> flag.check(torch.tensor([1.0, torch.inf]))
    >>> flag.is_set()
    True
    """

    def __init__(self, device: torch.device) -> None:
        self._there = torch.zeros((), dtype=wide_dtype_of(device), device=device)
        """0, or NaN once it is set."""
        is_cuda = device.type == "cuda"
        self._here = torch.zeros((), dtype=self._there.dtype, device=HOST, pin_memory=is_cuda)
        self._arrived: Any = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self._is_asked = False
        self._can_look = is_cuda or device.type == "cpu"  # elsewhere a copy would wait

    def check(self, numbers: Tensor, works: Tensor | None = None) -> None:
        """Set it if one of these is not finite; not if ``works`` is 0."""
        found = numbers.sum() * 0  # NaN if one of them is not finite
        self._there += found if works is None else found.where(works.to(found.device) > 0, 0.0)

    def is_set(self) -> bool:
        """Whether it was set when the host last asked; asks again."""
        if not self._can_look:
            return False
        if self._arrived is None:
            self._here.copy_(self._there)
            return bool(self._here.isnan())
        if self._is_asked and not self._arrived.query():
            return False
        found = self._is_asked and bool(self._here.isnan())
        self._here.copy_(self._there, non_blocking=True)
        self._arrived.record(*self._stream())
        self._is_asked = True
        return found

    def _stream(self) -> tuple[Any, ...]:
        device = self._there.device
        return (torch.cuda.current_stream(device),) if device.type == "cuda" else ()

    def clear(self) -> None:
        """Begin again."""
        self._there.zero_()


class NormRing:
    """The norms of gradients and parameters in the last steps, on their device.

    Args:
        device: where they are.
        width: how many parameters there are.

    >>> ring = NormRing(HOST, width=3)
    >>> for step in (7, 8):
    ...     ring.write(step, False, np.array([0, 2]), torch.tensor([0, 2]), torch.tensor([[step, 1.0], [2.0, 3.0]]))
    >>> entries, numbers = ring.reader()(ring.numbers.numpy())
    >>> [entry.step for entry in entries], numbers[1].tolist()
    ([7, 8], [[8.0, -1.0, 1.0], [2.0, -1.0, 3.0]])
    """

    def __init__(self, device: torch.device, width: int) -> None:
        self.numbers = torch.full((STEPS, 2, width), UNMEASURED, dtype=wide_dtype_of(device), device=device)
        self.flag = DeviceFlag(device)
        self.is_new = False
        """Whether something was written since this was last set to False."""
        self._entries: deque[StepEntry] = deque(maxlen=STEPS)
        self._next = 0
        """The place in ``numbers`` for the next step."""

    def write(self, step: int, has_ended: bool, places: Places, there: Tensor, norms: Tensor) -> None:
        """Keep the norms of a step, or a part of them: one optimizer of several has only some parameters.

        Args:
            step: how many steps had ended before.
            has_ended: whether the parameters are those after the step.
            places: which parameters they are of.
            there: the same on the device.
            norms: those of gradients, and those of parameters.
        """
        if self._entries and self._entries[-1].step == step:
            known = self._entries.pop()
            places = np.union1d(known.places, places)
        else:
            self.numbers[self._next].fill_(UNMEASURED)
            self._next = (self._next + 1) % STEPS
        self.numbers[self._next - 1].index_copy_(1, there, norms.to(self.numbers.dtype))
        self._entries.append(StepEntry(step, has_ended, places))
        self.is_new = True

    def reader(self) -> "RingReader":
        """A reader for a copy of the numbers that starts now."""
        lines = np.arange(self._next - len(self._entries), self._next) % STEPS
        return RingReader(list(self._entries), lines)


class RingReader(NamedTuple):
    """Knows the steps of a ring at one moment."""

    entries: list[StepEntry]
    lines: Places

    def __call__(self, numbers: NDArray[np.float64]) -> RingCopy:
        """The steps in order."""
        return RingCopy(self.entries, numbers[self.lines])
