"""Storing a run while it trains."""

import json
import os
import platform
import queue
import socket
import sqlite3
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np

from .. import __version__
from ..errors import LifecycleError, OptionError, StoreError, warn
from .backend import open_backend
from .failure import Failure
from .journal import JOURNALS, Journal
from .library import file_of, status_of
from .parts import ENDS, SEVERITIES, Event, Frame, Layer, Looks, Meta, ModelLayers, Operation, Segment, Statistic
from .source import NothingStoredError
from .status import ending, uncaught
from .worker import Request, Worker

FilePath: TypeAlias = str | os.PathLike[str]

PUT_SECONDS = 0.05
"""The longest that training waits for the store: then the frame is dropped, and the next ones too, without waiting,
until there is room again."""

CLOSE_SECONDS = 60.0
SMALLEST_SIZE = 2**20


class Writer:
    """Stores frames and events of one process of a run, in a thread of its own.

    What goes wrong with the disk is a warning, once; training goes on and what was stored stays readable.

    Args:
        folder: of the run; it is made, its name is the name of the run.
        rank: of this process; each has a file of its own.
        meta: facts to store: config, versions, whatever JSON can say.
        resume: continue a run that is there; without it such a run is an error.
        resume_step: what was stored for later steps is hidden from readers; None hides nothing.
        max_size: how many bytes the file may take: then the oldest ticks are kept as averages only.
        journal: ``"wal"``, ``"truncate"`` or ``"log"``; None tries what the file system can do.
    """

    def __init__(
        self,
        folder: FilePath,
        *,
        rank: int = 0,
        meta: Mapping[str, Any] | None = None,
        resume: bool = False,
        resume_step: int | None = None,
        max_size: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.check(meta, resume, resume_step, max_size, journal)
        self.folder, self.rank = Path(folder).absolute(), rank
        self._closed = self._is_full = self._warned = False
        self.resumed_step: int | None = None
        self._worker = Worker()
        try:
            self._open(resume, resume_step, max_size, journal, dict(meta or {}))
        except (OSError, sqlite3.Error) as error:
            self._worker.problem = f"{type(error).__name__}: {error}"
        self._worker.start()
        # a writer that nobody closes is closed when it is dropped, at the latest when Python ends
        self._ending = weakref.finalize(self, _end, self._worker, None)
        self._warn(stacklevel=3)

    @staticmethod
    def check(
        meta: Mapping[str, Any] | None = None,
        resume: bool = False,
        resume_step: int | None = None,
        max_size: int | None = None,
        journal: str | None = None,
    ) -> None:
        """Refuse options that are wrong, before anything is made."""
        json_checked("meta", dict(meta or {}))
        if max_size is not None and (not isinstance(max_size, int) or max_size < SMALLEST_SIZE):
            raise OptionError(f"max_size={max_size!r} must be a number of bytes, at least {SMALLEST_SIZE}")
        if journal is not None and journal not in JOURNALS:
            raise OptionError.unknown("journal", journal, JOURNALS)
        if resume_step is not None and not resume:
            raise OptionError(f"resume_step={resume_step!r} is for resume=True")

    @property
    def path(self) -> Path | None:
        """The file; None if it could not be made."""
        return self._worker.backend.path if self._worker.backend else None

    @property
    def dropped(self) -> int:
        """How many frames were lost, because the disk was too slow or full."""
        return self._worker.dropped

    def put(
        self,
        lens: str,
        step: int,
        values: Any,
        *,
        layers: Sequence[str],
        statistics: Sequence[str],
        epoch: int = 0,
        time: float | None = None,
    ) -> bool:
        """Store the numbers of a lens at a tick, ``values[statistic, layer]``; False if they had to be dropped."""
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and counted as such
            numbers = np.array(values, np.float32, order="C")
        names = tuple(statistics), tuple(layers)
        if numbers.shape != (len(names[0]), len(names[1])):
            wanted = f"one row for each of {len(names[0])} statistics and one column for each of {len(names[1])} layers"
            raise OptionError(f"values has the shape {numbers.shape}; it takes {wanted}")
        return self._put(Frame(lens, int(step), int(epoch), _now() if time is None else float(time), *names, numbers))

    def event(self, step: int, kind: str, severity: str = "info", **details: Any) -> bool:
        """Store an event; ``details`` are the other fields of :class:`Event`."""
        if severity not in SEVERITIES:
            raise OptionError.unknown("severity", severity, SEVERITIES)
        json_checked("body", details.get("body", {}))
        return self._put(Event(int(step), kind, severity, **{"time": _now(), **details}))

    def introduce_layers(self, layers: Iterable[Layer | str]) -> None:
        """Tell the order of the model and, where known, what its layers are."""
        self._put(ModelLayers(tuple(Layer(layer) if isinstance(layer, str) else layer for layer in layers)))

    def introduce_statistics(self, lens: str, statistics: Iterable[Statistic]) -> None:
        """Tell how statistics want to be drawn."""
        self._put(Looks(lens, tuple(statistics)))

    def note(self, **facts: Any) -> None:
        """Store further facts about the run."""
        self._put(Meta(json_checked("facts", facts)))

    def flush(self) -> None:
        """Wait until everything is stored."""
        self._check_open()
        request = Request()
        self._worker.queue.put(request)
        while not request.done.wait(1) and self._worker.is_alive():
            pass
        self._warn(stacklevel=3)

    def close(self, status: str = "finished", error: BaseException | None = None) -> None:
        """Store what is left and make the run one file; calling it again does nothing.

        Args:
            status: how the run ended, ``"finished"`` or ``"crashed"``.
            error: the exception that ended it: its type, message and the end of its traceback are kept.
        """
        if status not in ENDS:
            raise OptionError.unknown("status", status, ENDS)
        self._closed = True
        if self._ending.detach():
            _end(self._worker, status, error)
        self._warn(stacklevel=3)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.close("finished" if kind is None else "crashed", error)

    def _open(
        self,
        resume: bool,
        resume_step: int | None,
        max_size: int | None,
        journal: Journal | None,
        facts: dict[str, Any],
    ) -> None:
        """Make or find the file, and store who is writing to it."""
        existing = file_of(self.folder, self.rank)
        if existing is not None:
            _check_existing(existing, resume)
        self.folder.mkdir(parents=True, exist_ok=True)
        backend = open_backend(self.folder / f"rank{self.rank}", journal, max_size)
        self.resumed_step = backend.last_step
        after = self.resumed_step if resume_step is None else resume_step
        beginning = [] if after is None else [Segment(after, _now())]
        facts = _facts(self.folder.name, self.rank, is_new=after is None) | facts
        try:
            backend.write([*beginning, self._worker.sign_of_life(facts)])
        except (OSError, sqlite3.Error):
            backend.close()
            raise
        self._worker.backend = backend

    def _put(self, operation: Operation) -> bool:
        self._check_open()
        if os.getpid() != self._worker.pid:
            return False  # a child process has the object, but not the thread
        self._warn(stacklevel=4)
        try:
            self._worker.queue.put(operation, timeout=0 if self._is_full else PUT_SECONDS)
        except queue.Full:
            self._is_full = True
            self._worker.drop(isinstance(operation, Frame))
            return False
        self._is_full = False
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise LifecycleError(f"the run {self.folder} is closed and takes no more numbers")

    def _warn(self, stacklevel: int) -> None:
        if self._worker.problem is not None and not self._warned:
            self._warned = True
            text = f"the run cannot be stored in {self.folder}: {self._worker.problem}. Training goes on without it"
            warn(text, stacklevel=stacklevel)


def json_checked(what: str, value: Any) -> Any:
    """Refuse what JSON cannot say, now and not in the thread."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{what} takes what JSON can say: {error}") from error
    return value


def _now() -> float:
    return time.time()


def _end(worker: Worker, status: str | None, error: BaseException | None = None) -> None:
    """Finish; without a status it is what the end of the program looks like."""
    if os.getpid() != worker.pid or not worker.is_alive():
        return
    status = status or ending()
    error = error or (uncaught() if status == "crashed" else None)
    facts = {} if error is None else {"error": Failure.of(error)._asdict()}
    request = Request(is_last=True, status=status, ended=_now(), **facts)
    try:
        worker.queue.put(request, timeout=CLOSE_SECONDS)
    except queue.Full:
        return
    request.done.wait(CLOSE_SECONDS)


def _facts(name: str, rank: int, is_new: bool) -> dict[str, Any]:
    birth = {"id": uuid4().hex, "name": name, "started": _now()} if is_new else {"resumed": _now(), "error": None}
    process = {"pid": os.getpid(), "host": socket.gethostname(), "rank": rank}
    return {**birth, **process, "status": "running", "versions": _versions()}


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # slow to load, and readers load this file, too

    found = {"monitorch": __version__, "python": platform.python_version(), "numpy": np.__version__}
    with suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return found


def _check_existing(file: Path, resume: bool) -> None:
    if not resume:
        raise StoreError(f"there is a run in {file} already: choose another name, or resume=True to continue it")
    try:
        status, pid = status_of(file)
    except NothingStoredError:
        return
    if status == "running":
        raise StoreError(f"{file} is being written by the process {pid}: a run has one writer at a time")
