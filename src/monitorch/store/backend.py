"""Where a writer's operations end: a SQLite file, or a log where no SQLite file works."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from .database import Database
from .frame_log import FrameLog
from .journal import BUSY_SECONDS, Journal, connect, probe
from .parts import Operation
from .schema import identify, migrate


class Backend(Protocol):
    """What the writer's thread needs of a file."""

    path: Path

    @property
    def last_step(self) -> int | None:
        """The newest step that is stored."""

    def write(self, operations: Sequence[Operation]) -> None:
        """Store operations as a whole or not at all."""

    def maintain(self) -> None:
        """Do what is to be done every minute or so."""

    def close(self) -> None:
        """Store what is left, and leave one file."""


class TableFile:
    """A SQLite file.

    Args:
        path: the file; made if there is none.
        journal: how SQLite keeps it consistent.
        max_size: how many bytes it may take.
    """

    def __init__(self, path: Path, journal: Journal, max_size: int | None) -> None:
        self.path = path
        self._connection = connect(path, journal)
        try:
            migrate(self._connection, identify(self._connection, path))
            self._database = Database(self._connection, max_size)
        except BaseException:
            self._connection.close()
            raise

    @property
    def last_step(self) -> int | None:
        """The newest step that is stored."""
        return self._database.last_step

    def write(self, operations: Sequence[Operation]) -> None:
        """Store operations in one transaction."""
        self._database.write(operations)

    def maintain(self) -> None:
        """Give the space of the write-ahead log back, unless somebody is reading from it right now."""
        with _patience(self._connection, 0.2), suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Seal everything and make it one file."""
        try:
            self._database.write([], seal=True)
            self.maintain()
            with _patience(self._connection, 1), suppress(sqlite3.OperationalError):  # somebody is reading
                self._connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._connection.close()


@contextmanager
def _patience(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Wait for others that long only: what is done in the block is not worth more."""
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS}")


def open_backend(stem: Path, journal: Journal | None, max_size: int | None) -> Backend:
    """Open ``<stem>.db`` or ``<stem>.log``: the one that exists, else what the folder allows."""
    log = stem.with_suffix(".log")
    if journal is None:
        journal = "log" if log.exists() else probe(stem.parent)
    return FrameLog(log, max_size) if journal == "log" else TableFile(stem.with_suffix(".db"), journal, max_size)
