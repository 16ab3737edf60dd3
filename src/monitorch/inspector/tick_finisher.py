"""Finishes ticks in a thread of its own, so that training goes on."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ..errors import kept_warnings, warn


class TickFinisher:
    """Runs one tick at a time; :meth:`wait` returns when it is done.

    Its thread must not wait for itself: what a tick reads is complete by then.

    Args:
        spend: is told how long its thread was busy, in seconds.
    """

    def __init__(self, spend: Callable[[float], None]) -> None:
        self._spend = spend
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._thread = 0
        self._process = os.getpid()
        self._warnings: list[str] = []
        self._tick: Callable[[], None] | None = None
        """What it runs; kept, so that pinned memory is not freed in its thread, where a CUDA graph may be captured."""

    def start(self, tick: Callable[[], None]) -> None:
        """Run this tick in the other thread."""
        if self._pool is None or self._process != os.getpid():  # a forked process has no such thread
            self._pool, self._process = ThreadPoolExecutor(1, "monitorch tick"), os.getpid()
        try:
            self._tick = tick
            self._running = self._pool.submit(self._run, tick)
        except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
            tick()

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is a tick that is being run."""
        return threading.get_ident() == self._thread

    def wait(self) -> None:
        """Wait for the tick; its warnings come now, and its error is raised."""
        if self._process != os.getpid():
            return
        running, self._running = self._running, None
        try:
            if running is not None:
                running.result()
        finally:
            self._tick = None
            warnings, self._warnings = self._warnings, []
            for text in warnings:
                warn(text, stacklevel=4)

    def _run(self, tick: Callable[[], None]) -> None:
        self._thread, begin = threading.get_ident(), time.thread_time()
        with kept_warnings() as texts:
            try:
                tick()
            finally:
                self._warnings += texts
                self._spend(time.thread_time() - begin)
