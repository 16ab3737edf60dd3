"""Stores numbers in a run on disk, which pages, reports and exports read."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OptionError, StoreError, users_line, warn
from ..store import DEFAULT_FOLDER, WHOLE_RUN, Layer, Statistic, Writer
from ..store.library import numbered as numbered_names
from ..store.library import ranks_of, time_name
from ..store.names import SHARE, count_name, parse
from ..store.tiles import absent
from .abstract_visualizer import TagAttributes, TagType
from .record import Record
from .record_sink import RecordSink

MOST_TOLD = 20
"""How many non-finite numbers become events: one leads to many others."""
_NAME = re.compile(r"[^/\\\x00]+")
_LARGEST = float(np.finfo(np.float32).max)


class StoreVisualizer(RecordSink):
    """Stores every tick in the folder ``<folder>/<name>``, in a background thread.

    A statistic is called ``<tag>/<line>``, such as ``"Weight Gradient Norm/mean"``. Beside the lines there is
    ``<tag>/nonfinite``, the number of samples that were NaN or infinite. A comparison is the statistic ``<tag>/share``
    of each layer. Numbers of the whole model, such as losses, are in the lens and layer ``"run"``.

    No file is made before the first number, or before :meth:`open`.

    Args:
        folder: the folder that holds all runs.
        name: the name of this run; the date and time if None.
        numbered: add a number to a name that is taken, instead of raising an error.
        config: settings to keep with the run, as JSON data.
        facts: further facts to keep with the run, by name.
        shared: whether other processes write to the same run, each to its own file.
        resume: continue the run of that name.
        resume_step: the step of the checkpoint that training continues from. The inspector counts from 0 again, so this
            is added to its steps, and numbers stored for later steps are hidden. None: the newest stored step.
        max_size: how many bytes a file may take; beyond that the oldest ticks are kept as averages only.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = DEFAULT_FOLDER,
        name: str | None = None,
        *,
        numbered: bool = False,
        config: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        shared: bool = False,
        resume: bool = False,
        resume_step: int | None = None,
        max_size: int | None = None,
    ) -> None:
        if name is not None and (not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", "..")):
            raise OptionError(f"name={name!r} must be the name of a folder, without slashes")
        if resume and name is None:
            raise OptionError("resume=True needs the name of the run")
        meta = {**(facts or {}), "config": dict(config or {})}
        self._options: dict[str, Any] = {"meta": meta, "resume": resume, "resume_step": resume_step}
        self._options["max_size"] = max_size
        self._folder, self._name = Path(folder).absolute(), name  # absolute: the working directory may change later
        Writer.check(**self._options)
        self._numbered = (numbered or name is None) and not resume
        if name is not None and not (resume or shared or numbered) and ranks_of(self._folder / name):
            raise StoreError(f"there is a run in {self._folder / name} already: choose another name, or resume=True")
        self._writer: Writer | None = None
        self._closed = self._warned = False
        self._first_step, self._counts_on = 0, False
        self._moment = 0, 0, 0.0
        self._layers: tuple[Layer, ...] = ()
        self._tick: dict[str, Grid] = {}
        self._grids: dict[str, Grid] = {}
        self._names: dict[tuple[str, str], tuple[str, str]] = {}
        self._nonfinite: set[tuple[str, str]] = set()

    @property
    def path(self) -> Path | None:
        """The folder of the run; None before it exists, or if it cannot be made."""
        return self._writer.folder if self._writer is not None and self._writer.path is not None else None

    @property
    def name(self) -> str | None:
        """The name of the run, or the name it will get if that is free; None if it will be the date and time."""
        return self._name if self.path is None else self.path.name

    def open(self, rank: int = 0, name: str | None = None) -> bool:
        """Make the run now, instead of at the first number; whether it worked. If not, a warning has said why.

        Args:
            rank: the rank of this process.
            name: the name of the run that another process has made, to write to the same run.
        """
        if self._writer is None and not self._closed:
            if name is not None:
                self._name, self._numbered = name, False
            self._open(rank)
        return self._writer is not None and self._writer.is_storing

    @property
    def writer(self) -> Writer:
        """The writer, for events and notes; made when first needed, so that only one process makes a folder."""
        return self._writer or self._open(0)

    def introduce_layers(self, layers: Sequence[str]) -> None:
        """Keep the order of the model."""
        self._keep_layers(map(Layer, layers))

    def describe_layers(self, layers: Iterable[tuple[str, str, int]]) -> None:
        """Keep the order of the model: the name of each layer, its kind, and how many parameters it has."""
        self._keep_layers(Layer(*layer) for layer in layers)

    def _keep_layers(self, layers: Iterable[Layer]) -> None:
        self._layers = tuple(layers)
        if self._writer is not None and not self._closed:
            self._writer.introduce_layers(self._layers)

    def continue_from(self, step: int) -> None:
        """The inspector continues from a checkpoint of this step: stored numbers of later steps are hidden."""
        self._counts_on = True
        if not self._options["resume"]:
            return
        if self._writer is None:
            self._options["resume_step"] = step
        elif not self._closed:
            self._first_step = 0
            self._writer.resume_from(step)

    def note(self, **facts: Any) -> None:
        """Store further facts, if the run exists."""
        if self._writer is not None and not self._closed:
            self._writer.note(**facts)

    def write(self, records: Sequence[Record]) -> None:
        """Keep records until their tick is complete; after :meth:`close` they are left out, with a warning."""
        if self._closed:
            self._warn("this StoreVisualizer is closed and takes no more numbers")
            return
        try:
            if records and self._writer is None:
                self._open(records[0].rank)
            for record in records:
                if self._tick and (record.step, record.epoch) != self._moment[:2]:
                    self.flush()
                self._moment = record.step, record.epoch, record.time
                self._keep(record)
        except Exception as error:  # whatever a user's lens shows, training goes on
            self._warn(f"numbers cannot be stored: {type(error).__name__}: {error}. They are left out")

    def flush(self) -> None:
        """Pass the tick to the writer."""
        ticks, self._tick = self._tick, {}
        step, epoch, moment = self._moment
        for lens, grid in ticks.items():
            try:
                self._tell_of_nonfinite(lens, grid, step + self._first_step, epoch)
                self.writer.put(lens, step + self._first_step, **grid.frame(), epoch=epoch, time=moment)
            except Exception as error:
                self._warn(f"{lens} cannot be stored: {type(error).__name__}: {error}. It is left out")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warn(text, stacklevel=users_line())

    def _tell_of_nonfinite(self, lens: str, grid: "Grid", step: int, epoch: int) -> None:
        """Store where and when numbers were first non-finite: later ones are only a consequence."""
        new = [found for found in grid.nonfinite() if found not in self._nonfinite]
        for statistic, layer in new[: MOST_TOLD - len(self._nonfinite)]:
            self._nonfinite.add((statistic, layer))
            body = {"reason": f"{statistic} was NaN or infinite for the first time", "lens": lens}
            details = {"epoch": epoch, "layer": layer, "statistic": statistic, "body": body}
            self.writer.event(step, "not finite", "error", **details)

    def sync(self) -> None:
        """Wait until readers can see everything."""
        if self._writer is not None and not self._closed:
            self._writer.flush()

    def close(self, status: str = "finished", error: BaseException | None = None) -> None:
        """Store what is left; calling it again does nothing.

        Args:
            status: how the run ended, ``"finished"`` or ``"crashed"``.
            error: the exception that ended it, to be kept with the run.
        """
        if not self._closed:
            self.flush()
            self._closed = True
            if self._writer is not None:
                self._writer.close(status, error)

    def __enter__(self) -> "StoreVisualizer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.close("finished" if kind is None else "crashed", error)

    def _open(self, rank: int) -> Writer:
        """Make the run, with the given name or, if that is taken, with a number added."""
        reason: StoreError | None = None
        options = self._options
        for name in numbered_names(self._name or time_name()):
            if self._numbered and (self._folder / name).exists():
                continue
            try:
                self._writer = Writer(self._folder / name, rank=rank, **options)
                break
            except StoreError as error:  # another process was faster; training must not end for that
                reason = reason or error
                options = {**options, "resume": False, "resume_step": None}
        assert self._writer is not None  # there is always a free number
        if reason is not None and not self._numbered:
            warn(f"{reason}. This run is stored as {name!r}", stacklevel=users_line())
        asked = self._options["resume_step"]
        if not self._counts_on:
            self._first_step = (self._writer.resumed_step or 0) if asked is None else asked
        if self._layers:
            self._writer.introduce_layers(self._layers)
        return self._writer

    def _keep(self, record: Record) -> None:
        attributes = self.tags.get(record.tag)
        lens, layer, line = record.lens or record.tag, record.layer, record.statistic
        is_share = attributes is not None and attributes.type is TagType.RELATIONS
        if is_share:
            layer, line = record.statistic, SHARE
        elif record.layer == record.tag:
            lens = layer = WHOLE_RUN
        grid = self._grids.get(lens)
        if grid is None:
            grid = self._grids[lens] = Grid()
        self._tick[lens] = grid
        names = self._names.get((record.tag, line))
        if names is None:
            name = f"{record.tag}/{line}"
            names = self._names[record.tag, line] = name, count_name(name)
        if grid.set(names[0], layer, record.value):
            self.writer.introduce_statistics(lens, [_look(names[0], attributes)])
        if not is_share:
            # a number that overflows float32 is non-finite, too, so count at least one sample
            grid.count(names[1], layer, record.nonfinite or int(not abs(record.value) <= _LARGEST))


class Grid:
    """The numbers of a lens at a tick; names keep their places from tick to tick."""

    def __init__(self) -> None:
        self._statistics: dict[str, int] = {}
        self._layers: dict[str, int] = {}
        self._cells: dict[tuple[int, int], float] = {}
        self._broken: set[tuple[str, str]] = set()
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def set(self, statistic: str, layer: str, value: float) -> bool:
        """Keep a number; True if its statistic is new."""
        is_new = statistic not in self._statistics
        self._cells[self._place(statistic, layer)] = value
        return is_new

    def count(self, statistic: str, layer: str, number: int) -> None:
        """Keep how many samples were non-finite; of several lines of one curve, the largest count is kept."""
        place = self._place(statistic, layer)
        self._cells[place] = max(number, self._cells.get(place, 0))
        if number:
            self._broken.add((statistic, layer))

    def _place(self, statistic: str, layer: str) -> tuple[int, int]:
        row = self._statistics.setdefault(statistic, len(self._statistics))
        return row, self._layers.setdefault(layer, len(self._layers))

    def nonfinite(self) -> list[tuple[str, str]]:
        """Tags, with their curves, and layers that had non-finite samples, in layer order.

        The counts are cleared.
        """
        found, self._broken = self._broken, set()
        ordered = sorted(found, key=lambda pair: (self._layers[pair[1]], pair[0]))
        return [(_plot(statistic), layer) for statistic, layer in ordered]

    def frame(self) -> dict[str, Any]:
        """The frame for the writer; the cells are cleared."""
        cells, self._cells = self._cells, {}
        if (len(self._statistics), len(self._layers)) != tuple(map(len, self._names)):
            self._names = tuple(self._statistics), tuple(self._layers)
        values = absent((len(self._statistics), len(self._layers)))
        with np.errstate(over="ignore"):
            values[tuple(np.array(list(cells), np.intp).T)] = list(cells.values())
        return {"values": values, "statistics": self._names[0], "layers": self._names[1]}


def _plot(statistic: str) -> str:
    """What a count belongs to: the tag and, if it has several, the curve."""
    tag, curve, _ = parse(statistic)
    return f"{tag}/{curve}" if curve else tag


def _look(statistic: str, attributes: TagAttributes | None) -> Statistic:
    if attributes is None:
        return Statistic(statistic)
    limits = (0.0, 1.0) if attributes.ylim is None and attributes.type is not TagType.NUMERICAL else attributes.ylim
    ordered = None if limits is None else (min(limits), max(limits))
    return Statistic(statistic, "log" if attributes.logy else "linear", ordered)
