"""A run as SQL tables: how the writer changes them."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ..errors import StoreError
from ..statistic import Statistic
from .buffer import LensBuffer, StoredTick
from .histograms import stride
from .schema import transaction
from .status import refuse_if_running
from .tiles import TILE_LAYERS, WIDTHS, Columns, merge, summarise
from .types import (
    Event,
    FirstOperations,
    Floats,
    Frame,
    Looks,
    Meta,
    ModelLayers,
    Operation,
    PackedHistograms,
    PackedSamples,
    Segment,
)

_HOT = "INSERT INTO hot (lens, seq, segment, step, epoch, time, statistics, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_BLOCK = (
    "INSERT INTO block (lens, id, segment, seq, ticks, statistics, layers, steps, epochs, times) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_EVENT = (
    "INSERT INTO event (segment, step, epoch, time, severity, kind, layer, statistic, body) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_STATISTIC = (
    "INSERT INTO statistic (lens, place, name, tag, curve, line, role, band, side) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LOOK = (
    "UPDATE statistic SET scale = ?, low = ?, high = ?, tag = ?, curve = ?, line = ?, role = ?, band = ?, side = ?, "
    "error = ? WHERE lens = ? AND place = ?"
)
_HISTOGRAM = "INSERT INTO histogram (lens, tag, number, segment, step, edges, data) VALUES (?, ?, ?, ?, ?, ?, ?)"
_OLD_SAMPLES = "DELETE FROM samples WHERE id IN (SELECT id FROM samples ORDER BY id LIMIT 16)"
_OLD_HISTOGRAMS = (
    "DELETE FROM histogram WHERE rowid IN (SELECT rowid FROM histogram AS own WHERE number < "
    "(SELECT max(number) FROM histogram WHERE lens = own.lens AND tag = own.tag) ORDER BY step LIMIT 16)"
)

OWNER = "writer"
"""The entry of the meta table that says which writer owns a file."""


class OwnerChangedError(StoreError):
    """Another process has taken over the file, because this one seemed dead, such as after a sleep."""


class Database:
    """The only writer of a run's tables; keeps a copy of some of them in memory.

    Args:
        connection: open, with all tables.
        max_size: how many bytes the file may take.
    """

    def __init__(self, connection: sqlite3.Connection, max_size: int | None = None) -> None:
        self.connection, self.max_size = connection, max_size
        self._takers: dict[type, Callable[[Any], None]] = {
            Frame: self._take_frame,
            PackedHistograms: self._take_histograms,
            PackedSamples: self._take_samples,
            Event: self._take_event,
            Meta: self._take_meta,
            ModelLayers: self._take_model_layers,
            Looks: self._take_looks,
            Segment: self._take_segment,
        }
        self.owner: str | None = None
        self._lenses: dict[str, LensBuffer] = {}
        self._load()
        self._is_stale = False

    @property
    def last_step(self) -> int | None:
        """The newest step of all lenses."""
        return max((lens.last_step for lens in self._lenses.values() if lens.last_step is not None), default=None)

    def begin(self, first: FirstOperations, path: Path) -> None:
        """Become the owner of the tables and store the first operations, unless another process is writing."""
        owner = uuid4().hex
        with self._changing():
            refuse_if_running(read_meta(self.connection), path)
            self._load()  # it may have changed since the file was opened
            self._take_meta(Meta({OWNER: owner}))
            self._take(first(self.last_step))
        self.owner = owner

    def write(self, operations: Iterable[Operation], *, seal: bool = False) -> None:
        """Store everything in one transaction, or nothing; ``seal`` turns all ticks into blocks."""
        with self._changing():
            if self.owner is not None and owner_of(self.connection) != self.owner:
                raise OwnerChangedError("another process has taken the run over")
            self._take(operations, seal=seal)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A transaction; if it fails, the copy in memory is read again before the next one."""
        with transaction(self.connection):
            if self._is_stale:
                self._load()
            self._is_stale = True
            yield
        self._is_stale = False

    def _take(self, operations: Iterable[Operation], *, seal: bool = False) -> None:
        for operation in operations:
            self._takers[type(operation)](operation)
        for lens in self._lenses.values():
            (self._seal if seal else self._save)(lens)

    def _load(self) -> None:
        ask = self.connection.execute
        self._layers: dict[str, int] = dict(ask("SELECT name, id FROM layer"))
        (self._segment,) = ask("SELECT coalesce(max(id), 0) FROM segment").fetchone()
        self._lenses = {name: LensBuffer(number) for number, name in ask("SELECT id, name FROM lens ORDER BY id")}
        for lens in self._lenses.values():
            self._load_lens(lens)

    def _load_lens(self, lens: LensBuffer) -> None:
        ask = partial(_ask, self.connection, lens.id)
        lens.statistics = dict(ask("SELECT name, place FROM statistic WHERE lens = ? ORDER BY place"))
        layers = "SELECT name, lens_layer.place FROM lens_layer JOIN layer ON layer.id = layer WHERE lens = ?"
        lens.layers = dict(ask(f"{layers} ORDER BY lens_layer.place"))
        newest = "SELECT id, segment, seq, ticks, steps FROM block WHERE lens = ? ORDER BY id DESC LIMIT 1"
        for number, segment, seq, ticks, steps in ask(newest):
            lens.blocks, lens.next_seq = number + 1, seq + ticks
            later = self.connection.execute("SELECT after FROM segment WHERE id > ?", [segment])
            lens.last_step = min([int(np.frombuffer(steps, np.int64)[-1]), *(after for (after,) in later)])
        for row in ask("SELECT seq, step, epoch, time, statistics, data FROM hot WHERE lens = ? ORDER BY seq"):
            lens.append(StoredTick.load(*row))
        lens.saved = len(lens.ticks)

    def _take_frame(self, frame: Frame) -> None:
        lens = self._lenses.get(frame.lens) or self._new_lens(frame.lens)
        if not lens.knows(frame):
            self._place_statistics(lens, frame.statistics)
            self._place_layers(lens, frame.layers)
        if lens.last_step is not None and frame.step < lens.last_step:
            self._take_segment(Segment(frame.step - 1, frame.time))
        lens.add(frame)
        if lens.is_full:
            self._seal(lens)

    def _take_histograms(self, taken: PackedHistograms) -> None:
        lens, ask = self._lenses.get(taken.lens) or self._new_lens(taken.lens), self.connection.execute
        ask("INSERT OR IGNORE INTO edges (data) VALUES (?)", [taken.edges])
        (edges,) = ask("SELECT id FROM edges WHERE data = ?", [taken.edges]).fetchone()
        own = lens.id, taken.tag
        (number,) = ask("SELECT coalesce(max(number) + 1, 0) FROM histogram WHERE lens = ? AND tag = ?", own).fetchone()
        self._thin(*own, number)
        ask(_HISTOGRAM, (*own, number, self._segment, taken.step, edges, taken.data))
        self._prune()

    def _thin(self, lens: int, tag: str, number: int) -> None:
        """Drop what is too much once there is one more: the one before it, or every second one."""
        kept = stride(number)
        which = "lens = ? AND tag = ? AND number >= ? AND number % ? != 0"
        first = number - 1 if kept == stride(number - 1) else 0
        self.connection.execute(f"DELETE FROM histogram WHERE {which}", (lens, tag, first, kept))

    def _take_samples(self, taken: PackedSamples) -> None:
        own, ask = (taken.signal, taken.writer), self.connection
        if taken.replaces:
            ask.execute("DELETE FROM samples WHERE signal = ? AND writer = ?", own)
        named = ((*own, place, name) for place, name in enumerate(taken.names, start=taken.first))
        ask.executemany("INSERT OR REPLACE INTO sampled VALUES (?, ?, ?, ?)", named)
        ask.execute(
            "INSERT INTO samples (signal, writer, segment, data) VALUES (?, ?, ?, ?)",
            (*own, self._segment, taken.data),
        )
        self._prune()

    def _take_event(self, event: Event) -> None:
        where = event.severity, event.kind, event.layer, event.statistic
        row = self._segment, event.step, event.epoch, event.time, *where, json.dumps(event.body)
        self.connection.execute(_EVENT, row)

    def _take_meta(self, meta: Meta) -> None:
        rows = [(key, json.dumps(value)) for key, value in meta.facts.items()]
        self.connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def _take_model_layers(self, model: ModelLayers) -> None:
        self._register(layer.name for layer in model.layers)
        known = (
            "UPDATE layer SET place = ?, kind = coalesce(?, kind), parameters = coalesce(?, parameters) WHERE id = ?"
        )
        shift = len(model.layers)
        self.connection.execute("UPDATE layer SET place = place + ?", [shift])
        for place, layer in enumerate(model.layers):
            self.connection.execute(known, (place, layer.kind, layer.parameters, self._layers[layer.name]))

    def _take_looks(self, looks: Looks) -> None:
        lens = self._lenses.get(looks.lens) or self._new_lens(looks.lens)
        self._place_statistics(lens, [statistic.name for statistic in looks.statistics])
        for name, scale, limits, *parts in looks.statistics:
            row = scale, *(limits or (None, None)), *parts, lens.id, lens.statistics[name]
            self.connection.execute(_LOOK, row)

    def _take_segment(self, segment: Segment) -> None:
        for lens in self._lenses.values():
            self._seal(lens)
            if lens.last_step is not None:
                lens.last_step = min(lens.last_step, segment.after)
        self._segment += 1
        self.connection.execute("INSERT INTO segment VALUES (?, ?, ?)", (self._segment, segment.after, segment.time))

    def _new_lens(self, name: str) -> LensBuffer:
        number = self.connection.execute("INSERT INTO lens (name) VALUES (?)", [name]).lastrowid or 0
        return self._lenses.setdefault(name, LensBuffer(number))

    def _place_statistics(self, lens: LensBuffer, names: Iterable[str]) -> None:
        for name in names:
            if name not in lens.statistics:
                lens.statistics[name] = place = len(lens.statistics)
                self.connection.execute(_STATISTIC, (lens.id, place, name, *Statistic(name).parts))

    def _place_layers(self, lens: LensBuffer, names: Sequence[str]) -> None:
        self._register(names)
        for name in names:
            if name not in lens.layers:
                lens.layers[name] = place = len(lens.layers)
                self.connection.execute("INSERT INTO lens_layer VALUES (?, ?, ?)", (lens.id, place, self._layers[name]))

    def _register(self, names: Iterable[str]) -> None:
        """Add unknown layers at the end."""
        for name in names:
            if name not in self._layers:
                place = "(SELECT coalesce(max(place) + 1, 0) FROM layer)"
                row = self.connection.execute(f"INSERT INTO layer (name, place) VALUES (?, {place})", [name])
                self._layers[name] = row.lastrowid or 0

    def _save(self, lens: LensBuffer) -> None:
        """Write the ticks that are in no block."""
        rows = [
            (
                lens.id,
                tick.seq,
                self._segment,
                tick.step,
                tick.epoch,
                tick.time,
                len(tick.values),
                tick.values.tobytes(),
            )
            for tick in lens.ticks[lens.saved :]
        ]
        self.connection.executemany(_HOT, rows)
        lens.saved = len(lens.ticks)

    def _seal(self, lens: LensBuffer) -> None:
        if not lens.ticks:
            return
        axis = (
            np.array([tick[place] for tick in lens.ticks], kind).tobytes()
            for place, kind in ((1, np.int64), (2, np.int32), (3, np.float64))
        )
        size = len(lens.ticks), len(lens.statistics), len(lens.layers)
        self.connection.execute(_BLOCK, (lens.id, lens.blocks, self._segment, lens.ticks[0].seq, *size, *axis))
        rows = ((lens.id, *place, lens.blocks, data) for *place, data in _tiles(lens.stack()))
        self.connection.executemany("INSERT INTO tile VALUES (?, ?, ?, ?, ?, ?)", rows)
        if lens.saved:
            self.connection.execute("DELETE FROM hot WHERE lens = ?", [lens.id])
        lens.clear()
        self._prune()

    def _prune(self) -> None:
        """Drop the oldest until the run fits: histograms, samples, single ticks, columns of 16; those of 256 stay."""
        for old in (_OLD_HISTOGRAMS, _OLD_SAMPLES):
            while self._is_too_large() and self.connection.execute(old).rowcount:
                pass
        for level, first in ((0, "raw_from"), (1, "fine_from")):
            oldest = f"FROM block JOIN lens ON lens.id = block.lens WHERE block.id = {first}"
            while self._is_too_large():
                rows = self.connection.execute(
                    f"SELECT times, lens.id, block.id, statistics, layers {oldest}"
                ).fetchall()
                if not rows:
                    break
                _, lens, block, statistics, layers = min(rows, key=lambda row: np.frombuffer(row[0])[0])
                places = product(range(statistics), range(0, layers, TILE_LAYERS))
                keys = [(lens, level, statistic, layer // TILE_LAYERS, block) for statistic, layer in places]
                which = "lens = ? AND level = ? AND statistic = ? AND layers = ? AND block = ?"
                self.connection.executemany(f"DELETE FROM tile WHERE {which}", keys)
                self.connection.execute(f"UPDATE lens SET {first} = ? WHERE id = ?", (block + 1, lens))

    def _is_too_large(self) -> bool:
        return self.max_size is not None and used_bytes(self.connection) > self.max_size


def used_bytes(connection: sqlite3.Connection) -> int:
    """How many bytes of a file are in use."""
    asked = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {what}").fetchone()[0] for what in asked)
    return int((pages - free) * size)


def _tiles(values: Floats) -> Iterator[tuple[int, int, int, bytes]]:
    """``(level, statistic, number of the group of layers, blob)``."""
    fine = summarise(values, WIDTHS[1])
    levels = fine, merge(fine, WIDTHS[2] // WIDTHS[1])
    raw = np.ascontiguousarray(values)
    for statistic, first in product(range(values.shape[0]), range(0, values.shape[1], TILE_LAYERS)):
        layers = slice(first, first + TILE_LAYERS)
        yield 0, statistic, first // TILE_LAYERS, raw[statistic, layers].tobytes()
        for level, columns in enumerate(levels, start=1):
            part = Columns(columns.numbers[:, statistic, layers], columns.counts[:, statistic, layers])
            yield level, statistic, first // TILE_LAYERS, part.to_bytes()


def owner_of(connection: sqlite3.Connection) -> str | None:
    """The writer that owns the tables."""
    found = connection.execute("SELECT value FROM meta WHERE key = ?", [OWNER]).fetchone()
    return None if found is None else str(json.loads(found[0]))


def _ask(connection: sqlite3.Connection, lens: int, question: str) -> Iterator[Any]:
    return iter(connection.execute(question, [lens]).fetchall())


def read_meta(connection: sqlite3.Connection) -> Mapping[str, Any]:
    """All facts about a run."""
    return {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM meta")}
