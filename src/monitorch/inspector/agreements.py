"""What the processes of a training have agreed on at ticks: which steps they observe, when they tick, when they stop.

A tick does not wait for the other processes. So what they wish travels with its numbers, and takes effect a few ticks
later: by then all know it, and as all tick at the same steps, it begins at the same step everywhere.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ..engine.rank_numbers import Merged, Payload
from ..engine.reductions import Seat
from ..numerical.moments import Row
from ..store.types import Event

if TYPE_CHECKING:
    from .inspector_state import InspectorState

LATENESS = 3
"""After how many ticks an agreement takes effect."""

EVERY, TICK_IN = "observe every", "tick in"
"""The wishes of a process, both in steps."""

MOST_EVENTS = 100
"""How many events of a process travel with one tick."""


class Agreement(NamedTuple):
    """What all processes do."""

    every: int
    """Every how many steps they observe one."""
    tick_in: int
    """After how many steps they tick."""
    stop: Event | None = None
    """The event for which they stop training."""


class Agreements:
    """Those of the last ticks."""

    def __init__(self) -> None:
        self._ticks = 0
        self._reached: dict[int, Agreement] = {}
        self.wished: deque[int] = deque(maxlen=LATENESS)
        """Every how many steps this process has wished to observe, at the ticks whose agreements are still to come."""

    def begin(self) -> int:
        """A tick begins: its number, the same in all processes."""
        self._ticks += 1
        return self._ticks

    def reach(self, tick: int, agreement: Agreement) -> None:
        """All processes have agreed; another thread may call this."""
        self._reached[tick] = agreement

    def due(self) -> Agreement | None:
        """What takes effect at the tick that begins next."""
        return self._reached.pop(self._ticks + 1 - LATENESS, None)


class Wishes:
    """What this process wishes when a tick begins: steps to observe, so that it can pay for them, and the next tick."""

    def __init__(self, state: "InspectorState") -> None:
        since = max(1, state.step - state.wished_at)
        wanted = state.wished_tick or since
        state.wished_at = state.step
        every = state.cadence.affordable_n(max(wanted, since), state.agreements.wished)
        state.agreements.wished.append(every)
        self._payload = wishes(every, wanted)
        self.agreement: Agreement | None = None

    def payload(self) -> Payload:
        """The wishes, for the others."""
        return self._payload

    def merge_ranks(self, merged: Merged) -> None:
        """Take the largest wishes of all processes."""
        self.agreement = Agreement(int(merged.moments[EVERY].high), int(merged.moments[TICK_IN].high))


def wishes(every: int, tick_in: int) -> Payload:
    """What one process wishes, so that the largest wishes of all processes are found."""
    return Payload({name: Row(1, low=wish, high=wish) for name, wish in ((EVERY, every), (TICK_IN, tick_in))})


class SharedEvents:
    """Shows the events of all processes in one of them, and finds the one for which training is to be stopped.

    Args:
        state: that of the inspector.
        seat: the place of this process.
        is_main: whether this process shows them.
    """

    def __init__(self, state: "InspectorState", seat: Seat, *, is_main: bool) -> None:
        self._state, self._seat, self._is_main, self._step = state, seat, is_main, state.step
        self.stop: Event | None = None

    def payload(self) -> Payload:
        """The new events of this process, and the one for which it wants to stop.

        Those of later steps wait for the next tick. Training goes on while a tick is put together, and when it stops
        must not depend on how long that takes.
        """
        events = self._state.events
        new, stop = events.take_unsent(self._step), events.stop
        stop = stop if stop is not None and stop.step <= self._step else None
        return Payload(facts=(new[:MOST_EVENTS], stop) if new or stop is not None else None)

    def merge_ranks(self, merged: Merged) -> None:
        """Take the events of the others, and the first one for which any process wants to stop."""
        facts: dict[int, tuple[list[Event], Event | None]] = merged.facts
        sent = {rank: events for rank, (events, _) in facts.items()}
        own = sent.pop(self._seat.rank, [])
        if self._is_main:
            self._state.events.receive(sent, own)
        stops = [stop for _, stop in facts.values() if stop is not None]
        if stops and merged.processes == self._seat.processes:  # otherwise those that are missing would go on
            self.stop = min(stops, key=lambda event: event.step)
