"""Events of a run: what happened at a step, for visualizers, the log and the user's own function."""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from ..engine.ranks import several_processes
from ..engine.reports import Reports, cause_of, is_news, tell
from ..errors import OptionError, TrainingStopped, warn
from ..store.types import SEVERITIES, Event

KEPT = 1000
"""How many events :meth:`Events.kept` returns at most, the newest ones; a stored run has all."""

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
"""The level of a log line, by severity."""

STOPPING = (None, "warning", "error")
"""The values of the option ``stop_on``."""

logger = logging.getLogger("monitorch")


class Events:
    """The one stream of events of an inspector; any thread may add to it.

    Visualizers and the log get an event at once, in the thread that adds it, one at a time and in order. The user's
    function is called between two steps, by the training thread. After that, training is stopped if the user asked for
    that.

    Args:
        state: the state of the inspector, which reports errors.

    >>> events = Events()
    >>> events.add(12, "dead units", "warning", layer="fc1", text="no unit is active", numbers={"share": 1.0})
    >>> [event.line for event in events.kept()]
    ['step 12: dead units: fc1: no unit is active (share 1)']
    """

    def __init__(self, state: Reports | None = None) -> None:
        self._reports = None if state is None else weakref.ref(state)
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._unsent: deque[Event] = deque(maxlen=KEPT)
        self._visualizers: list[weakref.ref[Any]] = []
        self._others: list[weakref.ref[Any]] = []
        self._owner: weakref.ref[Any] | None = None
        self._to_show = Queue[tuple[Event, bool]](self._show)
        self.waiting = Queue[Event](self._call)
        """Events that the user's function has not seen."""
        self._caller: int | None = None
        """The thread in which the user's function runs just now."""
        self.stop_on: str | None = None
        """The least severity that stops training."""
        self.stop: Event | None = None
        """The first event that training is to be stopped for."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Events, ()  # what happened in this run did not happen in that of a copy

    def add(
        self,
        step: int,
        kind: str,
        severity: str = "info",
        *,
        layer: str | None = None,
        text: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Say that something happened.

        Args:
            step: the step at which it happened.
            kind: what happened, in a few words that are the same each time, such as ``"not finite"``.
            severity: ``"info"``, ``"warning"`` or ``"error"``.
            layer: where it happened; None for the whole run.
            text: what to know about it, in a sentence.
            numbers: plain numbers by name, not tensors: reading those would wait for the device.
        """
        if severity not in SEVERITIES:
            raise OptionError.unknown("severity", severity, SEVERITIES)
        body: dict[str, Any] = {"text": text} if text else {}
        if numbers:
            body["numbers"] = {name: _plain(name, number) for name, number in numbers.items()}
        self.put(Event(int(step), kind, severity, time=time.time(), layer=layer, body=body))

    def put(self, event: Event) -> None:
        """The same for an existing event."""
        if several_processes():
            self._unsent.append(event)
        self._put(event)

    def _put(self, event: Event) -> None:
        # events added by the user's function are not passed back to it: that would never end
        self._to_show.append((event, self._caller == threading.get_ident()))
        self._to_show.hand_over()

    def kept(self) -> list[Event]:
        """The newest events, oldest first."""
        return list(self._kept)

    def forget(self) -> None:
        """Another run begins."""
        self._kept.clear()
        self._unsent.clear()
        self.stop = None

    def show_in(self, visualizers: Iterable[Any]) -> None:
        """Show events from now on in those of these that have the method ``show_event``."""
        self._visualizers = [weakref.ref(one) for one in visualizers if hasattr(one, "show_event")]

    def also_show_in(self, other: Any) -> None:
        """Also call ``other.show_event`` with each event, whatever the visualizers are."""
        self._others.append(weakref.ref(other))

    def call(self, owner: Any) -> None:
        """Pass events to ``owner.on_event`` from now on, in :meth:`call_back`.

        The owner is held by a weak reference: the user's function may hold the owner and the model, and hooks on the
        model lead here.
        """
        self._owner = weakref.ref(owner)

    def call_back(self) -> None:
        """Call the user's function with each event that it has not seen; for the thread that trains."""
        self.waiting.hand_over()

    def raise_stop(self) -> None:
        """Stop training, if there is an event to stop for: only between two steps."""
        event = self.stop
        if event is not None:
            self.call_back()
            self.stop = None  # whoever catches it may go on, until the next event
            raise TrainingStopped(f"training was stopped between two steps: {event.severity} at {event.line}", event)

    def receive(self, sent: Mapping[int, Iterable[Event]], own: Iterable[Event]) -> None:
        """Add the events of other processes, by rank. An event found by several processes is added once."""
        known = {_what(event) for event in own}
        for rank, events in sent.items():
            for event in events:
                if _what(event) not in known:
                    known.add(_what(event))
                    numbers = {**event.numbers, "rank": rank}
                    self._put(event._replace(body={**event.body, "numbers": numbers}))

    def take_unsent(self, until: int, most: int) -> list[Event]:
        """The first events of this process, up to this step, that the others do not know; the rest waits."""
        waiting = [self._unsent.popleft() for _ in range(len(self._unsent))]  # any thread may add more
        due = [event for event in waiting if event.step <= until]
        self._unsent.extend([*due[most:], *(event for event in waiting if event.step > until)])
        return due[:most]

    @property
    def _state(self) -> Reports | None:
        return None if self._reports is None else self._reports()

    def _show(self, item: tuple[Event, bool]) -> None:
        event, is_known = item
        self._kept.append(event)
        for visualizer in [found for known in (*self._visualizers, *self._others) if (found := known()) is not None]:
            try:
                visualizer.show_event(event)
            except Exception as error:
                tell(self._state, f"showing an event in {type(visualizer).__name__}", error)
        try:
            logger.log(LEVELS[event.severity], "monitorch: %s", event.line)  # many programs print only the message
        except Exception as error:  # of a filter or a handler
            tell(self._state, "logging an event", error)
        if self._on_event is not None and not is_known:
            self.waiting.append(event)
        if self.stop is None and self.stop_on is not None and _rank(event.severity) >= _rank(self.stop_on):
            self.stop = event

    @property
    def _on_event(self) -> Callable[[Event], object] | None:
        owner = None if self._owner is None else self._owner()
        found: Callable[[Event], object] | None = None if owner is None else owner.on_event
        return found

    def _call(self, event: Event) -> None:
        self._caller = threading.get_ident()
        try:
            on_event = self._on_event
            if on_event is not None:
                on_event(event)
        except Exception as error:
            if is_news(self._state, "on_event"):
                text = f"on_event failed: {cause_of(error)}. Training goes on, and it is called with later events"
                warn(text)
        finally:
            self._caller = None


T = TypeVar("T")


class Queue(deque[T]):
    """Events on their way to a function, which gets them one at a time and in order.

    Nobody waits: if another thread, or a caller of this one, is already handing events over, it also takes the new
    ones.
    """

    def __init__(self, receive: Callable[[T], None]) -> None:
        super().__init__()
        self._receive = receive
        self._busy = threading.Lock()

    def hand_over(self) -> None:
        """Hand over all events."""
        while self and self._busy.acquire(blocking=False):
            try:
                while self:
                    self._receive(self.popleft())
            finally:
                self._busy.release()


def check(on_event: Any, stop_on: Any) -> None:
    """Refuse wrong options."""
    if on_event is not None and not callable(on_event):
        raise OptionError(f"on_event={on_event!r} must be a function that takes an event")
    if stop_on not in STOPPING:
        raise OptionError.unknown("stop_on", stop_on, STOPPING)


def _what(event: Event) -> tuple[Any, ...]:
    """The fields that are equal when two processes report the same event."""
    return event.step, event.kind, event.severity, event.layer, event.statistic


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity)


def _plain(name: str, number: Any) -> float:
    if isinstance(number, Integral):
        return int(number)
    if isinstance(number, Real):
        return float(number)
    raise OptionError(f"the numbers of an event are plain numbers, and {name}={number!r} is not one")
