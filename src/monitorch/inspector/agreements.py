"""What the processes of a run agree on at ticks: which steps to observe, when to tick, when to stop.

A tick does not wait for the other processes. Each process sends its request along with its numbers, and the result
takes effect a few ticks later. By then every process knows it, and because all tick at the same steps, it starts at the
same step everywhere.
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
"""What a process asks for; both are numbers of steps."""

MOST_EVENTS = 100
"""The most events that a process sends with one tick."""


class Agreement(NamedTuple):
    """What all processes do."""

    every: int
    """They observe one step in this many."""
    tick_in: int
    """After how many steps they tick."""
    stop: Event | None = None
    """The event that stops training."""


class Agreements:
    """The agreements of the last few ticks."""

    def __init__(self) -> None:
        self._ticks = 0
        self._reached: dict[int, Agreement] = {}
        self.wished: deque[int] = deque(maxlen=LATENESS)
        """The interval that this process asked for at each tick whose agreement has not arrived yet."""

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
    """What this process asks for when a tick begins: how often to observe, within its budget, and when to tick next."""

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
    """One process's request, packed so that merging keeps the largest of each."""
    return Payload({name: Row(1, low=wish, high=wish) for name, wish in ((EVERY, every), (TICK_IN, tick_in))})


class SharedEvents:
    """Shows the events of all processes in one of them, and finds the event that stops training.

    Args:
        state: the inspector's state.
        seat: the place of this process.
        is_main: whether this process shows them.
    """

    def __init__(self, state: "InspectorState", seat: Seat, *, is_main: bool) -> None:
        self._state, self._seat, self._is_main, self._step = state, seat, is_main, state.step
        self.stop: Event | None = None

    def payload(self) -> Payload:
        """The new events of this process, and the event it wants to stop for, if any.

        Events of later steps wait for the next tick. Training goes on while a tick is assembled, and the step at which
        it stops must not depend on how long that takes.
        """
        events = self._state.events
        new, stop = events.take_unsent(self._step, MOST_EVENTS), events.stop
        stop = stop if stop is not None and stop.step <= self._step else None
        return Payload(facts=(new, stop) if new or stop is not None else None)

    def merge_ranks(self, merged: Merged) -> None:
        """Take the events of the others, and the first one for which any process wants to stop."""
        facts: dict[int, tuple[list[Event], Event | None]] = merged.facts
        sent = {rank: events for rank, (events, _) in facts.items()}
        own = sent.pop(self._seat.rank, [])
        if self._is_main:
            self._state.events.receive(sent, own)
        stops = [stop for _, stop in facts.values() if stop is not None]
        if stops and merged.processes == self._seat.processes:  # otherwise the missing processes would go on
            self.stop = min(stops, key=lambda event: event.step)
