"""The tables of a run, how to recognise a file, and how to update files of earlier versions."""

import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..errors import MonitorchError, UnreadableRunError
from ..statistic import Statistic

APPLICATION_ID = 0x4D4F4E49
"""Marks a SQLite file as one of monitorch, in its header."""

_FIRST_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE segment (id INTEGER PRIMARY KEY, after INTEGER NOT NULL, time REAL NOT NULL);
CREATE TABLE layer (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, place INTEGER NOT NULL, kind TEXT,
    parameters INTEGER);
CREATE TABLE lens (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, raw_from INTEGER NOT NULL DEFAULT 0,
    fine_from INTEGER NOT NULL DEFAULT 0);
CREATE TABLE statistic (lens INTEGER, place INTEGER, name TEXT NOT NULL, scale TEXT NOT NULL DEFAULT 'linear', low REAL,
    high REAL, PRIMARY KEY (lens, place)) WITHOUT ROWID;
CREATE TABLE lens_layer (lens INTEGER, place INTEGER, layer INTEGER NOT NULL, PRIMARY KEY (lens, place)) WITHOUT ROWID;
CREATE TABLE hot (lens INTEGER, seq INTEGER, segment INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,
    statistics INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (lens, seq));
CREATE TABLE block (lens INTEGER, id INTEGER, segment INTEGER NOT NULL, seq INTEGER NOT NULL, ticks INTEGER NOT NULL,
    statistics INTEGER NOT NULL, layers INTEGER NOT NULL, steps BLOB NOT NULL, times BLOB NOT NULL,
    PRIMARY KEY (lens, id));
CREATE TABLE tile (lens INTEGER, level INTEGER, statistic INTEGER, layers INTEGER, block INTEGER, data BLOB NOT NULL);
CREATE UNIQUE INDEX tile_key ON tile (lens, level, statistic, layers, block);
CREATE TABLE event (id INTEGER PRIMARY KEY, segment INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,
    severity TEXT NOT NULL, kind TEXT NOT NULL, layer TEXT, statistic TEXT, body TEXT NOT NULL);
"""

_EPOCHS = """
ALTER TABLE hot ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE block ADD COLUMN epochs BLOB;
UPDATE block SET epochs = zeroblob(4 * ticks);
ALTER TABLE event ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
"""

_PARTS = """
ALTER TABLE statistic ADD COLUMN tag TEXT NOT NULL DEFAULT '';
ALTER TABLE statistic ADD COLUMN curve TEXT NOT NULL DEFAULT '';
ALTER TABLE statistic ADD COLUMN line TEXT NOT NULL DEFAULT '';
ALTER TABLE statistic ADD COLUMN role TEXT NOT NULL DEFAULT 'line';
ALTER TABLE statistic ADD COLUMN band TEXT NOT NULL DEFAULT '';
ALTER TABLE statistic ADD COLUMN side TEXT NOT NULL DEFAULT '';
ALTER TABLE statistic ADD COLUMN error REAL;
"""

_HISTOGRAMS = """
CREATE TABLE edges (id INTEGER PRIMARY KEY, data BLOB UNIQUE NOT NULL);
CREATE TABLE histogram (lens INTEGER, tag TEXT, number INTEGER, segment INTEGER NOT NULL, step INTEGER NOT NULL,
    edges INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (lens, tag, number));
"""


_SAMPLES = """
CREATE TABLE sampled (signal TEXT, writer TEXT, place INTEGER, name TEXT NOT NULL, PRIMARY KEY (signal, writer, place))
    WITHOUT ROWID;
CREATE TABLE samples (id INTEGER PRIMARY KEY, signal TEXT NOT NULL, writer TEXT NOT NULL, segment INTEGER NOT NULL,
    data BLOB NOT NULL);
"""


def _run(script: str, connection: sqlite3.Connection) -> None:
    for statement in filter(str.strip, script.split(";")):
        connection.execute(statement)


def _name_parts(connection: sqlite3.Connection) -> None:
    """Until then a statistic had only a name: read its parts from it, here and never again."""
    _run(_PARTS, connection)
    for lens, place, name in connection.execute("SELECT lens, place, name FROM statistic").fetchall():
        connection.execute(
            "UPDATE statistic SET tag = ?, curve = ?, line = ?, role = ?, band = ?, side = ? "
            "WHERE lens = ? AND place = ?",
            (*Statistic(name).parts, lens, place),
        )


MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (
    partial(_run, _FIRST_TABLES),
    partial(_run, _EPOCHS),
    _name_parts,
    partial(_run, _HISTOGRAMS),
    partial(_run, _SAMPLES),
)
"""The n-th one updates a file from version n - 1 to n; a new file runs all of them."""

VERSION = len(MIGRATIONS) - 1


def identify(connection: sqlite3.Connection, path: object) -> int:
    """The version of a file, -1 for an empty one; raises an error for a foreign, newer or damaged one."""
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:  # a disk error or a lock, which a writer handles differently
        raise
    except sqlite3.DatabaseError as error:
        raise unreadable(path, error) from error
    if not tables and not application:
        return -1
    if application != APPLICATION_ID:
        raise UnreadableRunError(path, "foreign", "is a database of another program, not a run of monitorch")
    if version > VERSION:
        raise UnreadableRunError.newer(path, f"version {version} of the file format", VERSION)
    return int(version)


_OUTSIDE = {
    "unable to open": "cannot be opened: {}; copy it to a folder that you can write to, and open the copy",
    "readonly": "cannot be opened: {}; copy it to a folder that you can write to, and open the copy",
    "disk I/O": "cannot be read: {}",
    "out of memory": "cannot be read: {}",
    "interrupted": "cannot be read: {}",
}
"""SQLite's messages for problems that are not damage."""


def unreadable(path: object, error: Exception) -> UnreadableRunError:
    """The error for a file that SQLite cannot read, or whose content is wrong."""
    text = str(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return UnreadableRunError(path, "unreadable", f"cannot be read: {text}")  # closed by another thread
    if isinstance(error, sqlite3.OperationalError):  # also if tables are missing, which is damage
        if "locked" in text or "busy" in text:
            return UnreadableRunError(path, "locked", f"is locked by another program at the moment: {text}")
        for sign, reason in _OUTSIDE.items():
            if sign in text:
                return UnreadableRunError(path, "unreadable", reason.format(text))
    return UnreadableRunError(path, "damaged", f"is damaged or not a run of monitorch: {text}")


_SIGNS_OF_DAMAGE = (sqlite3.Error, zlib.error, struct.error, ValueError, TypeError, LookupError, ArithmeticError)
"""Errors from reading a file with changed bits; SQLite does not check the content of rows."""


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Turns errors inside the block into an error with the file's name and state."""
    try:
        yield
    except MonitorchError:
        raise
    except OSError as error:
        raise UnreadableRunError(path, "unreadable", f"cannot be opened: {error.strerror or error}") from error
    except _SIGNS_OF_DAMAGE as error:
        raise unreadable(path, error) from error


def migrate(connection: sqlite3.Connection, path: object) -> None:
    """Update a file to the newest version, in one transaction; if several processes try at once, one does it."""
    if identify(connection, path) == VERSION:
        return
    with transaction(connection):
        version = identify(connection, path)  # check again: now no other process can change it
        for update in MIGRATIONS[version + 1 :]:
            update(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything in the block is written, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself when a disk is full
            connection.execute("ROLLBACK")
        raise
