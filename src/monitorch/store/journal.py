"""Opening a run's file for writing, in the way that the file system allows."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import uuid4

Journal: TypeAlias = Literal["wal", "truncate", "log"]
JOURNALS: tuple[Journal, ...] = ("wal", "truncate", "log")

BUSY_SECONDS = 30
"""How long a writer waits for others who lock its file."""

READ_SECONDS = 5
"""How long a reader does: a commit takes milliseconds, and somebody is waiting for a list of runs."""

SIDE_FILES = ("", "-wal", "-shm", "-journal")


def probe(folder: Path) -> Journal:
    """The best journal that works in a folder, tried with a throw-away database.

    Some network file systems accept ``wal`` and fail at the first write, so there is a write and a second reader.
    """
    empty = folder / f".probe-{uuid4().hex}"
    empty.touch()  # a folder that cannot be written to is an error of its own
    empty.unlink()
    for journal in ("wal", "truncate"):
        path = folder / f".probe-{uuid4().hex}.db"
        try:
            _try(path, journal)
        except (sqlite3.Error, OSError):
            continue
        else:
            return "wal" if journal == "wal" else "truncate"
        finally:
            for ending in SIDE_FILES:
                with suppress(OSError):
                    path.with_name(path.name + ending).unlink()
    return "log"


def connect(path: Path, journal: str) -> sqlite3.Connection:
    """Open a file for writing with one of SQLite's journals."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        (chosen,) = connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()
        if chosen != journal:
            raise sqlite3.OperationalError(f"the file system of {path} does not take journal_mode={journal}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {64 * 2**20}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a file for reading only; what a killed writer left half done is taken back first, by SQLite itself."""
    uri = path.absolute().as_uri()
    try:
        return _reader(f"{uri}?mode=ro")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):  # by somebody who is changing it: reading on would show half of the change
            raise
        if "readonly" in str(error):  # a journal to be rolled back, which takes the right to write
            with closing(connect_again(uri)) as recovering:
                recovering.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return _reader(f"{uri}?mode=ro")
        waiting = path.with_name(path.name + "-wal")
        if waiting.exists() and waiting.stat().st_size:
            raise
        return _reader(f"{uri}?mode=ro&immutable=1")  # a folder where no side files can be made


def connect_again(uri: str) -> sqlite3.Connection:
    """Open a file that exists, with the right to write."""
    return sqlite3.connect(f"{uri}?mode=rw", uri=True, timeout=READ_SECONDS, isolation_level=None)


def _reader(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=READ_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _try(path: Path, journal: str) -> None:
    with closing(connect(path, journal)) as connection:
        connection.execute("CREATE TABLE probe (value INTEGER)")
        for value in (1, 2):
            connection.execute("INSERT INTO probe VALUES (?)", [value])
            with closing(_reader(f"{path.absolute().as_uri()}?mode=ro")) as reader:
                (count,) = reader.execute("SELECT count(*) FROM probe").fetchone()
            if count != value:
                raise sqlite3.OperationalError("a second reader does not see what was written")
