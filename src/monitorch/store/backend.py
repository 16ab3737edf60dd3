"""Where a writer stores its operations: in a SQLite file, or in a log where SQLite does not work."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import StoreError
from .database import Database, owner_of
from .frame_log import FrameLog
from .journal import BUSY_SECONDS, SIDE_FILES, Journal, connect, connect_to_read, probe
from .run_list import file_of
from .schema import migrate
from .types import FirstOperations, Operation


class Backend(Protocol):
    """The file as the writer's thread sees it."""

    path: Path

    @property
    def last_step(self) -> int | None:
        """The newest stored step."""

    def begin(self, first: FirstOperations) -> None:
        """Become the only writer, and store the first operations; fails while another process is writing."""

    def write(self, operations: Sequence[Operation]) -> None:
        """Store all operations or none."""

    def is_lost(self) -> bool:
        """Whether the file was removed or moved: then nobody could read what is written."""

    def maintain(self) -> None:
        """Maintenance, called about every minute."""

    def close(self) -> None:
        """Store what is left, and leave one file."""

    def abandon(self) -> None:
        """Close the file as it is."""


class TableFile:
    """A SQLite file.

    Args:
        path: the file; made if there is none.
        journal: SQLite's journal mode.
        max_size: how many bytes it may take.
    """

    def __init__(self, path: Path, journal: Journal, max_size: int | None) -> None:
        self.path = path
        self._connection = connect(path, journal)
        try:
            migrate(self._connection, path)
            self._database = Database(self._connection, max_size)
            self._identity = _identity(path)
        except BaseException:
            self._connection.close()
            raise

    @property
    def last_step(self) -> int | None:
        """The newest stored step."""
        return self._database.last_step

    def begin(self, first: FirstOperations) -> None:
        """Become the only writer; the check and the change are one transaction."""
        self._database.begin(first, self.path)

    def write(self, operations: Sequence[Operation]) -> None:
        """Store operations in one transaction."""
        self._database.write(operations)

    def is_lost(self) -> bool:
        """Whether it was removed, moved or replaced."""
        found = _identity(self.path)
        if found == self._identity:
            return False
        if found is not None and self._is_ours():  # some file systems change the number of a file now and then
            self._identity = found
            return False
        return True

    def _is_ours(self) -> bool:
        try:
            with closing(connect_to_read(self.path)) as connection:
                return owner_of(connection) == self._database.owner
        except (sqlite3.Error, OSError):
            return False

    def maintain(self) -> None:
        """Shrink the write-ahead log, unless another process is reading from it."""
        with _patience(self._connection, 0.2), suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Seal everything and make it one file."""
        try:
            self._database.write([], seal=True)
            self.maintain()
            with _patience(self._connection, 1), suppress(sqlite3.OperationalError):  # another process is reading
                self._connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._connection.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._connection.close()


@contextmanager
def _patience(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Wait only this long for locks inside the block."""
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS}")


class RankFile(NamedTuple):
    """Where the file of one process of a run is, or will be.

    Args:
        folder: the folder of the run.
        rank: the rank of the process.
        journal: the journal mode; None tries what the file system supports.
        max_size: how many bytes the file may take.
    """

    folder: Path
    rank: int = 0
    journal: Journal | None = None
    max_size: int | None = None


def create(rank_file: RankFile, first: FirstOperations) -> Backend:
    """A new file with its first operations; if several processes try at once, one gets it."""
    _refuse_existing(file_of(rank_file.folder, rank_file.rank))
    is_new_folder = _make(rank_file.folder)
    path = None
    try:
        journal = rank_file.journal or probe(rank_file.folder)
        wanted = rank_file.folder / f"rank{rank_file.rank}{'.log' if journal == 'log' else '.db'}"
        try:
            os.close(os.open(wanted, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            _refuse_existing(wanted)
        path = wanted
        return _begun(_open(path, journal, rank_file.max_size), first)
    except BaseException:
        if path is not None and not _is_taken(path):
            _remove(path)
        if is_new_folder:
            with suppress(OSError):  # another process has put a file into it
                rank_file.folder.rmdir()
        raise


def resume(rank_file: RankFile, first: FirstOperations) -> Backend:
    """The file of an existing run, or else a new one."""
    path = file_of(rank_file.folder, rank_file.rank)
    if path is None:
        try:
            return create(rank_file, first)
        except StoreError:
            path = file_of(rank_file.folder, rank_file.rank)
            if path is None:
                raise
    journal: Journal = "log" if path.suffix == ".log" else rank_file.journal or probe(rank_file.folder)
    if path.suffix != ".log" and journal == "log":
        journal = "truncate"
    return _begun(_open(path, journal, rank_file.max_size), first)


def _begun(backend: Backend, first: FirstOperations) -> Backend:
    try:
        backend.begin(first)
    except BaseException:
        backend.abandon()
        raise
    return backend


def _open(path: Path, journal: Journal, max_size: int | None) -> Backend:
    return FrameLog(path, max_size) if journal == "log" else TableFile(path, journal, max_size)


def _make(folder: Path) -> bool:
    """Make a folder; whether it is new."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def _refuse_existing(file: Path | None) -> None:
    if file is not None:
        raise StoreError(f"there is a run in {file} already: choose another name, or resume=True to continue it")


def _is_taken(path: Path) -> bool:
    """Whether another process uses a file that was made here, but could not be opened here."""
    try:
        with closing(connect_to_read(path)) as connection:
            return owner_of(connection) is not None
    except sqlite3.Error as error:
        return "locked" in str(error)


def _remove(path: Path) -> None:
    for ending in SIDE_FILES:
        with suppress(OSError):
            path.with_name(path.name + ending).unlink()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
