"""The life cycle that all preprocessors with accumulators share."""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from ..engine.columns import Column
from ..engine.rank_numbers import Merged, Payload
from ..engine.ranks import exchange, offer
from ..engine.rows import LastRows, Mask, Numbers, Rows, RowTable
from ..errors import OptionError
from ..numerical.batches import MOST_AT_ONCE, Batches
from ..numerical.series import RunningMeanVar, SampleLog, Series, SeriesColumn, pack, unpack
from ..numerical.waiting import HostCopy, Pending, Waiting
from .abstract import AbstractPreprocessor

Samples: TypeAlias = Numbers | np.ma.MaskedArray[Any, Any]
"""One number per row; masked entries are missing."""

Report: TypeAlias = Callable[[int, Exception, Rows], None]
"""Called with the layer that failed, the error and the rows."""


@dataclass
class Kept:
    """What was recorded since the last tick: accumulators, and data not yet turned into samples."""

    series: Series
    batches: Batches
    """Tensors waiting to be handled together with those of other layers."""
    rows: Waiting = field(default_factory=Waiting)
    """Rows from direct calls."""


class _Shown(threading.local):
    """The numbers this thread reads instead of the current ones, by preprocessor."""

    def __init__(self) -> None:
        self.kept: dict[int, Kept] = {}


_shown = _Shown()


class AccumulatingPreprocessor(AbstractPreprocessor):
    """Keeps accumulators by name; a name appears with its first sample.

    A subclass names its ``statistics``. It writes :meth:`derive`, if its numbers come from rows, or else calls
    :meth:`_record` with one sample for each.
    """

    statistics: tuple[str, ...] = ("value",)
    """The names of the numbers of a sample; a subclass replaces them."""
    _kept_type = Kept
    is_estimated = False
    """Whether a gatherer has compared sketches of tensors for it, instead of the tensors."""
    bytes_at_once = MOST_AT_ONCE
    """How many bytes may wait in ``kept.batches`` on a device before they are handled."""
    takes_broken = False
    """Whether :meth:`derive` handles non-finite tensors itself; otherwise their samples become NaN."""

    def __init__(self, inplace: bool) -> None:
        self.inplace = inplace
        self._places: dict[Any, int] = {}
        self._last = LastRows()
        self._log: SampleLog | None = None
        self.before_reading: Callable[[], None] | None = None
        """Fetches rows that the engine still holds for this preprocessor; set by the engine."""
        self._present = self._new_kept()

    @property
    def value(self) -> dict[str, Any]:
        """Accumulators by name: one each, or a tuple in the order of ``statistics``."""
        return self._kept.series.values()

    def series(self, statistic: str) -> SeriesColumn:
        """The accumulators of one statistic, by name."""
        if statistic not in self.statistics:
            raise OptionError.unknown("statistic", statistic, self.statistics)
        series = self._kept.series
        series.settle()
        return self._column(series, statistic)

    def _column(self, series: Series, statistic: str) -> SeriesColumn:
        return SeriesColumn(series, {key: key for key in series.used_keys()}, self.statistics.index(statistic))

    def log_to(self, log: SampleLog | None) -> None:
        """Also send every sample with its step to ``log``."""
        self._log = self._present.series.log = log

    def error(self, statistic: str) -> float | None:
        """The standard error of a statistic, if it is an estimate."""
        return None

    def derive(self, rows: Rows) -> Samples | tuple[Samples, ...]:
        """The samples of each statistic, one for each row of raw sums.

        It is called with rows of all layers and steps at once. NumPy does not warn inside it. A row with elements that
        are not finite gives samples that are not finite, whatever is returned for it, unless the class has
        ``takes_broken = True``.
        """
        raise NotImplementedError(f"{type(self).__name__} takes tensors, not rows")

    def fold(self, rows: Rows, report: Report) -> None:
        """Add the samples in these rows; if that fails, try layer by layer, so that one does not silence the others."""
        if not hasattr(self, "take"):  # ``take`` handles one layer at a time
            try:
                self._fold(rows)
                return
            except Exception:  # found again below, with the layer that it comes from
                pass
        for part in rows.by_layer():
            try:
                self._fold(part)
            except Exception as error:
                report(int(part.places[0]), error, part)

    @np.errstate(all="ignore")
    def _fold(self, rows: Rows) -> None:
        take = getattr(self, "take", None)
        if take is not None:
            for part in rows.by_layer():
                take(part.names[part.places[0]], part.numbers, part.is_baseline)
            return
        samples = self.derive(rows)
        samples = samples if isinstance(samples, tuple) else (samples,)
        width = self._kept.series.width
        if width != self._width:
            raise ValueError(f"name statistics in the class, not after it was made: statistics = {self.statistics}")
        if len(samples) != width:
            raise ValueError(f"derive() has returned samples of {len(samples)} statistics, not {width}")
        is_broken = rows.is_broken & (not self.takes_broken)
        found: list[tuple[Mask, Numbers]] = []
        steps = rows.steps
        for column in samples:
            exists = ~(rows.is_baseline | np.ma.getmaskarray(column))
            numbers = np.asarray(np.ma.getdata(column), np.float64)
            if numbers.shape != (len(rows),):
                raise ValueError(f"derive() returns one number for each of {len(rows)} rows, not {numbers.shape}")
            found.append((exists, np.where(is_broken & np.isfinite(numbers), np.nan, numbers)[exists]))
        for index, (exists, numbers) in enumerate(found):  # only after all were checked, so that no sample counts twice
            self._kept.series.fold(rows.places[exists], numbers, index, steps[exists])

    @property
    def names(self) -> list[str]:
        """The name of the layer at each place."""
        return [key if isinstance(key, str) else str(key[0]) for key in list(self._places)]

    def place(self, key: Hashable) -> int:
        """The place of a name in rows: always the same while a model is attached."""
        return self._places.setdefault(key, len(self._places))

    def reset(self) -> None:
        """Start with new accumulators; those given away keep their numbers."""
        self._kept.series.settle()
        self._present = self._new_kept()

    def clear(self) -> None:
        """Forget the model, and its rows."""
        self.before_reading = None
        self.is_estimated = False
        self._log = None
        self._places, self._last = {}, LastRows()
        self._present = self._new_kept()  # nothing is read: that would wait for the GPU

    def release(self) -> Kept:
        """Return what was recorded as it is, and start with new accumulators."""
        kept, self._present = self._present, self._new_kept()
        return kept

    @contextmanager
    def showing(self, kept: Kept) -> Iterator[None]:
        """Inside a ``with`` block this thread reads and folds the numbers of an earlier tick."""
        _shown.kept[id(self)] = kept
        try:
            yield
        finally:
            del _shown.kept[id(self)]

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the numbers, but no engine."""
        return {**vars(self), "_present": self._kept.series.values(), "before_reading": None, "_log": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        values = state.pop("_present")
        vars(self).update(state)
        self._present = self._new_kept()
        self._merge(values)

    def _replace_kept(self) -> None:
        """Start with new accumulators: those of the tick being shown by this thread, otherwise the current ones."""
        if id(self) in _shown.kept:
            _shown.kept[id(self)] = self._new_kept()
        else:
            self._present = self._new_kept()

    @property
    def _kept(self) -> Kept:
        return _shown.kept.get(id(self), self._present)

    def _new_kept(self) -> Kept:
        def handle(dated: tuple[tuple[Any, int], ...], columns: list[Tensor], *common: Any) -> None:
            keys, steps = zip(*dated, strict=True)
            self._handle(kept, keys, steps, columns, *common)

        batches = Batches(handle, self.bytes_at_once)
        kept = self._kept_type(Series(self.inplace, self._width, self._places_of_kept()), batches)
        kept.series.before_reading = lambda: self._bring(kept)
        kept.series.log = self._log
        return kept

    def _places_of_kept(self) -> dict[Any, int]:
        """The places of names in new accumulators."""
        return self._places

    def _name_statistics(self, *names: str) -> None:
        """Name the statistics, unless the class does. Call it before the accumulators are made."""
        if type(self).statistics == AccumulatingPreprocessor.statistics:
            self.statistics = names

    @property
    def _width(self) -> int:
        """How many numbers a sample has."""
        return len(self.statistics)

    def _bring(self, kept: Kept) -> None:
        """Fold everything that is still pending into these accumulators."""
        if self.before_reading is not None:
            self.before_reading()
        kept.batches.flush()
        if kept.rows:
            HostCopy(kept.rows.take()).deliver()
            with self.showing(kept):
                self._fold_own_rows()

    def pending(self, kept: Kept) -> list[Pending]:
        """What still waits on a device; :meth:`finish` after it was copied."""
        kept.batches.flush()
        return [*kept.rows.take(), *kept.series.pending()]

    def finish(self) -> None:
        """Fold what has arrived."""
        self._fold_own_rows()
        self._kept.series.finish()

    def _fold_own_rows(self) -> None:
        places, numbers, _ = self._kept.rows.arrived()
        if len(places):
            table = RowTable(places, numbers, self._last)
            request = getattr(self, "request", None)
            lacks = frozenset[Column]() if request is None else request().lacks
            self._fold(Rows(table, np.arange(len(table)), table.owners, self.names, lacks=lacks))

    def _record(self, name: str, *samples: Any) -> None:
        """Add one sample to each statistic of ``name``; tensors must not be changed afterwards."""
        self._kept.series.add(name, *samples)

    def _gather(self, key: Hashable, *tensors: Tensor, common: tuple[Hashable, ...] = ()) -> None:
        """Keep tensors until :meth:`_handle` turns those of all keys into samples; they must not be changed.

        ``common``: further values that must be equal for tensors handled together.
        """
        self._kept.batches.add((key, self._kept.series.now()), *tensors, common=common)

    def _handle(
        self, kept: Any, keys: tuple[Any, ...], steps: tuple[int, ...], columns: list[Tensor], *common: Any
    ) -> None:
        """Make samples of what was gathered for these keys and steps: stacked tensors and what they have in common."""
        raise NotImplementedError(f"{type(self).__name__} handles tensors one by one")

    def _take_row(self, name: Hashable, row: Tensor) -> None:
        """Keep the row of one tensor until somebody reads."""
        self._kept.rows.add(self._kept.series.place(name), row)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to continue the run later, as plain data and tensors."""
        return {"values": {key: pack(view) for key, view in self._kept.series.values().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.reset()
        self._merge({key: unpack(value) for key, value in state["values"].items()})

    def start_sync(self, dst_rank: int = 0) -> None:
        """Offer the accumulators to the other ranks."""
        offer(self)

    def finish_sync(self) -> None:
        """Merge with the other ranks."""
        exchange()

    def payload(self) -> Payload:
        """All accumulators, for the other ranks."""
        found = Payload()
        for key, value in self._kept.series.values().items():
            for column, part in enumerate(value if isinstance(value, tuple) else (value,)):
                if isinstance(part, RunningMeanVar):
                    found.moments[key, column] = part.row()
                else:
                    found.lists[key, column] = list(part)
        return found

    def merge_ranks(self, merged: Merged) -> None:
        """Take the accumulators of all ranks; a name may be missing on some of them."""
        self._kept.series.settle()
        self._replace_kept()
        self._merge(self._by_key({place: RunningMeanVar.of_row(*row) for place, row in merged.moments.items()}))
        for lists in merged.lists:
            self._merge(self._by_key(lists))

    def _by_key(self, accumulators: Mapping[Any, Any]) -> dict[Any, Any]:
        """Accumulators by key, as :meth:`_merge` takes them, from accumulators by key and column."""
        found: dict[Any, tuple[Any, ...]] = {}
        for (key, _), part in accumulators.items():
            found[key] = (*found.get(key, ()), part)
        return {key: parts if self._width > 1 else parts[0] for key, parts in found.items()}

    def _merge(self, values: dict[Any, Any]) -> None:
        """Add other accumulators to those of the same keys."""
        self._kept.series.merge(values)


class SeparateStatistics(AccumulatingPreprocessor):
    """Keeps each statistic of a name in a series of its own, where not every sample has all of them.

    The key of a series is the name with the statistic: ``self._kept.series.add((name, statistic), sample)``.
    """

    @property
    def _width(self) -> int:
        return 1

    @property
    def value(self) -> dict[str, Any]:
        """Accumulators by name, then by statistic."""
        found: dict[str, Any] = {}
        for (name, statistic), accumulator in self._kept.series.values().items():
            found.setdefault(name, {})[statistic] = accumulator
        return found

    def _column(self, series: Series, statistic: str) -> SeriesColumn:
        return SeriesColumn(series, {key[0]: key for key in series.used_keys() if key[1] == statistic})
