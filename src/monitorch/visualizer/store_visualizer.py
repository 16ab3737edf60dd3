"""Stores numbers in a run on disk, which pages, reports and exports read."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, StoreError, short_repr, warn
from ..statistic import Statistic
from ..store import DEFAULT_FOLDER, WHOLE_RUN, Event, Layer, Writer
from ..store.run_list import numbered as numbered_names
from ..store.run_list import ranks_of, time_name
from ..store.samples import SampleArrays
from ..store.tiles import absent
from ..store.types import Floats
from .frame import Bins, Moment, TagFrame, frames_of
from .record import Record
from .record_sink import RecordSink

MOST_TOLD = 20
"""How many non-finite numbers become events: one leads to many others."""
LONGEST_NAME = 240
"""Bytes of the name of a run: file systems take 255, and a number may be added to a name that is taken."""
_NAME = re.compile(r"[^/\\\x00\ud800-\udc7f\udd00-\udfff]+")
"""Without what no name of a file has; bytes that are no Unicode are read as what is left of the surrogates."""
_LARGEST = float(np.finfo(np.float32).max)


class StoreVisualizer(RecordSink):
    """Stores every tick in the folder ``<folder>/<name>``, in a background thread.

    A statistic is called ``<tag>/<line>``, such as ``"Weight Gradient Norm/mean"``. Beside the lines there is
    ``<tag>/nonfinite``, the number of samples that were NaN or infinite. A comparison is the statistic ``<tag>/share``
    of each layer. Numbers of the whole model, such as losses, are in the lens and layer ``"run"``.

    No file is made before the first number or event, or before :meth:`open`.

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

    deferred = True

    report_event: Callable[[Event], None] | None = None
    """Set by an inspector: publishes an event that is found here."""

    rank = 0
    """Set by an inspector: the rank of this process, for an event that comes before the first number."""

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
            raise OptionError(f"a run cannot be called {name!r}: its name is that of a folder, without slashes")
        if name is not None and len(name.encode(errors="replace")) > LONGEST_NAME:
            text = f"a run cannot be called {short_repr(name)}: the name of a folder has at most {LONGEST_NAME} bytes"
            raise OptionError(text)
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
        self._unit = self._noted_unit = ""
        self._layers: tuple[Layer, ...] = ()
        self._tick: dict[str, Grid] = {}
        self._binned: list[tuple[str, TagFrame, Bins]] = []
        self._grids: dict[str, Grid] = {}
        self._nonfinite: set[tuple[str, str]] = set()
        self._opening = threading.Lock()

    @property
    def path(self) -> Path | None:
        """The folder of the run; None before it exists, or if it cannot be made."""
        self._wait()
        return self._writer.folder if self._writer is not None and self._writer.path is not None else None

    @property
    def name(self) -> str | None:
        """The name of the run, or the name it will get if that is free; None if it will be the date and time."""
        return self._name if self.path is None else self.path.name

    def open(self, rank: int = 0, name: str | None = None) -> bool:
        """Make the run now, instead of at the first number; returns whether that worked; if not, a warning says why.

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
        self._wait()
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

    @property
    def first_step(self) -> int:
        """How many steps the stored run had before this process began to count at 0."""
        return self._first_step

    def keep_samples(self, signal: str, samples: SampleArrays, **names: Any) -> bool:
        """Store single samples, see :meth:`monitorch.store.Writer.put_samples`; False if they were not taken."""
        if self._writer is None or self._closed:
            return False
        return self._writer.put_samples(signal, samples._replace(steps=samples.steps + self._first_step), **names)

    def show_event(self, event: Event) -> None:
        """Store an event, from any thread; after :meth:`close` it is left out."""
        if not self._closed:
            writer = self._writer or self._open(self.rank)
            fields = event._replace(step=event.step + self._first_step)._asdict()
            del fields["id"]  # the store numbers them
            writer.event(**fields)

    def write(self, records: Sequence[Record]) -> None:
        """Keep records until their tick is complete; after :meth:`close` they are left out, with a warning."""
        self._take(frames_of(records, self.tags))

    def write_frames(self, moment: Moment, frames: Sequence[TagFrame]) -> None:
        """The same for whole arrays."""
        self._take((moment, frame) for frame in frames)

    def _take(self, dated: Iterable[tuple[Moment, TagFrame]]) -> None:
        if self._closed:
            self._warn("this StoreVisualizer is closed and takes no more numbers")
            return
        try:
            for moment, frame in dated:
                if not frame.layers:
                    continue
                if self._writer is None:
                    self._open(moment.rank)
                if self._tick and (moment.step, moment.epoch) != self._moment[:2]:
                    self.flush()
                self._moment = moment.step, moment.epoch, moment.time
                self._keep(moment.lens or frame.tag, frame)
        except Exception as error:  # whatever a user's lens shows, training goes on
            self._warn(f"numbers cannot be stored: {type(error).__name__}: {error}. They are left out")

    def begin_tick(self, epoch: int, step: int, axis: str) -> None:
        """Also note the unit of ticks: epochs only if all of them are."""
        super().begin_tick(epoch, step, axis)
        if self._unit != "tick":
            self._unit = "epoch" if axis == "epoch" else "tick"

    def flush(self) -> None:
        """Pass the tick to the writer."""
        if self._tick and self._unit != self._noted_unit:
            self._noted_unit = self._unit
            self.note(tick_unit=self._unit)
        ticks, self._tick = self._tick, {}
        step, epoch, moment = self._moment
        for lens, grid in ticks.items():
            try:
                values = grid.release()
                self._tell_of_nonfinite(lens, grid, values, step, epoch)
                names: dict[str, Any] = {"layers": grid.layers, "statistics": grid.statistics}
                self.writer.put(lens, step + self._first_step, values, **names, epoch=epoch, time=moment)
            except Exception as error:
                self._warn(f"{lens} cannot be stored: {type(error).__name__}: {error}. It is left out")
        binned, self._binned = self._binned, []
        for lens, frame, (edges, counts) in binned:
            where = lens, frame.tag, step + self._first_step
            self.writer.put_histograms(*where, counts, layers=frame.layers, edges=edges)

    def _wait(self) -> None:
        """Wait for ticks that an inspector is still showing in another thread."""
        if self.wait_for_ticks is not None:
            self.wait_for_ticks()

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warn(text)

    def _tell_of_nonfinite(self, lens: str, grid: "Grid", values: Floats, step: int, epoch: int) -> None:
        """Store where and when numbers were first non-finite: later ones are only a consequence."""
        if self.report_event is not None and lens != WHOLE_RUN:
            return  # the inspector looks for the first tensor itself, see PyTorchInspector.first_not_finite
        severity = "error" if self.report_event is None else "warning"  # the step of such a loss may be skipped
        room = MOST_TOLD - len(self._nonfinite)
        new = [found for found in grid.nonfinite(values) if found not in self._nonfinite] if room else []
        for statistic, layer in new[:room]:
            self._nonfinite.add((statistic, layer))
            body = {"text": f"{statistic} was NaN or infinite for the first time", "lens": lens}
            event = Event(step, "not finite", severity, epoch, time.time(), layer, statistic, body)
            (self.report_event or self.show_event)(event)

    @property
    def busy_seconds(self) -> float:  # type: ignore[override]
        """CPU seconds used by the background thread."""
        return 0.0 if self._writer is None else self._writer.busy_seconds

    def sync(self) -> None:
        """Wait until readers can see everything."""
        self._wait()
        if self._writer is not None and not self._closed:
            self._writer.flush()

    def close(self, status: str = "finished", error: BaseException | None = None) -> None:
        """Store what is left; calling it again does nothing.

        Args:
            status: how the run ended, ``"finished"`` or ``"crashed"``.
            error: the exception that ended it, to be kept with the run.
        """
        self._wait()
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
        """Make the run, unless another thread just has."""
        with self._opening:
            return self._writer or self._make(rank)

    def _make(self, rank: int) -> Writer:
        """Make the run, with the given name or, if that is taken, with a number added."""
        reason: StoreError | None = None
        options = self._options
        writer: Writer | None = None
        for name in numbered_names(self._name or time_name()):
            if self._numbered and (self._folder / name).exists():
                continue
            try:
                writer = Writer(self._folder / name, rank=rank, **options)
                break
            except StoreError as error:  # another process was faster; training must not end for that
                reason = reason or error
                options = {**options, "resume": False, "resume_step": None}
        assert writer is not None  # there is always a free number
        if reason is not None and not self._numbered:
            warn(f"{reason}. This run is stored as {name!r}")
        asked = self._options["resume_step"]
        if not self._counts_on:
            self._first_step = (writer.resumed_step or 0) if asked is None else asked
        if self._layers:
            writer.introduce_layers(self._layers)
        self._writer = writer  # not before all is ready: another thread may use it at once
        return writer

    def _keep(self, lens: str, frame: TagFrame) -> None:
        layers = frame.layers
        if frame.is_total:
            lens, layers = WHOLE_RUN, (WHOLE_RUN,)
        grid = self._grids.get(lens)
        if grid is None:
            grid = self._grids[lens] = Grid()
        self._tick[lens] = grid
        new = grid.add(layers, frame)
        if new:
            self.writer.introduce_statistics(lens, new)
        if frame.bins is not None:
            self._binned.append((lens, frame, frame.bins))


def store_in(visualizer: Any) -> StoreVisualizer | None:
    """The visualizer that stores the run, if it is one or has one among its parts."""
    parts = getattr(visualizer, "parts", (visualizer,))
    return next((part for part in parts if isinstance(part, StoreVisualizer)), None)


class GridPlan(NamedTuple):
    """Where the numbers of a tag go in a grid, and where their counts go: each curve has one."""

    layers: tuple[str, ...]
    statistics: tuple[Statistic, ...]
    cells: tuple[NDArray[np.intp], NDArray[np.intp]]
    order: NDArray[np.intp]
    """The statistics, those of one curve beside each other; empty if nothing is counted."""
    starts: NDArray[np.intp]
    counts: tuple[NDArray[np.intp], NDArray[np.intp]]

    def fill(self, values: Floats, frame: TagFrame) -> None:
        """Put the numbers of a frame into those of a tick."""
        with np.errstate(over="ignore"):  # what overflows float32 is infinite
            _put(values, self.cells, frame.values.astype(np.float32), frame.measured)
        if len(self.order):
            counts = self._most(frame)
            _put(values, self.counts, np.fmax(values[self.counts], counts), counts >= 0)

    def _most(self, frame: TagFrame) -> Floats:
        """The largest count among the measured lines of each curve; -1 if there is none."""
        # a number that overflows float32 is non-finite, too, so count at least one sample
        broken = np.isnan(frame.values) if frame.may_be_infinite else ~(np.abs(frame.values) <= _LARGEST)
        counts = np.maximum(frame.counts(), broken)
        if frame.measured is not None:
            counts = np.where(frame.measured, counts, -1)
        most: Floats = np.maximum.reduceat(counts[self.order], self.starts, axis=0).astype(np.float32)
        return most


def _put(values: Floats, cells: Any, numbers: Floats, where: NDArray[np.bool_] | None) -> None:
    values[cells] = numbers if where is None else np.where(where, numbers, values[cells])


class Grid:
    """The numbers of a lens at a tick; names keep their places from tick to tick."""

    def __init__(self) -> None:
        self.statistics: tuple[str, ...] = ()
        self.layers: tuple[str, ...] = ()
        self._rows: dict[str, int] = {}
        self._known: dict[str, Statistic] = {}
        self._columns: dict[str, int] = {}
        self._counts: dict[int, str] = {}
        """The rows of counts, and what they belong to: the tag and, if it has several, the curve."""
        self._plans: dict[str, GridPlan] = {}
        self._tick: list[tuple[GridPlan, TagFrame]] = []

    def add(self, layers: tuple[str, ...], frame: TagFrame) -> list[Statistic]:
        """Keep the numbers of a tag; returns the statistics that are new or have changed."""
        plan, new = self._plans.get(frame.tag), []
        if plan is None or (plan.layers, plan.statistics) != (layers, frame.statistics):
            new = self._place(layers, frame)
            plan = self._plans[frame.tag]
        self._tick.append((plan, frame))
        return new

    def _place(self, layers: tuple[str, ...], frame: TagFrame) -> list[Statistic]:
        """Find the places of all names; returns the statistics that are new, or no longer what they were."""
        curves = {} if frame.is_share else {known.curve: known.nonfinite() for known in frame.statistics}
        named = {known.name: known for known in (*frame.statistics, *curves.values())}
        new = [known for name, known in named.items() if self._known.get(name) != known]
        for known in new:
            self._rows.setdefault(known.name, len(self._rows))
            self._known[known.name] = known
        for layer in layers:
            self._columns.setdefault(layer, len(self._columns))
        self._counts.update({self._rows[count.name]: count.plot for count in curves.values()})
        self.statistics, self.layers = tuple(self._rows), tuple(self._columns)
        columns = np.array([self._columns[layer] for layer in layers], np.intp)
        rows = np.array([self._rows[known.name] for known in frame.statistics], np.intp)
        places = np.array([list(curves).index(known.curve) for known in frame.statistics if curves], np.intp)
        order = np.argsort(places, kind="stable")
        starts = np.flatnonzero(np.diff(places[order], prepend=-1))
        counts = np.array([self._rows[count.name] for count in curves.values()], np.intp)
        cells = (rows[:, None], columns[None]), (counts[:, None], columns[None])
        self._plans[frame.tag] = GridPlan(layers, frame.statistics, cells[0], order, starts, cells[1])
        return new

    def release(self) -> Floats:
        """The numbers of the tick, ``[statistic, layer]``; a new tick begins."""
        tick, self._tick = self._tick, []
        values = absent((len(self.statistics), len(self.layers)))
        for plan, frame in tick:
            plan.fill(values, frame)
        return values

    def nonfinite(self, values: Floats) -> list[tuple[str, str]]:
        """Tags, with their curves, and layers that had non-finite samples, in layer order."""
        rows = list(self._counts)
        found = [(rows[row], column) for row, column in np.argwhere(values[rows] > 0).tolist()]
        found.sort(key=lambda place: (place[1], self.statistics[place[0]]))
        return [(self._counts[row], self.layers[column]) for row, column in found]
