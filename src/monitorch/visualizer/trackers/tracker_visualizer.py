"""Hands ticks to a tracker, in a thread of its own."""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ...diagnosis.finding import Finding, moved, verdict
from ...errors import warn
from ...store import Event, Layer
from ...store.run_list import time_name
from ...store.types import INFO
from ..frame import Moment, TagFrame, frames_of
from ..record import Record
from ..record_sink import RecordSink
from .digest import Digest, Scalars, histograms, totals
from .tracker import TrackedRun, Tracker

QUEUE_LENGTH = 64
"""How many ticks may wait for a slow tracker; further ones are left out."""

CLOSE_SECONDS = 60.0
"""How long the end of a run waits for a tracker that does not answer."""

MOST_ALERTS = 20
"""One problem leads to many others."""

NO_FACTS: Mapping[str, str] = MappingProxyType({})

SHARE_OF_HISTOGRAMS = 0.05
"""The share of time that histograms may take."""


class TrackedTick(NamedTuple):
    """The numbers of one step."""

    step: int
    frames: list[TagFrame]


class TrackerVisualizer(RecordSink):
    """Writes a digest of each tick to a tracker.

    A tracker cannot stop training: a failure becomes one warning, and later ticks are tried again.

    A run watched with ``monitorch.watch(..., trackers=...)`` makes these by itself. For an inspector of your own, close
    it at the end: it may be used in a ``with`` statement.

    Args:
        tracker: where to write.
    """

    deferred = True

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._digest, self._sender = Digest(tracker.include), Sender(type(tracker).__name__)
        self._first_step, self._closed = 0, False
        self._tick: list[TrackedTick] = []
        self._skipped: dict[str, tuple[int, float]] = {}
        """The newest numbers of the whole run in ticks that were not due, and their steps."""
        self._last: list[TrackedTick] | None = None
        """A tick that was not due; the last one of a run is written at its end."""
        self._ticks, self._due, self._alerts = 0, 0.0, 0
        self._histograms_due = 0.0
        self._written: tuple[int, Scalars] | None = None
        """The step of the last row, and the finding counts in it."""
        self._findings: Sequence[Finding] | None = None

    @property
    def busy_seconds(self) -> float:  # type: ignore[override]
        """CPU seconds used by the thread."""
        return self._sender.busy_seconds

    @property
    def is_tracking(self) -> bool:
        """Whether the tracker was started, and not closed."""
        return self._sender.is_started and not self._closed

    def begin(self, run: TrackedRun, facts: Mapping[str, str] = NO_FACTS, first_step: int = 0) -> None:
        """Start the tracker now, instead of at the first number; in several processes only the main one does.

        Args:
            run: what is tracked.
            facts: what to tell about it.
            first_step: added to all steps: a run that is continued counts from 0 again.
        """
        self._first_step = first_step
        if not self._sender.is_started and not self._closed:
            self._sender.start(partial(self.tracker.start, run))
            if facts:
                self._sender.send(partial(self.tracker.note, facts))
        self._warn()

    def describe_layers(self, layers: Iterable[tuple[str, str, int]]) -> None:
        """Take the layers of the model."""
        self._sender.send(partial(self._digest.describe_layers, [Layer(*layer) for layer in layers]))

    def continue_from(self, step: int) -> None:
        """The inspector continues from a checkpoint, and counts on from its step."""
        self._first_step = 0

    def show_event(self, event: Event) -> None:
        """Pass on what is wrong as an alert, from any thread."""
        if event.severity == INFO or self._alerts >= MOST_ALERTS or self._closed:
            return
        self._alerts += 1
        title = event.kind if event.layer is None else f"{event.kind} in {event.layer}"
        step = event.step + self._first_step
        self._sender.send(partial(self.tracker.alert, step, title, event.details, event.severity))

    def show_findings(self, findings: Sequence[Finding]) -> None:
        """Take all findings so far, for the next tick."""
        self._findings = [moved(one, self._first_step) for one in findings]
        self._sender.send(partial(self._digest.take_findings, self._findings))

    def write(self, records: Sequence[Record]) -> None:
        """Keep records until their tick is complete."""
        for moment, frame in frames_of(records, self.tags):
            self.write_frames(moment, [frame])

    def write_frames(self, moment: Moment, frames: Sequence[TagFrame]) -> None:
        """The same for whole arrays."""
        if not self._tick or self._tick[-1].step != moment.step:
            self._tick.append(TrackedTick(moment.step, []))
        self._tick[-1].frames.extend(frames)

    def flush(self) -> None:
        """End a tick, and write it if one is due."""
        tick, self._tick = self._tick, []
        if not tick or self._closed:
            return
        if not self._sender.is_started:
            self.begin(TrackedRun(time_name(), {}))
        now, self._ticks = time.monotonic(), self._ticks + 1
        is_due = (self._ticks - 1) % self.tracker.every_ticks == 0 and now >= self._due
        self._last = None if is_due else tick
        if is_due:
            self._due = now + self.tracker.every_seconds
        self._sender.send(partial(self._write if is_due else self._skip, tick))
        self._warn()

    def close(self, status: str = "finished", report: Path | None = None) -> None:
        """Write what is left, and finish what was started; calling it again does nothing.

        Args:
            status: how the run ended, ``"finished"`` or ``"crashed"``.
            report: the file with the report of the run.
        """
        if self.wait_for_ticks is not None:
            self.wait_for_ticks()
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._sender.is_started:
            self._sender.send(partial(self._end, report))
            self._sender.close(partial(self.tracker.close, status))
        self._warn()

    def __enter__(self) -> "TrackerVisualizer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("finished" if kind is None else "crashed")

    def _warn(self) -> None:
        for text in self._sender.take_notices():
            warn(text)

    # in the thread of the sender

    def _skip(self, tick: list[TrackedTick]) -> None:
        """Keep the newest numbers of the whole run, so that a validation loss is not lost."""
        for step, frames in tick:
            for name, value in _totals(frames).items():
                self._skipped[name] = step, value

    def _write(self, tick: list[TrackedTick]) -> None:
        *earlier, (step, frames) = tick
        rows: dict[int, Scalars] = {}
        now = self._digest.of(frames)
        known = now.keys() | {name for one in earlier for name in _totals(one.frames)}
        skipped, self._skipped = self._skipped, {}
        for name, (before, value) in skipped.items():
            if name not in known:
                rows.setdefault(before, {})[name] = value
        for before, own in earlier:
            rows.setdefault(before, {}).update(_totals(own))
        rows[step] = rows.get(step, {}) | now
        for own_step in sorted(rows):
            self._scalars(own_step, rows[own_step])
        self._written = step, self._digest.of_findings()
        wanted = self.tracker.shown_histograms
        if wanted is not None and time.monotonic() >= self._histograms_due:
            begin = time.monotonic()
            found = {f"{self.tracker.prefix}{name}": one for name, one in histograms(frames, wanted).items()}
            if found:
                self.tracker.histograms(step + self._first_step, found)
                now_done = time.monotonic()
                self._histograms_due = now_done + (now_done - begin) / SHARE_OF_HISTOGRAMS

    def _scalars(self, step: int, numbers: Scalars) -> None:
        if numbers:
            named = {f"{self.tracker.prefix}{name}": value for name, value in numbers.items()}
            self.tracker.scalars(step + self._first_step, named)

    def _end(self, report: Path | None) -> None:
        if self._last is not None:
            self._histograms_due = 0.0
            self._write(self._last)
        if self._findings is not None:
            facts = {"verdict": verdict(self._findings)}
            if self._findings:
                facts["findings"] = "\n".join(f"{one.line} {one.remedy.text}" for one in self._findings)
            if self._written is not None and self._written[1] != self._digest.of_findings():
                self._scalars(self._written[0], self._digest.of_findings())
            self.tracker.note(facts)
        if report is not None and self.tracker.report:
            self.tracker.note({"report": str(report)})
            self.tracker.artifact(report)


def _totals(frames: Iterable[TagFrame]) -> Scalars:
    return {name: value for frame in frames if frame.is_total for name, value in totals(frame).items()}


class Sender:
    """Calls functions one after the other in a thread; their errors become notices.

    Args:
        name: what is written to, for notices.
    """

    def __init__(self, name: str) -> None:
        self.busy_seconds = 0.0
        self.is_started = False
        self._name, self._process = name, os.getpid()
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(QUEUE_LENGTH)
        self._thread: threading.Thread | None = None
        self._before: list[Callable[[], object]] = []
        self._notices: deque[str] = deque()
        self._told: set[str] = set()

    def start(self, begin: Callable[[], object]) -> None:
        """Call this now and, if it works, all others from then on in another thread."""
        self.is_started = True
        try:
            begin()
        except Exception as error:
            self._tell("failure", f"{self._name} cannot be started: {_cause(error)}. Training goes on without it")
            return
        self._thread = threading.Thread(target=self._run, name=f"monitorch {self._name}", daemon=True)
        self._thread.start()
        for task in self._before:
            self.send(task)

    def send(self, task: Callable[[], object]) -> None:
        """Call this later; before the start, all of them are kept."""
        if not self.is_started:
            self._before = [*self._before[-QUEUE_LENGTH:], task]
        elif self._thread is not None and self._process == os.getpid():  # a forked process has no such thread
            try:
                self._queue.put_nowait(task)
            except queue.Full:
                self._tell("slow", f"{self._name} is slower than the ticks, so some are left out. Try every_seconds=5")

    def close(self, end: Callable[[], object]) -> None:
        """Wait until everything is written, then call ``end``; a tracker that does not answer is abandoned."""
        if self._thread is None or self._process != os.getpid():
            return
        until, thread, self._thread = time.monotonic() + CLOSE_SECONDS, self._thread, None
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_SECONDS)
            thread.join(max(until - time.monotonic(), 0))
        if thread.is_alive():
            text = f"{self._name} did not answer for {CLOSE_SECONDS:.0f} seconds: what was left is not written"
            self._tell("silence", text)
            return
        try:
            end()
        except Exception as error:
            self._tell("failure", f"{self._name} cannot be finished: {_cause(error)}")

    def take_notices(self) -> list[str]:
        """What the user has to know."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            try:
                task()
            except Exception as error:
                text = f"{self._name} failed: {_cause(error)}. Training goes on, and later numbers are tried again"
                self._tell("failure", text)
            finally:
                self.busy_seconds = time.thread_time()

    def _tell(self, kind: str, text: str) -> None:
        """Leave a notice, only the first of each kind."""
        if kind not in self._told:
            self._told.add(kind)
            self._notices.append(text)


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
