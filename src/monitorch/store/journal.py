"""Opens a run's file in a way that the file system supports."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import uuid4

Journal: TypeAlias = Literal["wal", "truncate", "log"]
JOURNALS: tuple[Journal, ...] = ("wal", "truncate", "log")

BUSY_SECONDS = 30
"""How long a writer waits for locks of others, in seconds."""

READ_SECONDS = 5
"""How long a reader waits: a commit takes milliseconds, and the user is waiting for a list of runs."""

SIDE_FILES = ("", "-wal", "-shm", "-journal")


def probe(folder: Path) -> Journal:
    """The best journal that works in a folder, tried with a temporary database.

    Some network file systems accept ``wal`` and fail at the first write, so this tries a write and a second reader.
    """
    empty = folder / f".probe-{uuid4().hex}"
    empty.touch()  # a folder that cannot be written to is another error
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
    """Open a file for writing with one of SQLite's journal modes."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        (chosen,) = connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()
        if chosen != journal:
            raise sqlite3.OperationalError(f"the file system of {path} does not support journal_mode={journal}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {64 * 2**20}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a file for reading; SQLite first rolls back what a killed writer left half done."""
    uri = path.absolute().as_uri()
    try:
        return _reader(f"{uri}?mode=ro")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):  # by a process that is changing it: reading now would show half of the change
            raise
        if "readonly" in str(error):  # a journal must be rolled back, which needs write access
            with closing(connect_again(uri)) as recovering:
                recovering.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return _reader(f"{uri}?mode=ro")
        waiting = path.with_name(path.name + "-wal")
        if waiting.exists() and waiting.stat().st_size:
            raise
        return _reader(f"{uri}?mode=ro&immutable=1")  # no side files can be made in this folder


def connect_again(uri: str) -> sqlite3.Connection:
    """Open an existing file with write access."""
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
