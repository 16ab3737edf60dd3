"""How long steps take, by phase."""

import statistics
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

KEPT = 64  # recent durations of each phase
WARM_UP = 3  # first durations of each phase, which include allocation, compilation and tuning
OUTLIER = 4  # times the usual duration: something else happened in that step


class Phase(IntEnum):
    """What is done in a step."""

    IDLE = 0
    """Nothing."""
    BASELINE = 1
    """Only records what the observed step after it is compared with."""
    OBSERVE = 2
    """Everything."""


class StepClock:
    """How long recent steps took, by phase; never waits for a device.

    On CUDA an event is recorded at each boundary and read once it has passed by itself.

    Args:
        device: where the steps run.
        clock: returns the time in seconds.

    >>> clock = StepClock(clock=iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).__next__)
    >>> for _ in range(6):
    ...     clock.stamp(Phase.IDLE)
    >>> clock.median(Phase.IDLE), clock.median(Phase.OBSERVE)
    (1.0, None)
    """

    def __init__(
        self, device: torch.device | str | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock, self._device = clock, _cuda(device)
        self.clear()

    def use(self, device: torch.device | str | None) -> None:
        """Measure on this device from now on."""
        if _cuda(device) != self._device:
            self._device = _cuda(device)
            self.clear()

    def clear(self) -> None:
        """Forget all durations."""
        self._durations: dict[Phase, deque[float]] = {phase: deque(maxlen=KEPT) for phase in Phase}
        self._dropped = dict.fromkeys(Phase, 0)
        self._pending: deque[tuple[Phase, Any, Any]] = deque(maxlen=KEPT)
        self._shares: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._spent: float | None = None
        self.interrupt()

    def interrupt(self) -> None:
        """Forget the last boundary: the time until the next one belongs to no step."""
        self._last: tuple[float, Any] | None = None

    def stamp(self, phase: Phase) -> None:
        """A step of this phase ends here, and the next one begins."""
        if self._device is not None and torch.cuda.is_current_stream_capturing():
            self.interrupt()  # events of a graph that is being captured cannot be read
            return
        now = self._clock()
        mark = now if self._device is None else self._event()
        if self._last is not None:
            then, before = self._last
            self._pending.append((phase, before, mark))
            if self._spent is not None:
                self._shares.append((self._spent, now - then))
        self._last = now, mark
        self._spent = None if self._spent is None else 0.0
        self._read_events()

    def spend(self, seconds: float) -> None:
        """Add CPU time that hooks took in the current step."""
        self._spent = seconds + (self._spent or 0.0)

    def samples(self, phase: Phase) -> int:
        """How many durations there are."""
        return len(self._durations[phase])

    def median(self, phase: Phase) -> float | None:
        """The median duration of a step in seconds; None while not known."""
        self._read_events()
        return statistics.median(self._durations[phase]) if self._durations[phase] else None

    @property
    def spent_share(self) -> float | None:
        """The share of CPU time inside hooks; None while not known."""
        if len(self._shares) <= WARM_UP:
            return None
        usual = statistics.median(wall for _, wall in self._shares)
        kept = [share for share in self._shares if share[1] <= OUTLIER * usual]
        spent, wall = map(sum, zip(*kept, strict=True))
        return spent / wall if wall > 0 else None

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _read_events(self) -> None:
        while self._pending:
            phase, before, after = self._pending[0]
            if self._device is None:
                seconds = after - before
            elif before.query() and after.query():
                seconds = before.elapsed_time(after) / 1000
            else:
                return
            self._pending.popleft()
            if self._dropped[phase] < WARM_UP:
                self._dropped[phase] += 1
            else:
                self._durations[phase].append(seconds)


def _cuda(device: torch.device | str | None) -> torch.device | None:
    """The device if it is a CUDA device, whose time is measured by events."""
    found = None if device is None else torch.device(device)
    return found if found is not None and found.type == "cuda" else None
