"""The tables of a reader: the SQLite file itself, or a log replayed into memory."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol

from ..errors import UnreadableRunError
from .database import Database
from .frame_log import LogReader
from .journal import connect_to_read
from .schema import VERSION, identify, migrate, naming


class RunSource(Protocol):
    """Tables to read, which may grow."""

    connection: sqlite3.Connection

    def version(self) -> int:
        """A number that changes when there is something new."""

    def begin(self) -> int:
        """Begin to read at one moment, until ``COMMIT``; returns its version."""


EMPTY = "is empty: nothing was stored yet"


class TableSource:
    """A SQLite file, read only; a file of an earlier version is updated in memory.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.connection = connect_to_read(path)
        try:
            version = identify(self.connection, path)
            if version < 0:
                raise UnreadableRunError(path, "empty", EMPTY)
            if version < VERSION:
                self._copy(path)
        except BaseException:
            self.connection.close()
            raise

    def _copy(self, path: Path) -> None:
        memory = _memory()
        with closing(self.connection):
            self.connection.backup(memory)
        self.connection = memory
        migrate(memory, path)

    def version(self) -> int:
        """Changes with every commit of another process."""
        (number,) = self.connection.execute("PRAGMA data_version").fetchone()
        return int(number)

    def begin(self) -> int:
        """Asking for the version takes the snapshot."""
        _begin(self.connection)
        return self.version()


class LogSource:
    """A log, replayed into tables in memory.

    Args:
        path: the log.
    """

    def __init__(self, path: Path) -> None:
        if not path.stat().st_size:
            raise UnreadableRunError(path, "empty", EMPTY)
        self._log = LogReader(path)
        self.connection = _memory()
        migrate(self.connection, path)
        self._database = Database(self.connection)

    def version(self) -> int:
        """Grows with the log; replays what is new."""
        operations = list(self._log.operations())
        if operations:
            self._database.write(operations)
        return self._log.offset

    def begin(self) -> int:
        """Replay first, since that writes."""
        version = self.version()
        _begin(self.connection)
        return version


def open_source(path: Path) -> RunSource:
    """The tables of a file."""
    with naming(path):
        return LogSource(path) if path.suffix == ".log" else TableSource(path)


def _begin(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # ending the one before has failed
        connection.execute("ROLLBACK")
    connection.execute("BEGIN")


def _memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
