"""A run as an append-only log, for file systems on which SQLite does not work.

After the first line each record is ``length, checksum, kind, text, numbers``; see :func:`_record`.
"""

import json
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import StoreError, UnreadableRunError
from ..statistic import Statistic
from .status import refuse_if_running
from .types import (
    NUMBERS,
    Event,
    FirstOperations,
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

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

VERSION = 4
"""Version 1 knew only the names of statistics, not their parts; version 2 had no histograms, version 3 no samples."""
FIRST_LINE = b"monitorch frame log %d\n" % VERSION
_ANY_FIRST_LINE = re.compile(rb"monitorch frame log (\d+)\n")
_HEAD = struct.Struct("<III")  # length and CRC-32 of what follows, and the CRC-32 of these two
_TEXT = struct.Struct("<I")  # length of the JSON text, before the numbers

Written = dict[str | tuple[str, str], Any]
"""What is written only when it changes: the statistics and layers of a lens, the edges of a lens and tag."""


class FullError(OSError):
    """There is no room for more numbers; other operations can still be stored."""


class FrameLog:
    """Appends operations to a file.

    Args:
        path: the file; made if there is none. A half-written end, left by a killed writer, is cut off.
        max_size: how many bytes it may take; beyond that no more numbers are stored.
    """

    def __init__(self, path: Path, max_size: int | None) -> None:
        self.path, self._max_size, self._is_full = path, max_size, False
        self.last_step: int | None = None
        self._facts: dict[str, Any] = {}
        self._file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            _hold(self._file, path)
            reader = LogReader(path) if os.fstat(self._file.fileno()).st_size >= len(FIRST_LINE) else None
            for operation in reader.operations() if reader else ():
                self._follow(operation)
            self._written: Written = reader.written if reader else {}
            self._end = reader.offset if reader else 0
            if reader is None:
                self._append(FIRST_LINE)
        except BaseException:
            self.abandon()
            raise

    def begin(self, first: FirstOperations) -> None:
        """Store the first operations, unless another process is writing."""
        refuse_if_running(self._facts, self.path)
        self._file.seek(0)  # the log of an earlier version is continued in the present one
        self._file.write(FIRST_LINE)
        self.write(first(self.last_step))

    def write(self, operations: Sequence[Operation]) -> None:
        """Append operations; if the disk is full, a half-written part is removed."""
        written = dict(self._written)
        data = b"".join(record for operation in operations for record in _records(operation, written))
        has_numbers = any(isinstance(operation, NUMBERS) for operation in operations)
        too_large = self._max_size is not None and self._end + len(data) > self._max_size
        if has_numbers and (too_large or self._is_full):
            self._is_full = True  # fewer numbers might fit, but those in between would be missing
            raise FullError(f"{self.path} has reached max_size={self._max_size}, and a log cannot be shortened")
        self._append(data)
        self._written = written
        for operation in operations:
            self._follow(operation)

    def maintain(self) -> None:
        """Write everything to the disk."""
        os.fsync(self._file.fileno())

    def is_lost(self) -> bool:
        """Whether it was removed or moved."""
        return os.fstat(self._file.fileno()).st_nlink == 0 or not self.path.exists()

    def close(self) -> None:
        """Close the file."""
        _release(self._file)
        self._file.close()

    abandon = close

    def _follow(self, operation: Operation) -> None:
        if isinstance(operation, Frame):
            self.last_step = operation.step
        elif isinstance(operation, Meta):
            self._facts.update(operation.facts)
        elif isinstance(operation, Segment) and self.last_step is not None:
            self.last_step = min(self.last_step, operation.after)

    def _append(self, data: bytes) -> None:
        self._file.truncate(self._end)
        self._file.seek(self._end)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._end += len(data)


def _hold(file: BinaryIO, path: Path) -> None:
    """Lock the file against other writers, if the file system can."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = f"{path} is being written by another process: a run has one writer at a time"
        raise StoreError(text) from None
    except OSError:  # no such locks here
        return


def _release(file: BinaryIO) -> None:
    """Unlock the file; closing is not enough, since child processes may hold it, too."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)


class LogReader:
    """Reads the records of a log, and later the new ones.

    Args:
        path: the log.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, len(FIRST_LINE)
        self.written: Written = {}
        with path.open("rb") as file:
            begin = file.readline(2 * len(FIRST_LINE))
        known = _ANY_FIRST_LINE.fullmatch(begin)
        if known is None and not FIRST_LINE.startswith(begin):
            reason = f"is not a log of monitorch: its first line is not {FIRST_LINE.decode().strip()!r}"
            raise UnreadableRunError(path, "foreign", reason)
        if known is not None and int(known[1]) > VERSION:
            raise UnreadableRunError.newer(path, f"version {int(known[1])} of the log", VERSION)

    def operations(self) -> Iterator[Operation]:
        """All complete operations since the last call."""
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while self.offset + _HEAD.size <= size:
                file.seek(self.offset)
                length, checksum, head_checksum = _HEAD.unpack(file.read(_HEAD.size))
                content = file.read(length) if head_checksum == _check(length, checksum) else None
                end = self.offset + _HEAD.size + length
                if content is not None and len(content) < length:
                    return  # still being written, or cut off when its writer was killed
                if content is None or zlib.crc32(content) != checksum:
                    reason = f"is damaged at byte {self.offset}: cut there, it can be read"
                    raise UnreadableRunError(self.path, "damaged", reason)
                self.offset = end
                yield from self._decoded(content)

    def _decoded(self, content: bytes) -> Iterable[Operation]:
        (length,) = _TEXT.unpack_from(content)
        kind, text = json.loads(content[_TEXT.size : _TEXT.size + length])
        rest = content[_TEXT.size + length :]
        if kind == "columns":
            lens, statistics, layers = text
            self.written[lens] = tuple(statistics), tuple(layers)
            return ()
        if kind == "edges":
            self.written[tuple(text)] = rest
            return ()
        if kind == "histograms":
            lens, tag, step = text
            return (PackedHistograms(lens, tag, step, self.written[lens, tag], rest),)
        if kind == "samples":
            signal, writer, first, names, replaces = text
            return (PackedSamples(signal, writer, first, tuple(names), replaces, rest),)
        if kind == "frame":
            statistics, layers = self.written[text[0]]
            values = np.frombuffer(rest, np.float32)
            lens, step, epoch, time = text
            shaped = values.reshape(len(statistics), len(layers))
            return (Frame(lens, step, epoch, time, statistics, layers, shaped),)
        return (_DECODERS[kind](text),)


def _records(operation: Operation, written: Written) -> Iterator[bytes]:
    """The records of an operation; column names and edges are written only when they change."""
    if isinstance(operation, Frame):
        names = operation.statistics, operation.layers
        if written.get(operation.lens) != names:
            written[operation.lens] = names
            yield _record("columns", (operation.lens, *names))
        yield _record("frame", operation[:4], operation.values.tobytes())
    elif isinstance(operation, PackedHistograms):
        tag = operation.lens, operation.tag
        if written.get(tag) != operation.edges:
            written[tag] = operation.edges
            yield _record("edges", tag, operation.edges)
        yield _record("histograms", operation[:3], operation.data)
    elif isinstance(operation, PackedSamples):
        yield _record("samples", operation[:5], operation.data)
    else:
        yield _record(_KINDS[type(operation)], operation)


def _record(kind: str, text: Any, numbers: bytes = b"") -> bytes:
    written = json.dumps([kind, text]).encode()
    content = _TEXT.pack(len(written)) + written + numbers
    head = len(content), zlib.crc32(content)
    return _HEAD.pack(*head, _check(*head)) + content


def _check(length: int, checksum: int) -> int:
    return zlib.crc32(struct.pack("<II", length, checksum))


_KINDS: dict[type, str] = {
    Event: "event",
    Meta: "meta",
    ModelLayers: "layers",
    Looks: "looks",
    Segment: "segment",
}

_DECODERS: dict[str, Any] = {
    "event": lambda text: Event(*text),
    "meta": lambda text: Meta(*text),
    "layers": lambda text: ModelLayers(tuple(Layer(*layer) for layer in text[0])),
    "looks": lambda text: Looks(text[0], tuple(Statistic(*statistic) for statistic in text[1])),
    "segment": lambda text: Segment(*text),
}
