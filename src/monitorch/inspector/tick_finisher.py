"""Finishes ticks in a thread of its own, so that training goes on."""

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import kept_warnings, warn

AT_EXIT = 60.0
"""Seconds to wait for the last ticks when Python exits."""

PART, REST = 0.001, 9.0
"""A tick that takes its time works so many seconds at least, and then rests so much longer than it has worked."""


class TickFinisher:
    """Runs ticks one after the other; :meth:`wait` returns when they are done.

    Its thread must not wait for itself: everything a tick reads is ready by then. The thread does not keep a program
    from exiting. Ctrl-C may come anywhere, also before the thread has begun: whoever waits then begins another one.

    Args:
        spend: called with the seconds that its thread was busy.
    """

    def __init__(self, spend: Callable[[float], None]) -> None:
        self._spend = spend
        self._forget()
        self._waits_at_exit = False

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._process, self._thread = os.getpid(), 0
        self._ticks: deque[Callable[[], None]] = deque()
        self._is_busy = False
        """Whether a thread takes the ticks."""
        self._is_running = False
        """Whether a tick is being run."""
        self._waiting = 0
        """How many threads wait for ticks."""
        self._rested_at = 0.0
        """How long the thread had worked when it began the tick, or last rested."""
        self._errors: list[Exception] = []
        self._warnings: list[str] = []
        self._done: list[Callable[[], None]] = []
        """Finished ticks, kept so that their pinned memory is not freed in this thread, which could break a CUDA graph
        capture."""

    def __reduce__(self) -> tuple[Any, ...]:
        return TickFinisher, (self._spend,)  # a copy has nothing to run

    def start(self, tick: Callable[[], None]) -> None:
        """Run this tick in the other thread, after those that wait there."""
        if self._process != os.getpid():  # a forked process has no such thread
            self._forget()
        if not self._waits_at_exit:
            self._waits_at_exit = True
            _wait_at_exit(self)
        with self._changed:
            self._ticks.append(tick)
            self._changed.notify_all()
        self._begin()

    def rest(self) -> None:
        """Called by a tick between two of its parts: let the training thread run, unless somebody waits for the tick.

        Python runs one thread at a time. A device has enough to do while the training thread is stopped for a moment,
        but not while it is stopped for a whole tick.
        """
        if not self.is_this_thread:
            return
        worked = time.thread_time() - self._rested_at
        if worked < PART:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ticks, REST * worked)
        self._rested_at = time.thread_time()

    def _begin(self) -> None:
        """Have a thread take the ticks, if there are any and none does."""
        with self._changed:
            is_needed = bool(self._ticks) and not self._is_busy
        if not is_needed:
            return
        try:
            threading.Thread(target=self._work, name="monitorch tick", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
            self._work()

    @property
    def _unfinished(self) -> int:
        return len(self._ticks) + self._is_running

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is a tick that is being run."""
        return threading.get_ident() == self._thread

    @property
    def is_done(self) -> bool:
        """Whether no tick waits or runs."""
        return self._unfinished == 0 or self._process != os.getpid()

    def wait(self, most: int = 0, patience: float | None = None) -> bool:
        """Wait until at most ``most`` ticks are unfinished. Issues their warnings and raises their first error.

        Returns:
            False if that took longer than ``patience`` seconds.
        """
        if self._process != os.getpid():
            return True
        self._begin()
        came = self._wait_for(lambda: self._unfinished <= most, patience)
        with self._changed:
            errors, warnings, self._errors, self._warnings, self._done = self._errors, self._warnings, [], [], []
        for text in warnings:
            warn(text)
        if errors:
            raise errors[0]
        return came

    def _wait_for(self, is_reached: Callable[[], bool], patience: float | None) -> bool:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.notify_all()  # a tick that rests goes on
                return self._changed.wait_for(is_reached, patience)
            finally:
                self._waiting -= 1

    def _work(self) -> None:
        with self._changed:
            if self._is_busy:  # another thread has begun at the same time
                return
            self._is_busy, self._thread = True, threading.get_ident()
        try:
            while self._run_next():
                pass
        except BaseException:
            self._is_busy, self._thread = False, 0
            raise

    def _run_next(self) -> bool:
        """Run the tick that has waited longest; False if none waits: then this thread takes no more."""
        with self._changed:
            if not self._ticks:
                self._is_busy, self._thread = False, 0
                return False
            self._is_running = True
            tick = self._ticks.popleft()
        begin = self._rested_at = time.thread_time()
        error: Exception | None = None
        texts: list[str] = []
        try:
            with kept_warnings() as texts:
                error = _error_of(tick)
        finally:
            with self._changed:
                self._errors += [] if error is None else [error]
                self._warnings += texts
                self._done.append(tick)
                self._is_running = False
                self._spend(time.thread_time() - begin)
                self._changed.notify_all()
        return True


def _error_of(tick: Callable[[], None]) -> Exception | None:
    """Run a tick; its error, if it fails."""
    try:
        tick()
    except Exception as error:
        return error
    except BaseException as error:  # such as SystemExit, which must not end training or this thread
        return RuntimeError(f"a tick was ended by {error!r}")
    return None


def _wait_at_exit(finisher: TickFinisher) -> None:
    """Wait for the last ticks when Python exits, for a limited time; errors are dropped, as nobody could see them."""
    known = weakref.ref(finisher)

    def wait() -> None:
        found = known()
        if found is not None and found._process == os.getpid():
            found._begin()
            found._wait_for(lambda: found.is_done, AT_EXIT)

    atexit.register(wait)
    weakref.finalize(finisher, atexit.unregister, wait).atexit = False
