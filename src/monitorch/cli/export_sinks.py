"""Writes numbers to files that other programs read."""

import csv
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import MissingExtraError, OptionError
from ..store import WHOLE_RUN
from ..store.whole_file import whole_file
from ..visualizer.scalar_name import OVER_LAYERS, scalar_name
from .export_tables import Piece
from .wording import printable

HEADINGS = ("step", "epoch", "time", "lens", "statistic", "layer", "summary", "value")
_PACKAGES = {"parquet": "pyarrow", "tensorboard": "tensorboard"}


class Sink(Protocol):
    """Writes pieces one after the other."""

    def write(self, piece: Piece) -> int:
        """Add the numbers that were measured; returns how many."""

    def close(self) -> None:
        """Finish the file."""


@contextmanager
def open_sink(kind: str, out: str) -> Iterator[Sink]:
    """A new file of this format; it gets its name only when it is complete."""
    package = _PACKAGES.get(kind)
    if package is not None and find_spec(package) is None:
        raise MissingExtraError.needed_by(f"export --to {kind}", package, extra=kind)
    if out == "-":
        yield CsvSink(sys.stdout, printable if sys.stdout.isatty() else str)
        return
    path = Path(out)
    if path.exists():
        raise OptionError(f"{out!r} exists already: choose another -o, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        sink = _SINKS[kind](part)
        try:
            yield sink
        except BaseException:
            with suppress(Exception):  # a disk that is full fails again
                sink.close()
            raise
        sink.close()


class CsvSink:
    """A row for each number; NaN and infinities are ``nan``, ``inf`` and ``-inf``.

    Args:
        target: a path, or a text stream.
        spell: how names are written, such as with escaped control codes for a terminal.
    """

    def __init__(self, target: Any, spell: Callable[[str], str] = str) -> None:
        self._spell = spell
        self._own = isinstance(target, Path)
        self._file = target.open("w", newline="", encoding="utf-8", errors="backslashreplace") if self._own else target
        self._file.write(_csv_line(HEADINGS) + "\n")

    def write(self, piece: Piece) -> int:
        """Add rows; common parts are turned into text once."""
        moments = [
            f"{step},{epoch},{time},"
            for step, epoch, time in zip(*(field.tolist() for field in piece.axis), strict=True)
        ]
        for (layer, summary), values, there in zip(piece.lines, piece.values, piece.there, strict=True):
            names = _csv_line(map(self._spell, [piece.lens, piece.statistic.name, layer, summary])) + ","
            numbers = values[there].astype(str).tolist()  # the shortest text that is the same float32 again
            rows = zip(compress(moments, there.tolist()), numbers, strict=True)
            self._file.writelines(f"{moment}{names}{number}\n" for moment, number in rows)
        return int(piece.there.sum())

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._own:
            self._file.close()


def _csv_line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


class ParquetSink:
    """The same rows as columns; values are float32.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        name = pa.dictionary(pa.int32(), pa.string())
        kinds = pa.int64(), pa.int32(), pa.float64(), name, name, name, name, pa.float32()
        self._arrow, self._schema = pa, pa.schema(list(zip(HEADINGS, kinds, strict=True)))
        self._file = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, piece: Piece) -> int:
        """Add rows as one group."""
        line, tick = np.nonzero(piece.there)
        if len(line):
            moments = [field[tick] for field in piece.axis]
            layers, summaries = zip(*piece.lines, strict=True)
            names = [self._names(line * 0, [piece.lens]), self._names(line * 0, [piece.statistic.name])]
            names += [self._names(line, layers), self._names(line, summaries)]
            columns = [*moments, *names, piece.values[line, tick]]
            self._file.write_table(self._arrow.table(columns, schema=self._schema))
        return len(line)

    def _names(self, places: Any, names: Any) -> Any:
        texts = [name.encode(errors="backslashreplace").decode() for name in names]
        return self._arrow.DictionaryArray.from_arrays(places.astype(np.int32), self._arrow.array(texts))

    def close(self) -> None:
        """Write the end of the file, without which it cannot be read."""
        self._file.close()


class TensorBoardSink:
    """Event files; numbers have the same names as those written in training, see :func:`scalar_name`.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events = EventFileWriter(str(path))

    def write(self, piece: Piece) -> int:
        """Add one event for each tick."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        tags = [_tag(piece, *line) for line in piece.lines]
        moments = zip(piece.axis.step.tolist(), piece.axis.time.tolist(), strict=True)
        for (step, time), values, there in zip(moments, piece.values.T, piece.there.T, strict=True):
            shown = [Summary.Value(tag=tags[line], simple_value=float(values[line])) for line in np.flatnonzero(there)]
            if shown:
                self._events.add_event(Event(step=step, wall_time=time, summary=Summary(value=shown)))
        return int(piece.there.sum())

    def close(self) -> None:
        """Wait until everything is written."""
        self._events.close()


def _tag(piece: Piece, layer: str, summary: str) -> str:
    statistic = piece.statistic
    tag, line = (statistic.tag, statistic.text) if statistic.tag else (statistic.text, "")
    if statistic.role == "share":
        line = ""
    if summary:
        layer, line = OVER_LAYERS, f"{line} {summary}"
    elif piece.lens == WHOLE_RUN:
        layer = ""
    return scalar_name(tag, layer, line).encode(errors="backslashreplace").decode()


_SINKS: dict[str, Any] = {"csv": CsvSink, "parquet": ParquetSink, "tensorboard": TensorBoardSink}
