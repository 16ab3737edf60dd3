"""Numbers into a run store, from which pages, reports and exports are made."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LifecycleError, OptionError, StoreError, warn
from ..store import DEFAULT_FOLDER, WHOLE_RUN, Layer, Statistic, Writer
from ..store.library import free_name, ranks_of, time_name
from ..store.tiles import absent
from .abstract_visualizer import TagAttributes, TagType
from .record import Record
from .record_sink import RecordSink

SHARE = "share"
NONFINITE = "nonfinite"
MOST_TOLD = 20
"""How many numbers that are not finite are told as events: one makes others."""
_NAME = re.compile(r"[^/\\\x00]+")


class StoreVisualizer(RecordSink):
    """Stores every tick in the folder ``<folder>/<name>``, in a thread of its own.

    A statistic is called ``<tag>/<line>``, such as ``"Weight Gradient Norm/mean"``. Beside the lines there is
    ``<tag>/nonfinite``, the number of samples that were NaN or infinite. A comparison is the statistic ``<tag>/share``
    of each layer. What belongs to the model as a whole, such as losses, is in the lens and layer ``"run"``.

    Args:
        folder: of all runs.
        name: of this run; the date and time if None.
        config: what to keep beside the numbers; anything JSON can say.
        facts: what else is known of the run, by name.
        shared: other processes write to the same run, each to a file of its own.
        resume: continue the run of that name.
        resume_step: the step of the checkpoint that training goes on from: the inspector counts from 0 again, so it is
            added to its steps, and what was stored for later steps is hidden. None: the newest step that is stored.
        max_size: how many bytes a file may take: then the oldest ticks are kept as averages only.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = DEFAULT_FOLDER,
        name: str | None = None,
        *,
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
        self._folder, self._name = Path(folder).absolute(), name  # the working directory may change before it is used
        Writer.check(**self._options)
        if name is not None and not resume and not shared and ranks_of(self._folder / name):
            raise StoreError(f"there is a run in {self._folder / name} already: choose another name, or resume=True")
        self._writer: Writer | None = None
        self._closed = False
        self._first_step, self._counts_on = 0, False
        self._moment = 0, 0, 0.0
        self._layers: tuple[Layer, ...] = ()
        self._tick: dict[str, Grid] = {}
        self._grids: dict[str, Grid] = {}
        self._nonfinite: set[tuple[str, str]] = set()

    @property
    def path(self) -> Path | None:
        """The folder of the run; None before the first number."""
        return self._writer.folder if self._writer else None

    @property
    def writer(self) -> Writer:
        """The writer, for events and notes; made when first needed, so that only one process leaves a folder."""
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
        """The inspector goes on from a checkpoint of this step and counts on: what a run has of later is hidden."""
        self._counts_on = True
        if self._options["resume"] and self._writer is None:
            self._options["resume_step"] = step

    def note(self, **facts: Any) -> None:
        """Store further facts, if there is a run already."""
        if self._writer is not None and not self._closed:
            self._writer.note(**facts)

    def write(self, records: Sequence[Record]) -> None:
        """Keep records until their tick is complete."""
        if self._closed:
            raise LifecycleError("this StoreVisualizer is closed and takes no more numbers")
        if records and self._writer is None:
            self._open(records[0].rank)
        for record in records:
            if self._tick and (record.step, record.epoch) != self._moment[:2]:
                self.flush()
            self._moment = record.step, record.epoch, record.time
            self._keep(record)

    def flush(self) -> None:
        """Hand the tick over to the writer."""
        ticks, self._tick = self._tick, {}
        if not ticks:
            return
        step, epoch, moment = self._moment
        for lens, grid in ticks.items():
            self._tell_of_nonfinite(lens, grid, step + self._first_step, epoch)
            self.writer.put(lens, step + self._first_step, **grid.frame(), epoch=epoch, time=moment)

    def _tell_of_nonfinite(self, lens: str, grid: "Grid", step: int, epoch: int) -> None:
        """Keep where and when numbers were not finite for the first time: what follows is only a consequence."""
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
        name = self._name or free_name(self._folder, time_name())
        try:
            self._writer = Writer(self._folder / name, rank=rank, **self._options)
        except StoreError as error:  # somebody was faster; training must not end for that
            other = free_name(self._folder, name)
            warn(f"{error}. This run is stored as {other!r}", stacklevel=3)
            self._writer = Writer(self._folder / other, rank=rank, **self._options)
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
        if grid.set(f"{record.tag}/{line}", layer, record.value):
            self.writer.introduce_statistics(lens, [_look(f"{record.tag}/{line}", attributes)])
        if not is_share:
            grid.set(f"{record.tag}/{NONFINITE}", layer, record.nonfinite)
            if record.nonfinite:
                grid.broken.add((record.tag, layer))


class Grid:
    """The numbers of a lens at a tick; names keep their places from tick to tick."""

    def __init__(self) -> None:
        self._statistics: dict[str, int] = {}
        self._layers: dict[str, int] = {}
        self._cells: dict[tuple[int, int], float] = {}
        self.broken: set[tuple[str, str]] = set()
        """Tags and layers with samples that are not finite."""
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def set(self, statistic: str, layer: str, value: float) -> bool:
        """Keep a number; True if its statistic is a new one."""
        is_new = statistic not in self._statistics
        row = self._statistics.setdefault(statistic, len(self._statistics))
        column = self._layers.setdefault(layer, len(self._layers))
        self._cells[row, column] = value
        return is_new

    def nonfinite(self) -> list[tuple[str, str]]:
        """Tags and layers whose samples were not all finite, in the order of the layers; none are left then."""
        found, self.broken = self.broken, set()
        return sorted(found, key=lambda pair: (self._layers[pair[1]], pair[0]))

    def frame(self) -> dict[str, Any]:
        """What the writer is given; the cells are empty then."""
        cells, self._cells = self._cells, {}
        if (len(self._statistics), len(self._layers)) != tuple(map(len, self._names)):
            self._names = tuple(self._statistics), tuple(self._layers)
        values = absent((len(self._statistics), len(self._layers)))
        with np.errstate(over="ignore"):
            values[tuple(np.array(list(cells), np.intp).T)] = list(cells.values())
        return {"values": values, "statistics": self._names[0], "layers": self._names[1]}


def _look(statistic: str, attributes: TagAttributes | None) -> Statistic:
    if attributes is None:
        return Statistic(statistic)
    limits = (0.0, 1.0) if attributes.ylim is None and attributes.type is not TagType.NUMERICAL else attributes.ylim
    ordered = None if limits is None else (min(limits), max(limits))
    return Statistic(statistic, "log" if attributes.logy else "linear", ordered)
