"""The thread that writes, so that training does not wait for a disk."""

import os
import queue
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .backend import Backend
from .parts import Frame, Meta, Operation

COMMIT_SECONDS = 0.5
"""Operations are stored in groups, the first of which waits so long."""

HEARTBEAT_SECONDS = 2.0
MAINTAIN_SECONDS = 60.0
RETRY_SECONDS = 5.0
"""After a failure what arrives is dropped for so long, then storing is tried again."""

QUEUE_LENGTH = 512
GROUP_LENGTH = 512
GROUP_BYTES = 8 * 2**20


class Worker(threading.Thread):
    """Takes operations from a bounded queue and stores them in groups; without a backend it drops them."""

    def __init__(self) -> None:
        super().__init__(name="monitorch store", daemon=True)
        self.queue: queue.Queue[Any] = queue.Queue(QUEUE_LENGTH)
        self.backend: Backend | None = None
        self.pid = os.getpid()
        self.problem: str | None = None
        self.dropped = 0
        self._lock = threading.Lock()
        self._group: list[Operation] = []
        self._bytes = 0
        self._retry_at = 0.0

    def drop(self, frames: int) -> None:
        """Count frames that are lost."""
        with self._lock:
            self.dropped += frames

    def sign_of_life(self, facts: Mapping[str, Any]) -> Meta:
        """What goes with everything that is stored."""
        return Meta({"heartbeat": time.time(), "dropped": self.dropped, **facts})

    def run(self) -> None:
        """Live until somebody asks for the end."""
        commit_at = maintain_at = time.monotonic()
        while True:
            item = self._next(commit_at - time.monotonic())
            if isinstance(item, Request):
                self._retry_at = 0.0  # whoever asks wants it tried
                self._commit()
                if item.is_last:
                    self._commit(item.facts)
                    self._end()
                    item.done.set()
                    return
                item.done.set()
            elif item is not None:
                if not self._group:
                    commit_at = min(commit_at, time.monotonic() + COMMIT_SECONDS)
                self._group.append(item)
                self._bytes += item.values.nbytes if isinstance(item, Frame) else 0
            if time.monotonic() >= commit_at or self._is_large():
                self._commit()
                commit_at = time.monotonic() + HEARTBEAT_SECONDS
                if commit_at > maintain_at:
                    self._maintain()
                    maintain_at = commit_at + MAINTAIN_SECONDS

    def _next(self, seconds: float) -> Any:
        try:
            return self.queue.get(timeout=max(seconds, 0))
        except queue.Empty:
            return None

    def _is_large(self) -> bool:
        return len(self._group) >= GROUP_LENGTH or self._bytes >= GROUP_BYTES

    def _commit(self, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
        group, self._group, self._bytes = self._group, [], 0
        if self.backend is None or time.monotonic() < self._retry_at:
            self.drop(_frames(group))
            return
        try:
            self.backend.write([*group, self.sign_of_life(facts)])
        except Exception as error:  # whatever it is, training goes on, and so does this thread
            self._fail(error)
            self.drop(_frames(group))

    def _maintain(self) -> None:
        if self.backend is not None:
            try:
                self.backend.maintain()
            except Exception as error:
                self._fail(error)

    def _end(self) -> None:
        if self.backend is not None:
            try:
                self.backend.close()
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self.problem = self.problem or f"{type(error).__name__}: {error}"


class Request:
    """Asks the worker to store everything it has.

    Args:
        is_last: and to finish.
        facts: what to note about the run.
    """

    def __init__(self, is_last: bool = False, **facts: Any) -> None:
        self.done = threading.Event()
        self.is_last, self.facts = is_last, facts


def _frames(operations: list[Operation]) -> int:
    return sum(isinstance(operation, Frame) for operation in operations)
