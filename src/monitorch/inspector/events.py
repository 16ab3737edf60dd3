"""Events of a run: what happened at a step, for the visualizers, the log and the user's own function."""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from ..engine.reports import Reports, tell
from ..errors import OptionError
from ..store.types import SEVERITIES, Event

KEPT = 1000
"""How many events are kept for :meth:`Events.kept`; older ones are dropped there, not in a stored run."""

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
"""The level of a log line, by severity."""

logger = logging.getLogger("monitorch")


class Events:
    """The one stream of events of an inspector; any thread may add to it.

    Visualizers and the log get an event at once, from the thread that adds it, one at a time and in order.

    Args:
        state: the state of the inspector, which reports errors.

    >>> events = Events()
    >>> events.add(12, "dead units", "warning", layer="fc1", text="no unit is active", numbers={"share": 1.0})
    >>> events.kept()[0].text, events.kept()[0].numbers
    ('no unit is active', {'share': 1.0})
    """

    def __init__(self, state: Reports | None = None) -> None:
        self._state = None if state is None else weakref.ref(state)
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._visualizers: list[weakref.ref[Any]] = []
        self._to_show = Queue(self._show)

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
            text: what one has to know, in a sentence.
            numbers: plain numbers by name; a tensor would have to be waited for.
        """
        if severity not in SEVERITIES:
            raise OptionError.unknown("severity", severity, SEVERITIES)
        body: dict[str, Any] = {"text": text} if text else {}
        if numbers:
            body["numbers"] = {name: _plain(name, number) for name, number in numbers.items()}
        self.put(Event(int(step), kind, severity, time=time.time(), layer=layer, body=body))

    def put(self, event: Event) -> None:
        """The same for an event that is made already."""
        self._kept.append(event)
        self._to_show.put(event)

    def kept(self) -> list[Event]:
        """The newest events, oldest first."""
        return list(self._kept)

    def show_in(self, visualizers: Iterable[Any]) -> None:
        """Show events from now on in those of these that have the method ``show_event``."""
        self._visualizers = [weakref.ref(one) for one in visualizers if hasattr(one, "show_event")]

    def _show(self, event: Event) -> None:
        state = None if self._state is None else self._state()
        for known in self._visualizers:
            visualizer = known()
            try:
                if visualizer is not None:
                    visualizer.show_event(event)
            except Exception as error:
                tell(state, f"showing an event in {type(visualizer).__name__}", error)
        try:
            logger.log(LEVELS[event.severity], "%s", event.line)
        except Exception as error:  # a filter or handler of the user
            tell(state, "logging an event", error)


class Queue:
    """Hands events to a function, one at a time and in order, whoever brings them; nobody waits.

    If another thread, or this one further up, is handing one over just now, it takes the new ones, too.
    """

    def __init__(self, receive: Callable[[Event], None]) -> None:
        self._receive = receive
        self._events: deque[Event] = deque()
        self._busy = threading.Lock()

    def put(self, event: Event) -> None:
        """Hand over this event."""
        self._events.append(event)
        while self._events and self._busy.acquire(blocking=False):
            try:
                while self._events:
                    self._receive(self._events.popleft())
            finally:
                self._busy.release()


def _plain(name: str, number: Any) -> float:
    if isinstance(number, Integral):
        return int(number)
    if isinstance(number, Real):
        return float(number)
    raise OptionError(f"numbers of an event are plain numbers: {name}={number!r} is not one")
