"""The thread that writes, so that training does not wait for a disk."""

import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..statistic import Statistic
from .backend import Backend
from .database import OwnerChangedError
from .frame_log import FullError
from .types import NUMBERS, Frame, Looks, Meta, ModelLayers, Operation, PackedHistograms, PackedSamples

COMMIT_SECONDS = 0.5
"""Operations are stored in groups; the first one of a group waits this many seconds."""

HEARTBEAT_SECONDS = 2.0
MAINTAIN_SECONDS = 60.0
RETRY_SECONDS = 5.0
"""After a failure operations are dropped for this many seconds, then storing is tried again."""

QUEUE_LENGTH = 512
GROUP_LENGTH = 512
GROUP_BYTES = 8 * 2**20

_OF_THE_DISK = (OSError, sqlite3.OperationalError)


class Worker(threading.Thread):
    """Takes operations from a bounded queue and stores them in groups.

    If there is no file, or it is gone, it makes a new one; while that fails, it drops operations. Errors are not raised
    here: they go to ``notices``, and the next call of the writer shows them.

    Args:
        folder: the folder of the run, for notices.
        renew: makes a new file that begins with these operations.
    """

    def __init__(self, folder: Path, renew: Callable[[Sequence[Operation]], Backend]) -> None:
        super().__init__(name="monitorch store", daemon=True)
        self.queue: queue.Queue[Any] = queue.Queue(QUEUE_LENGTH)
        self.backend: Backend | None = None
        self.prologue = Prologue()
        self.pid = os.getpid()
        self.notices: deque[str] = deque()
        self.dropped = 0
        self.busy_seconds = 0.0
        """How long the processor has worked for this thread."""
        self._folder, self._renew = folder, renew
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._group: list[Operation] = []
        self._bytes = 0
        self._retry_at = 0.0
        self._owes_prologue = False
        self._commit_at = self._maintain_at = time.monotonic()

    def drop(self, frames: int) -> None:
        """Count lost frames."""
        with self._lock:
            self.dropped += frames

    def sign_of_life(self, facts: Mapping[str, Any]) -> Meta:
        """The heartbeat, which is stored with every group."""
        return Meta({"heartbeat": time.time(), "dropped": self.dropped, **facts})

    def fail(self, error: Exception) -> None:
        """Leave a notice of the first failure, and try again later."""
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._tell_of_failure(error)

    def _tell_of_failure(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._tell("failure", f"the run cannot be stored in {self._folder}: {reason}. Training goes on without it")

    def run(self) -> None:
        """Work until the end is requested."""
        is_over = False
        while not is_over:
            item = self._next(self._commit_at - time.monotonic())
            try:
                is_over = self._turn(item)
            except Exception as error:  # whatever it is, training and this thread go on
                self.fail(error)
                is_over = isinstance(item, FlushRequest) and item.is_last
            finally:
                self.busy_seconds = time.thread_time()
                if isinstance(item, FlushRequest):
                    item.done.set()

    def _turn(self, item: Any) -> bool:
        """Handle waiting operations and due maintenance; whether this was the last turn."""
        if isinstance(item, FlushRequest):
            self._retry_at = 0.0  # a request means: try again now
            self._commit()
            if item.is_last:
                self._retry_at = 0.0
                self._commit(item.facts)
                self._end()
                return True
        elif item is not None:
            if not self._group:
                self._commit_at = min(self._commit_at, time.monotonic() + COMMIT_SECONDS)
            self._group.append(item)
            self._bytes += _size(item)
        if time.monotonic() >= self._commit_at or len(self._group) >= GROUP_LENGTH or self._bytes >= GROUP_BYTES:
            self._commit()
            self._commit_at = time.monotonic() + HEARTBEAT_SECONDS
            if self._commit_at > self._maintain_at:
                self._maintain_at = self._commit_at + MAINTAIN_SECONDS
                if self.backend is not None:
                    self.backend.maintain()
        return False

    def _next(self, seconds: float) -> Any:
        try:
            return self.queue.get(timeout=max(seconds, 0))
        except queue.Empty:
            return None

    def _commit(self, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
        group, self._group, self._bytes = self._group, [], 0
        for operation in group:
            self.prologue.keep(operation)
        if time.monotonic() < self._retry_at:
            self.drop(_frames(group))
            return
        try:
            self._write([*group, self.sign_of_life(facts)])
        except FullError as error:
            self.drop(_frames(group))
            self._tell_of_failure(error)
            self._write_each([*(own for own in group if not isinstance(own, NUMBERS)), self.sign_of_life(facts)])
        except _OF_THE_DISK as error:
            self._owes_prologue = True
            self.drop(_frames(group))
            self.fail(error)
        except Exception as error:  # one operation of the group is at fault: store the others
            self._tell("left out", f"something cannot be stored: {type(error).__name__}: {error}. It is left out")
            self._write_each([*group, self.sign_of_life(facts)])

    def _write(self, operations: Sequence[Operation]) -> None:
        backend = self._present()
        owed = self.prologue.operations() if self._owes_prologue else []
        try:
            backend.write([*owed, *operations])
        except OwnerChangedError:
            self._replace(backend, f"another process has taken over {backend.path}").write(operations)
        self._owes_prologue = False

    def _write_each(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            try:
                self._write([operation])
            except Exception as error:
                self.drop(_frames([operation]))
                if isinstance(error, _OF_THE_DISK):
                    self.fail(error)

    def _present(self) -> Backend:
        """The file, or a new one if it is gone or was never made."""
        if self.backend is None:
            self.backend = self._renew(self.prologue.operations())
        elif self.backend.is_lost():
            return self._replace(self.backend, f"{self.backend.path} was removed or moved while it was being written")
        return self.backend

    def _replace(self, backend: Backend, reason: str) -> Backend:
        self.backend = None
        backend.abandon()
        self.backend = self._renew(self.prologue.operations())
        self._tell("replaced", f"{reason}. From now on the run is stored in {self.backend.path}")
        return self.backend

    def _end(self) -> None:
        if self.backend is not None:
            try:
                self.backend.close()
            except Exception as error:
                self.fail(error)

    def _tell(self, kind: str, text: str) -> None:
        """Leave a notice, only the first of each kind."""
        if kind not in self._told:
            self._told.add(kind)
            self.notices.append(text)


class Prologue:
    """What a file must contain before any numbers; kept, since a new file may be needed at any time."""

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}
        self._layers: dict[tuple[str, ...], ModelLayers] = {}
        self._looks: dict[tuple[str, str], Statistic] = {}

    def keep(self, operation: Operation) -> None:
        """Remember operations that are not numbers or events."""
        if isinstance(operation, Meta):
            self._facts.update(operation.facts)
        elif isinstance(operation, ModelLayers):
            names = tuple(layer.name for layer in operation.layers)
            self._layers.pop(names, None)
            self._layers[names] = operation
        elif isinstance(operation, Looks):
            self._looks.update({(operation.lens, statistic.name): statistic for statistic in operation.statistics})

    def operations(self) -> list[Operation]:
        """All of it."""
        looks = [Looks(lens, (statistic,)) for (lens, _), statistic in self._looks.items()]
        return [Meta(dict(self._facts)), *self._layers.values(), *looks]


class FlushRequest:
    """Asks the worker to store everything it has.

    Args:
        is_last: also finish.
        facts: what to note about the run.
    """

    def __init__(self, is_last: bool = False, **facts: Any) -> None:
        self.done = threading.Event()
        self.is_last, self.facts = is_last, facts


def _frames(operations: Sequence[Operation]) -> int:
    return sum(isinstance(operation, (Frame, PackedHistograms)) for operation in operations)


def _size(operation: Operation) -> int:
    """How many bytes of numbers it has."""
    if isinstance(operation, (PackedHistograms, PackedSamples)):
        return len(operation.data)
    return operation.values.nbytes if isinstance(operation, Frame) else 0
