"""Stores a run while it trains."""

import json
import math
import os
import platform
import queue
import socket
import sqlite3
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from .. import __version__
from ..errors import LifecycleError, OptionError, StoreError, UnreadableRunError, warn
from ..statistic import Statistic
from .backend import Backend, RankFile, create
from .backend import resume as open_again
from .failure import Failure
from .histograms import pack
from .journal import JOURNALS, Journal
from .reader import Run
from .run_list import file_of, numbered
from .samples import SampleArrays
from .samples import pack as pack_samples
from .status import ending, refuse_if_running, uncaught
from .types import (
    ENDS,
    SEVERITIES,
    Event,
    FilePath,
    Frame,
    Layer,
    Looks,
    Meta,
    ModelLayers,
    Operation,
    PackedHistograms,
    PackedSamples,
    Segment,
)
from .worker import FlushRequest, Worker

PUT_SECONDS = 0.05
"""The longest time that training waits for the store, in seconds. Then the frame is dropped, and so are the next ones,
without waiting, until there is room again."""

CLOSE_SECONDS = 60.0
SMALLEST_SIZE = 2**20


class Writer:
    """Stores frames and events of one process of a run, in a background thread.

    Only the constructor raises errors, for wrong options and for a run that is already taken. Later problems, with a
    disk or with the arguments of a call, give one warning each; training goes on and what was stored stays readable.

    Args:
        folder: the folder of the run, which is made; its name is the name of the run.
        rank: the rank of this process; each has its own file.
        meta: facts to store, such as config and versions, as JSON data.
        resume: continue an existing run; without it an existing run is an error.
        resume_step: what was stored for later steps is hidden from readers; None hides nothing.
        max_size: how many bytes the file may take; beyond that the oldest ticks are kept as averages only.
        journal: ``"wal"``, ``"truncate"`` or ``"log"``; None tries what the file system supports.
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
        self._rank_file, self.rank = RankFile(Path(folder).absolute(), rank, journal, max_size), rank
        self._closed = self._is_full = False
        self._told: set[str] = set()
        self.resumed_step: int | None = None
        self._worker = Worker(self._rank_file.folder, partial(_renewed, self._rank_file))
        facts = _named(meta or {})
        self._worker.prologue.keep(Meta(facts))
        try:
            self._worker.backend = self._open(resume, resume_step, facts)
            self._worker.start()
        except (OSError, sqlite3.Error, RuntimeError) as error:  # RuntimeError: no thread can be started any more
            self._worker.fail(error)
            with suppress(RuntimeError):
                self._worker.start()
        # a writer that is not closed is closed when it is deleted, at the latest when Python exits
        self._ending = weakref.finalize(self, _end, self._worker, None)
        self._warn()

    @staticmethod
    def check(
        meta: Mapping[str, Any] | None = None,
        resume: bool = False,
        resume_step: int | None = None,
        max_size: int | None = None,
        journal: str | None = None,
    ) -> None:
        """Refuse wrong options before anything is made."""
        json_checked("meta", _named(meta or {}))
        if max_size is not None and (not isinstance(max_size, int) or max_size < SMALLEST_SIZE):
            raise OptionError(f"max_size={max_size!r} must be a number of bytes, at least {SMALLEST_SIZE}")
        if journal is not None and journal not in JOURNALS:
            raise OptionError.unknown("journal", journal, JOURNALS)
        if resume_step is not None and not resume:
            raise OptionError(f"resume_step={resume_step!r} needs resume=True")

    @property
    def folder(self) -> Path:
        """The folder of the run; another one if it was taken by another process."""
        return self._rank_file.folder if self.path is None else self.path.parent

    @property
    def path(self) -> Path | None:
        """The file; None if it could not be made."""
        return self._worker.backend.path if self._worker.backend else None

    @property
    def is_storing(self) -> bool:
        """Whether there is a file to store in."""
        return self._worker.backend is not None and self._worker.is_alive()

    @property
    def dropped(self) -> int:
        """How many frames were lost because the disk was too slow or full."""
        return self._worker.dropped

    @property
    def busy_seconds(self) -> float:
        """How long the processor has worked for the thread that writes."""
        return self._worker.busy_seconds

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
        try:
            frame = _frame(lens, step, values, layers, statistics, epoch, time)
        except Exception as error:
            self._worker.drop(1)
            return self._refuse("put", error)
        return self._put("put", frame)

    def put_histograms(self, lens: str, tag: str, step: int, counts: Any, *, layers: Sequence[str], edges: Any) -> bool:
        """Store how the elements of layers are distributed at a tick; False if that had to be dropped.

        ``counts[layer, bin]`` is how many elements are between two neighbours of ``edges``. Of a long run, those
        of the newest tick are kept, and of some hundred earlier ones, evenly spread.
        """
        try:
            histograms = _histograms(lens, tag, step, counts, layers, edges)
        except Exception as error:
            self._worker.drop(1)
            return self._refuse("put_histograms", error)
        return self._put("put_histograms", histograms)

    def put_samples(
        self, signal: str, samples: SampleArrays, *, writer: str, first: int, names: Sequence[str], replaces: bool
    ) -> bool:
        """Store single samples of a signal; False if they had to be dropped.

        Args:
            signal: what was measured.
            samples: steps, places and values; places count the names that this ``writer`` has ever given.
            writer: whose names these are.
            first: the place of the first of ``names``.
            names: those that are new.
            replaces: whether all that this writer has stored of the signal so far is replaced.
        """
        try:
            new = _names(tuple(names))
            packed = PackedSamples(_text(signal), _text(writer), int(first), new, bool(replaces), pack_samples(samples))
        except Exception as error:
            return self._refuse("put_samples", error)
        return self._put("put_samples", packed)

    def event(self, step: int, kind: str, severity: str = "info", **details: Any) -> bool:
        """Store an event; ``details`` are the other fields of :class:`Event`."""
        try:
            event = _event(step, kind, severity, details)
        except Exception as error:
            return self._refuse("event", error)
        return self._put("event", event)

    def introduce_layers(self, layers: Iterable[Layer | str]) -> None:
        """Store the layers in model order and, if known, their kind and size."""
        try:
            known = tuple(_layer(layer) for layer in layers)
        except Exception as error:
            self._refuse("introduce_layers", error)
        else:
            self._put("introduce_layers", ModelLayers(known))

    def introduce_statistics(self, lens: str, statistics: Iterable[Statistic]) -> None:
        """Store what statistics are, and how to draw them; otherwise that is read from their names."""
        try:
            looks = Looks(_text(lens), tuple(map(_statistic, statistics)))
        except Exception as error:
            self._refuse("introduce_statistics", error)
        else:
            self._put("introduce_statistics", looks)

    def note(self, **facts: Any) -> None:
        """Store further facts about the run."""
        try:
            meta = Meta(_named(json_checked("facts", facts)))
        except OptionError as error:
            self._refuse("note", error)
        else:
            self._put("note", meta)

    def resume_from(self, step: int) -> None:
        """Training continues from this step: what is stored for later steps is hidden from readers."""
        self._put("resume_from", Segment(int(step), _now()))

    def flush(self) -> None:
        """Wait until everything is stored."""
        if not self._closed and self._is_here():
            request = FlushRequest()
            self._worker.queue.put(request)
            while not request.done.wait(1) and self._worker.is_alive():
                pass
        self._warn()

    def close(self, status: str = "finished", error: BaseException | None = None) -> None:
        """Store what is left and make the run one file; calling it again does nothing.

        Args:
            status: how the run ended, ``"finished"`` or ``"crashed"``.
            error: the exception that ended it: its type, message and the end of its traceback are kept.
        """
        if status not in ENDS:
            self._refuse("close", OptionError.unknown("status", status, ENDS))
            status = ENDS[0] if error is None else ENDS[1]
        self._closed = True
        if self._ending.detach():
            _end(self._worker, status, error)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.close("finished" if kind is None else "crashed", error)

    def _open(self, resume: bool, resume_step: int | None, facts: dict[str, Any]) -> Backend:
        """Make or find the file, and become its writer."""
        folder, rank = self._rank_file.folder, self.rank

        def first(last_step: int | None) -> Sequence[Operation]:
            self.resumed_step = last_step
            after = last_step if resume_step is None else resume_step
            beginning = [] if after is None else [Segment(after, _now())]
            known = _facts(folder.name, rank, is_new=after is None) | facts
            self._worker.prologue.keep(Meta(known))
            return [*beginning, self._worker.sign_of_life(known)]

        if not resume:
            return create(self._rank_file, first)
        existing = file_of(folder, rank)
        if existing is not None:
            _check_existing(existing)
        return open_again(self._rank_file, first)

    def _put(self, call: str, operation: Operation) -> bool:
        self._warn()
        if self._closed:
            error = LifecycleError(f"the run {self.folder} is closed and takes no more")
            return self._refuse(call, error)
        is_frame = isinstance(operation, (Frame, PackedHistograms))
        if not self._is_here():
            self._worker.drop(is_frame)
            return False
        try:
            self._worker.queue.put(operation, timeout=0 if self._is_full else PUT_SECONDS)
        except queue.Full:
            self._is_full = True
            self._worker.drop(is_frame)
            return False
        self._is_full = False
        return True

    def _is_here(self) -> bool:
        """Whether this process has the thread: a forked child has the object, but not the thread."""
        return os.getpid() == self._worker.pid and self._worker.is_alive()

    def _refuse(self, call: str, error: Exception) -> bool:
        """Warn once about a wrong call; training goes on."""
        if call not in self._told:
            self._told.add(call)
            text = f"Writer.{call} did not store its arguments: {error}. Training goes on"
            warn(text)
        return False

    def _warn(self) -> None:
        _pass_on(self._worker)


def _pass_on(worker: Worker) -> None:
    """Show the notices of the thread as warnings in the training thread."""
    if os.getpid() == worker.pid:
        while worker.notices:
            warn(worker.notices.popleft())


def _frame(
    lens: str,
    step: int,
    values: Any,
    layers: Sequence[str],
    statistics: Sequence[str],
    epoch: int,
    time: float | None,
) -> Frame:
    with np.errstate(over="ignore"):  # what overflows float32 becomes infinite, and is counted as such
        numbers = np.array(values, np.float32, order="C")
    rows, columns = _names(tuple(statistics)), _names(tuple(layers))
    if numbers.shape != (len(rows), len(columns)):
        wanted = f"one row for each of {len(rows)} statistics and one column for each of {len(columns)} layers"
        raise OptionError(f"values has the shape {numbers.shape}; it takes {wanted}")
    return Frame(_text(lens), _whole(step, 64), _whole(epoch, 32), _moment(time), rows, columns, numbers)


def _histograms(lens: str, tag: str, step: int, counts: Any, layers: Sequence[str], edges: Any) -> PackedHistograms:
    names, ends, numbers = _names(tuple(layers)), np.array(edges, np.float64), np.array(counts)
    if ends.ndim != 1 or not (np.isfinite(ends).all() and (np.diff(ends) > 0).all()):
        raise OptionError("edges must be finite numbers, each larger than the one before")
    if numbers.shape != (len(names), len(ends) - 1):
        wanted = f"one row for each of {len(names)} layers and one column for each of {len(ends) - 1} bins"
        raise OptionError(f"counts has the shape {numbers.shape}; it takes {wanted}")
    if not np.issubdtype(numbers.dtype, np.integer) or (numbers < 0).any():
        raise OptionError("counts must be whole numbers, none below 0")
    packed = pack(names, numbers.astype(np.int64))
    return PackedHistograms(_text(lens), _text(tag), _whole(step, 64), ends.tobytes(), packed)


def _event(step: int, kind: str, severity: str, details: Mapping[str, Any]) -> Event:
    if severity not in SEVERITIES:
        raise OptionError.unknown("severity", severity, SEVERITIES)
    event = Event(_whole(step, 64), _text(kind), severity, **details)
    json_checked("body", event.body)
    layer, statistic = (None if name is None else _text(name) for name in (event.layer, event.statistic))
    moment = _moment(details.get("time"))
    body = dict(event.body)
    return event._replace(epoch=_whole(event.epoch, 32), time=moment, layer=layer, statistic=statistic, body=body)


def _statistic(statistic: Statistic) -> Statistic:
    if not isinstance(statistic, Statistic):
        raise OptionError(f"a statistic is made with Statistic(name), it is not {statistic!r}")
    name, tag, curve, line, band = map(
        _text, (statistic.name, statistic.tag, statistic.curve, statistic.line, statistic.band)
    )
    return statistic._replace(name=name, tag=tag, curve=curve, line=line, band=band)


def _layer(layer: Layer | str) -> Layer:
    if isinstance(layer, str):
        return Layer(_text(layer))
    kind, parameters = layer[1:]
    return Layer(
        _text(layer.name), None if kind is None else _text(kind), None if parameters is None else int(parameters)
    )


@lru_cache(maxsize=256)
def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names in a form that a file can hold; cached, since a lens has the same names at every tick."""
    safe = tuple(map(_text, names))
    twice = [name for name, count in Counter(safe).items() if count > 1]
    if twice:
        raise OptionError(f"the name {twice[0]!r} comes twice")
    return safe


def _text(name: Any) -> str:
    """A name that a file can hold: lone surrogates, which some file names have, are escaped."""
    if not isinstance(name, str):
        raise OptionError(f"a name must be text, not {name!r}")
    return name.encode("utf-8", "backslashreplace").decode()


def _named(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {_text(name): value for name, value in facts.items()}


def _whole(number: Any, bits: int) -> int:
    value = int(number)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise OptionError(f"{number!r} is too large for a whole number of {bits} bits")
    return value


def _moment(seconds: float | None) -> float:
    moment = _now() if seconds is None else float(seconds)
    return moment if math.isfinite(moment) else _now()


def json_checked(what: str, value: Any) -> Any:
    """Refuse what is not JSON data here, not later in the thread."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"{what} must be JSON data: {error}") from error
    return value


def _now() -> float:
    return time.time()


def _end(worker: Worker, status: str | None, error: BaseException | None = None) -> None:
    """Finish; without a status, it depends on how the program ends."""
    if os.getpid() != worker.pid or not worker.is_alive():
        return
    status = status or ending()
    error = error or (uncaught() if status == "crashed" else None)
    facts = {} if error is None else {"error": Failure.of(error)._asdict()}
    request = FlushRequest(is_last=True, status=status, ended=_now(), **facts)
    with suppress(queue.Full):
        worker.queue.put(request, timeout=CLOSE_SECONDS)
        until = time.monotonic() + CLOSE_SECONDS
        while not request.done.wait(1) and worker.is_alive() and time.monotonic() < until:
            pass
    _pass_on(worker)


def _renewed(rank_file: RankFile, operations: Sequence[Operation]) -> Backend:
    """A new file during a run, in the old place or, if another process has taken it, under a name with a number."""
    for name in numbered(rank_file.folder.name):
        first = partial(_again, name, rank_file.rank, operations)
        with suppress(StoreError):
            return create(rank_file._replace(folder=rank_file.folder.with_name(name)), first)
    raise AssertionError("names never end")


def _again(name: str, rank: int, operations: Sequence[Operation], _: int | None) -> Sequence[Operation]:
    """The first operations of a new file for a run that has already begun."""
    known = {fact: value for one in operations if isinstance(one, Meta) for fact, value in one.facts.items()}
    facts = _facts(name, rank, is_new=True) | known | {"name": name, "heartbeat": _now()}
    return [Meta(facts), *(one for one in operations if not isinstance(one, Meta))]


def _facts(name: str, rank: int, is_new: bool) -> dict[str, Any]:
    birth = {"id": uuid4().hex, "name": name, "started": _now()} if is_new else {"resumed": _now(), "error": None}
    process = {"pid": os.getpid(), "host": socket.gethostname(), "rank": rank}
    return {**birth, **process, "status": "running", "versions": _versions()}


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and readers import this file, too

    found = {"monitorch": __version__, "python": platform.python_version(), "numpy": np.__version__}
    torch = sys.modules.get("torch")  # not imported here: stores are also copied where nothing is trained
    with suppress(PackageNotFoundError):
        found["torch"] = str(getattr(torch, "__version__", None) or version("torch"))
    return found


def _check_existing(file: Path) -> None:
    """Refuse early what cannot be continued; another writer is checked for again when the file is opened."""
    try:
        with Run(file) as run:
            refuse_if_running(run.meta, file)
    except UnreadableRunError as error:
        if error.state != "empty":
            raise
