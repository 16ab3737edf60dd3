"""One run on disk: written while it trains, readable by other processes at any time. Needs numpy and SQLite, not torch.

Writing::

    writer = Writer(folder, *, rank=0, meta=None, resume=False, resume_step=None, max_size=None, journal=None)
    writer.put(lens, step, values, *, layers, statistics, epoch=0, time=None) -> bool   # values[statistic, layer]
    writer.put_histograms(lens, tag, step, counts, *, layers, edges) -> bool                 # counts[layer, bin]
    writer.put_samples(signal, samples, *, writer, first, names, replaces) -> bool                # for a diagnosis
    writer.event(step, kind, severity="info", *, epoch, time, layer, statistic, body) -> bool
    writer.introduce_layers([Layer(name, kind, parameters) | name])
    writer.introduce_statistics(lens, [Statistic(name, scale, limits)])     # or Statistic.of(tag, line, curve, ...)
    writer.note(**facts); writer.flush(); writer.close(status="finished", error=None); writer.dropped

Reading::

    list_runs(folder) -> [RunInfo(name, path, status, ticks, last_step, age, size, dropped, ranks)]   newest first
    run = open_run(folder_or_file, rank=None)                                                       # a context manager
    run.name, run.status, run.error, run.meta, run.last_step, run.path    error is Failure(type, message, traceback)
    run.layers -> (Layer(name, kind, parameters), ...)                                          in the model's order
    run.lenses -> {name: LensInfo(name, statistics, layers, ticks, first_step, last_step, histograms)}
    run.series(lens, statistic, layer, first=None, last=None) -> LayerSeries(axis, values)
    run.window(lens, statistic, first=None, last=None, resolution=1000, layers=None)
        -> Window(layers, axis, last_step, mean, minimum, maximum, nonfinite, finite)           arrays [layer, column]
    run.newest() -> {lens: Frame};  run.frame_at(step) -> {lens: Frame}            Frame.values[statistic, layer]
    run.histograms(lens, tag, step=None, layers=None) -> HistogramFrame(lens, tag, step, layers, edges, counts) or None
    run.samples(signal=None) -> {signal: [(names, SampleArrays(steps, places, values))]}
    run.events(since=0) -> [Event(step, kind, severity, epoch, time, layer, statistic, body, id)]
    flight_records(run.path.parent) -> [path];  read_flight_record(path) -> FlightRecord     the last steps of a run
    run.data_version() -> int                                                      another number after each commit
    run.close()

``axis`` is ``Axis(step, epoch, time)``, three arrays. ``first`` and ``last`` are steps, both included. Unknown
names raise :class:`~monitorch.errors.OptionError`, which lists the known ones; files that are not runs raise
:class:`~monitorch.errors.StoreError`.

>>> import tempfile
>>> folder = tempfile.mkdtemp() + "/first"
>>> with Writer(folder) as writer:
...     for step in range(3):
...         _ = writer.put("Norm", step, [[step, 2 * step]], layers=["fc1", "fc2"], statistics=["mean"])
>>> with open_run(folder) as run:
...     run.series("Norm", "mean", "fc2").values
array([0., 2., 4.], dtype=float32)
"""

from ..statistic import Statistic
from .failure import Failure
from .flight_record import FlightRecord, flight_records, read_flight_record
from .lens_index import Axis
from .reader import LayerSeries, LensInfo, Run, Window
from .run_list import DEFAULT_FOLDER, RunInfo, list_runs, open_run
from .tiles import is_absent
from .types import WHOLE_RUN, Event, Frame, HistogramFrame, Layer
from .writer import Writer

__all__ = [
    "DEFAULT_FOLDER",
    "WHOLE_RUN",
    "Axis",
    "Event",
    "Failure",
    "FlightRecord",
    "Frame",
    "HistogramFrame",
    "Layer",
    "LayerSeries",
    "LensInfo",
    "Run",
    "RunInfo",
    "Statistic",
    "Window",
    "Writer",
    "flight_records",
    "is_absent",
    "list_runs",
    "open_run",
    "read_flight_record",
]
