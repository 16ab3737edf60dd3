"""Reads a run, finished or still being written."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..statistic import Statistic
from .buffer import padded
from .database import read_meta
from .failure import Failure
from .histograms import unpack
from .lens_index import Axis, LensIndex
from .query import Query, column_axis
from .samples import SampleArrays
from .samples import unpack as unpack_samples
from .schema import naming
from .source import open_source
from .status import derive_status
from .tiles import is_absent
from .types import WHOLE_RUN, Event, Floats, Frame, HistogramFrame, Layer

_EVENTS = (
    "SELECT segment, step, kind, severity, epoch, time, layer, statistic, body, id FROM event WHERE id > ? ORDER BY id"
)
_SAMPLED = "SELECT signal, writer, place, name FROM sampled WHERE signal = ifnull(?, signal)"
_SAMPLES = "SELECT signal, writer, segment, data FROM samples WHERE signal = ifnull(?, signal) ORDER BY id"
_HISTOGRAM = "SELECT edges.data, histogram.data FROM histogram JOIN edges ON edges.id = edges WHERE histogram.rowid = ?"


class LayerSeries(NamedTuple):
    """Every measured number, and when it was measured."""

    axis: Axis
    values: Floats


class Window(NamedTuple):
    """Numbers of many layers in columns; arrays are ``[layer, column]``.

    ``axis`` says when a column begins, ``last_step`` where it ends. ``mean``, ``minimum`` and ``maximum`` are over the
    finite numbers, of which there are ``finite``. ``nonfinite`` is how many samples of all its ticks were NaN or
    infinite; if samples were not counted, how many of its numbers are. A column of one tick has the number itself,
    infinite or not. NaN with counts of 0 means that nothing was measured.
    """

    layers: tuple[str, ...]
    axis: Axis
    last_step: NDArray[np.int64]
    mean: Floats
    minimum: Floats
    maximum: Floats
    nonfinite: NDArray[np.integer[Any]]
    finite: NDArray[np.integer[Any]]


class LensInfo(NamedTuple):
    """A lens of a run; layers are in model order. ``histograms`` are the tags that have them."""

    name: str
    statistics: tuple[Statistic, ...]
    layers: tuple[str, ...]
    ticks: int
    first_step: int | None
    last_step: int | None
    histograms: tuple[str, ...] = ()


class Run:
    """A run of one process, read only; may be used by several threads.

    Every call reads the file at one moment, with everything that is committed by then.

    Args:
        path: the file of a rank.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._source = open_source(self.path)
        self._version: int | None = None
        self._lenses: dict[str, LensIndex] = {}
        self._segments: list[tuple[int, int]] = []
        with self._moment():
            pass

    @property
    def meta(self) -> Mapping[str, Any]:
        """All facts: id, name, status, rank, started, heartbeat, versions, config and further notes."""
        with self._moment() as connection:
            return read_meta(connection)

    @property
    def name(self) -> str:
        """The name of the run."""
        return str(self.meta.get("name", self.path.parent.name))

    @property
    def status(self) -> str:
        """``"running"``, ``"finished"`` or ``"crashed"``; also "crashed" if there is no heartbeat any more."""
        return derive_status(self.meta)

    @property
    def error(self) -> Failure | None:
        """The exception that ended the run; None if it finished, is running, or was killed."""
        return Failure.from_meta(self.meta)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that have numbers, in model order."""
        seen = "SELECT layer FROM lens_layer JOIN lens ON lens.id = lens WHERE lens.name != ?"
        question = f"SELECT name, kind, parameters FROM layer WHERE id IN ({seen}) ORDER BY place"
        with self._moment() as connection:
            return tuple(Layer(*row) for row in connection.execute(question, [WHOLE_RUN]))

    @property
    def lenses(self) -> dict[str, LensInfo]:
        """The lenses by name."""
        with self._moment() as connection:
            order = self._order(connection)
            return {name: _described(lens, order) for name, lens in self._lenses.items()}

    @property
    def last_step(self) -> int | None:
        """The newest step."""
        with self._moment():
            steps = [lens.axis.step[-1] for lens in self._lenses.values() if len(lens.axis.step)]
        return int(max(steps)) if steps else None

    def data_version(self) -> int:
        """A number that changes whenever something was stored; cheap to call."""
        with self._lock, naming(self.path):
            return self._source.version()

    def series(
        self, lens: str, statistic: str, layer: str, first: int | None = None, last: int | None = None
    ) -> LayerSeries:
        """The numbers of one layer from step ``first`` to step ``last``, tick by tick.

        Ticks at which it was not measured, and those pruned by ``max_size``, are left out.
        """
        with self._moment() as connection:
            index, place, rows = self._find(lens, statistic, [layer])
            begin, end = index.span(first, last)
            values = Query(connection, index, place, rows).raw(begin, end)[0]
            there = ~is_absent(values)
            return LayerSeries(index.axis.take(slice(begin, end)).take(there), values[there])

    def window(
        self,
        lens: str,
        statistic: str,
        first: int | None = None,
        last: int | None = None,
        resolution: int = 1000,
        layers: Sequence[str] | None = None,
    ) -> Window:
        """The numbers of all ``layers`` from step ``first`` to step ``last`` in at most ``resolution`` columns."""
        if resolution < 1:
            raise OptionError(f"resolution={resolution!r} must be a number of columns, at least 1")
        with self._moment() as connection:
            names = self._in_order(connection, lens) if layers is None else tuple(layers)
            index, place, rows = self._find(lens, statistic, names)
            ticks = *index.span(first, last), resolution
            span = Query(connection, index, place, rows).window(*ticks)
            axis, last_step = column_axis(index.axis, span)
            finite, nonfinite = span.columns.counts
            count = index.statistics[place].nonfinite_among(index.statistics)
            if count is not None:
                counted = Query(connection, index, index.statistics.index(count), rows).window(*ticks).columns
                if (counted.numbers[0] > 0).any():  # they are zero in most runs
                    nonfinite = np.maximum(nonfinite, counted.totals())
        mean, minimum, maximum = span.columns.numbers
        return Window(names, axis, last_step, mean, minimum, maximum, nonfinite, finite)

    def newest(self) -> dict[str, Frame]:
        """The newest frame of each lens."""
        return self.frame_at(None)

    def frame_at(self, step: int | None) -> dict[str, Frame]:
        """The frame of each lens at a step, or the last one before it; lenses without one are left out."""
        with self._moment() as connection:
            ends = ((lens, lens.span(None, step)[1]) for lens in self._lenses.values())
            return {lens.name: self._frame(connection, lens, end - 1) for lens, end in ends if end}

    def histograms(
        self, lens: str, tag: str, step: int | None = None, layers: Sequence[str] | None = None
    ) -> HistogramFrame | None:
        """The histograms of a tag at a step, or the last ones before it; None if there are none.

        Of a long run, those of some ticks are left out. So are layers that have none at that tick.
        """
        with self._moment() as connection:
            index = self._lens(lens)
            if tag not in index.histograms:
                raise OptionError.unknown("tag", tag, index.histograms)
            rows = connection.execute(
                "SELECT rowid, segment, step FROM histogram WHERE lens = ? AND tag = ? ORDER BY number DESC",
                (index.id, tag),
            )
            for row, segment, own in rows.fetchall():
                end = self._end_of(segment)
                if (step is None or own <= step) and (end is None or own <= end):
                    stored = connection.execute(_HISTOGRAM, [row]).fetchone()
                    break
            else:
                return None
            edges = np.frombuffer(stored[0])
            known, counts = unpack(stored[1], len(edges) - 1)
        places = {name: place for place, name in enumerate(known)}
        shown = tuple(name for name in (known if layers is None else layers) if name in places)
        return HistogramFrame(lens, tag, own, shown, edges, counts[[places[name] for name in shown]])

    def samples(self, signal: str | None = None) -> dict[str, list[tuple[tuple[str, ...], SampleArrays]]]:
        """Single samples by signal: for each process that has written some, the names of places, and the samples.

        Args:
            signal: only this one; None for all.
        """
        names: dict[tuple[str, str], dict[int, str]] = {}
        parts: dict[tuple[str, str], list[SampleArrays]] = {}
        with self._moment() as connection:
            for own, writer, place, name in connection.execute(_SAMPLED, [signal]):
                names.setdefault((own, writer), {})[place] = name
            rows = connection.execute(_SAMPLES, [signal]).fetchall()
            ends = {segment: self._end_of(segment) for segment in {row[2] for row in rows}}
        for own, writer, segment, data in rows:
            taken, end = unpack_samples(data), ends[segment]
            is_valid = np.isin(taken.places, list(names.get((own, writer), {})))
            is_valid &= True if end is None else taken.steps <= end
            parts.setdefault((own, writer), []).append(taken.select(is_valid))
        found: dict[str, list[tuple[tuple[str, ...], SampleArrays]]] = {}
        for (own, writer), taken_all in parts.items():
            known = names.get((own, writer), {})
            ordered = tuple(known.get(place, "") for place in range(max(known, default=-1) + 1))
            found.setdefault(own, []).append((ordered, SampleArrays.joined(taken_all)))
        return found

    def events(self, since: int = 0) -> list[Event]:
        """The events whose id is greater than ``since``, oldest first."""
        with self._moment() as connection:
            rows = connection.execute(_EVENTS, [since]).fetchall()
            ends = {segment: self._end_of(segment) for segment in {row[0] for row in rows}}
            found = [(ends[segment], _event(*fields)) for segment, *fields in rows]
        return [event for end, event in found if end is None or event.step <= end]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._source.connection.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..dashboard import report_html  # needed only in notebooks

        return report_html(self)._repr_mimebundle_()

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.status}, last_step={self.last_step})"

    @contextmanager
    def _moment(self) -> Iterator[sqlite3.Connection]:
        """One short read transaction, with the copy in memory brought up to date."""
        connection = self._source.connection
        with self._lock, naming(self.path):
            try:
                version = self._source.begin()
                if version != self._version:
                    self._refresh(connection)
                    self._version = version
                yield connection
            finally:
                with suppress(sqlite3.Error):  # an unfinished transaction is ended before the next one begins
                    connection.execute("COMMIT")

    def _refresh(self, connection: sqlite3.Connection) -> None:
        self._segments = connection.execute("SELECT id, after FROM segment").fetchall()
        for number, name in connection.execute("SELECT id, name FROM lens ORDER BY id").fetchall():
            if name not in self._lenses:
                self._lenses[name] = LensIndex(number, name)
        for lens in self._lenses.values():
            lens.refresh(connection, self._end_of)

    def _end_of(self, segment: int) -> int | None:
        return min((after for number, after in self._segments if number > segment), default=None)

    def _find(self, lens: str, statistic: str, layers: Sequence[str]) -> tuple[LensIndex, int, list[int]]:
        index = self._lens(lens)
        statistics = [known.name for known in index.statistics]
        if statistic not in statistics:
            raise OptionError.unknown("statistic", statistic, statistics)
        places = {name: place for place, name in enumerate(index.layers)}
        for layer in layers:
            if layer not in places:
                raise OptionError.unknown("layer", layer, places)
        return index, statistics.index(statistic), [places[layer] for layer in layers]

    def _lens(self, name: str) -> LensIndex:
        if name not in self._lenses:
            raise OptionError.unknown("lens", name, self._lenses)
        return self._lenses[name]

    def _order(self, connection: sqlite3.Connection) -> dict[str, int]:
        return dict(connection.execute("SELECT name, place FROM layer"))

    def _in_order(self, connection: sqlite3.Connection, lens: str) -> tuple[str, ...]:
        return tuple(sorted(self._lens(lens).layers, key=self._order(connection).__getitem__))

    def _frame(self, connection: sqlite3.Connection, lens: LensIndex, place: int) -> Frame:
        names = tuple(statistic.name for statistic in lens.statistics)
        layers = self._in_order(connection, lens.name)
        rows = [lens.layers.index(layer) for layer in layers]
        if place >= lens.sealed:
            values = padded(lens.tail[place - lens.sealed].values, (len(names), len(rows)))[:, rows]
        else:
            queries = (Query(connection, lens, number, rows) for number in range(len(names)))
            values = np.stack([query.raw(place, place + 1)[:, 0] for query in queries])
        step, epoch, moment = (field[place].item() for field in lens.axis)
        return Frame(lens.name, step, epoch, moment, names, layers, values)


def _described(lens: LensIndex, order: Mapping[str, int]) -> LensInfo:
    steps = lens.axis.step
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (None, None)
    layers = tuple(sorted(lens.layers, key=order.__getitem__))
    return LensInfo(lens.name, tuple(lens.statistics), layers, len(steps), first, last, lens.histograms)


def _event(*fields: Any) -> Event:
    *described, body, number = fields
    return Event._make([*described, json.loads(body), number])
