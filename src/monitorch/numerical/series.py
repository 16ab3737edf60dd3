"""Accumulators: the samples of many series, as running moments in columns or as lists of all samples.

What a user reads, a :class:`RunningMeanVar` or a list, is a view: it is made when somebody asks for it, stays the same
object, shows later samples too, and writes through. Reading anything first waits for pending data: samples on a device,
and rows that another thread is folding.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import LifecycleError
from .moments import Moments, Numbers, Places, Row, group_starts
from .precision import HOST, wide_dtype
from .waiting import UNKNOWN, HostCopy, Pending, Waiting, as_sample, copied_sample

Accumulator: TypeAlias = "RunningMeanVar | list[float]"


@dataclass
class RunningValue:
    """A count and a value; kept for code that imports it."""

    count: int = 0
    value: Any = None


class SampleLog(Protocol):
    """Keeps single samples with their steps, beside accumulators."""

    def now(self) -> int:
        """The step that a new sample belongs to."""

    def keep(self, keys: list[Any], column: int, places: Places, steps: Places, samples: Numbers) -> None:
        """Keep these; ``keys`` are those of all places, and ``column`` says which number of a sample it is."""


class Series:
    """The samples of many series by key; a sample has ``width`` numbers, each with an accumulator of its own.

    Args:
        inplace: keep only running moments, unless a key asks otherwise; else keep every sample.
        width: how many numbers a sample has.
        places: keys that have places already; shared with other series of the same owner.

    >>> losses = Series()
    >>> losses.add("train", 1.0)
    >>> losses.add("train", 3.0)
    >>> losses.view("train").mean
    2.0
    """

    def __init__(self, inplace: bool = True, width: int = 1, places: dict[Any, int] | None = None) -> None:
        self.inplace, self.width = inplace, width
        self.places: dict[Any, int] = {} if places is None else places
        self.moments = Moments()
        self.lists: dict[int, SampleList] = {}
        """The accumulators that keep every sample, by number."""
        self.before_reading: Callable[[], None] | None = None
        """Brings the samples that are still on their way, before somebody reads."""
        self.log: SampleLog | None = None
        """Also gets every sample from now on."""
        self._views: dict[int, RunningMeanVar] = {}
        self._values: OrderedDict[Any, Any] = OrderedDict()
        self._waiting = Waiting()
        self._touched: set[int] = set()

    def place(self, key: Hashable, inplace: bool | None = None) -> int:
        """The place of a key, from now on among those with samples; a new one decides whether every sample is kept."""
        place = self.places.setdefault(key, len(self.places))
        self._touch(place, self.inplace if inplace is None else inplace)
        return place

    def _touch(self, place: int, inplace: bool) -> None:
        if place not in self._touched:
            self._touched.add(place)
            if not inplace:
                self.lists.update((number, SampleList(self, number)) for number in self._numbers(place))

    def add(self, key: Hashable, *sample: Any, inplace: bool | None = None, step: int | None = None) -> None:
        """Add one sample; tensors must not be changed afterwards, and stay on their device until somebody reads.

        ``step``: the step that it belongs to, if that is not the present one.
        """
        step = self.now() if step is None else step
        for number, part in zip(self._numbers(self.place(key, inplace)), sample, strict=True):
            self._waiting.add(number, as_sample(part), step)

    def add_all(
        self, keys: Sequence[Hashable], samples: Tensor | Sequence[float], steps: Sequence[int] | None = None
    ) -> None:
        """Add one sample to each key: numbers, the elements of a tensor or, if samples have several numbers, its rows.

        A tensor has no graph, and must not be changed afterwards. ``steps``: that of each, if it is not the present.
        """
        numbers = [number for key in keys for number in self._numbers(self.place(key))]
        each = [self.now()] * len(keys) if steps is None else list(steps)
        all_steps = each if self.width == 1 else [step for step in each for _ in range(self.width)]
        if isinstance(samples, Tensor):
            samples = samples.reshape(-1).to(wide_dtype(samples))
        self._waiting.add_all(numbers, samples, all_steps)

    def add_steps(
        self, key: Hashable, samples: Tensor | Sequence[float], steps: Sequence[int], inplace: bool | None = None
    ) -> None:
        """Add samples of several steps to one key; a sample has one number, and a tensor one dimension."""
        if isinstance(samples, Tensor):
            samples = samples.to(wide_dtype(samples))
        self._waiting.add_all([self.place(key, inplace)] * len(samples), samples, steps)

    def add_column(self, keys: Sequence[Hashable], column: int, samples: Tensor | Sequence[float]) -> None:
        """Add one column of multi-number samples, one number per key; :meth:`add_all` adds all columns."""
        numbers = [self._numbers(self.place(key))[column] for key in keys]
        if isinstance(samples, Tensor):
            samples = samples.to(wide_dtype(samples))
        self._waiting.add_all(numbers, samples, [self.now()] * len(keys))

    def now(self) -> int:
        """The step that a sample belongs to which comes now."""
        return UNKNOWN if self.log is None else self.log.now()

    def append(self, number: int, sample: Any) -> None:
        """Add a number to one accumulator; a tensor is copied, without waiting for the GPU."""
        self._waiting.add(number, copied_sample(sample))

    def fold(self, places: Places, samples: Numbers, column: int = 0, steps: Places | None = None) -> None:
        """Add samples that are on the CPU, oldest first; where their steps are known, they are logged."""
        if not len(samples):
            return
        if self.log is not None and steps is not None:
            known = steps != UNKNOWN
            keys = sorted(self.places, key=self.places.__getitem__)  # renamed ones are last
            self.log.keep(keys, column, places[known], steps[known], samples[known])
        if (places[1:] < places[:-1]).any():
            order = np.argsort(places, kind="stable")
            places, samples = places[order], samples[order]
        numbers = places * self.width + column
        if not self.inplace:
            for place in np.unique(places).tolist():
                self._touch(place, False)
        if self.lists:
            kept = np.isin(numbers, np.fromiter(self.lists, np.int64, len(self.lists)))
            self._append(numbers[kept], samples[kept])
            numbers, samples = numbers[~kept], samples[~kept]
        self.moments.fold(numbers, samples)

    def _append(self, numbers: Places, samples: Numbers) -> None:
        if not len(samples):
            return
        starts, values = group_starts(numbers).tolist(), samples.tolist()
        for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
            list.extend(self.lists[int(numbers[start])], values[start:stop])

    def pending(self) -> list[Pending]:
        """What still waits on a device; :meth:`finish` after it was copied."""
        return self._waiting.take()

    def finish(self) -> None:
        """Fold the samples that have arrived."""
        numbers, samples, steps = self._waiting.arrived()
        if len(samples):
            order = np.argsort(numbers, kind="stable")
            places, columns = np.divmod(numbers[order], self.width)
            samples, steps = samples[order], steps[order]
            for column in range(self.width):
                own = columns == column
                self.fold(places[own], samples[own], column, steps[own])

    def settle(self) -> None:
        """Wait for samples that are still on a device, or in the hands of another thread."""
        if self.before_reading is not None:
            self.before_reading()
        if self._waiting:
            HostCopy(self.pending()).deliver()
            self.finish()

    def used_keys(self) -> list[Any]:
        """All keys with samples, by place; does not wait."""
        seen = (self.moments.count + self.moments.nonfinite).nonzero()[0] // self.width
        used = self._touched.union(seen.tolist())
        return [key for key, place in list(self.places.items()) if place in used]

    def view(self, key: Hashable) -> Any:
        """The accumulator of a key, or a tuple of them."""
        views = tuple(self.accumulator(number) for number in self._numbers(self.places[key]))
        return views if self.width > 1 else views[0]

    def accumulator(self, number: int) -> Any:
        """One accumulator: always the same object."""
        if number in self.lists:
            return self.lists[number]
        if number not in self._views:
            self._views[number] = RunningMeanVar.__new__(RunningMeanVar)
            self._views[number]._look_at(self, number)
        return self._views[number]

    def values(self) -> OrderedDict[Any, Any]:
        """All accumulators by key, those with samples only: always the same dictionary."""
        self.settle()
        used = self.used_keys()
        for key in self._values.keys() - set(used):
            del self._values[key]
        self._values.update((key, self.view(key)) for key in used if key not in self._values)
        return self._values

    def merge(self, values: Mapping[Any, Any]) -> None:
        """Add other accumulators to those of the same keys.

        A key that is new here is kept as it was there. Samples can be added to moments, but not moments to a list.
        """
        for key, value in values.items():
            parts = value if isinstance(value, tuple) else (value,)
            keeps_moments = any(isinstance(part, RunningMeanVar) for part in parts)
            place = self.place(key, keeps_moments)
            for number, part in zip(self._numbers(place), parts, strict=True):
                own = self.accumulator(number)
                if isinstance(part, RunningMeanVar) and not isinstance(own, RunningMeanVar):
                    own = self._forget_samples(number)
                own.merge(part)

    def _forget_samples(self, number: int) -> "RunningMeanVar":
        """Keep only the moments of the samples so far, and of later ones."""
        samples = list(self.lists.pop(number))
        self.moments.fold(np.full(len(samples), number), np.array(samples))
        found: RunningMeanVar = self.accumulator(number)
        return found

    def rename(self, key: Hashable, to: Hashable) -> None:
        """Move the samples of a key to another one, which may have some already."""
        self._values.pop(key, None)
        if to not in self.places:
            self.places[to] = self.places.pop(key)
            return
        self.settle()
        self.merge({to: self.view(key)})
        dropped = self.places.pop(key)
        self.places["", object()] = dropped  # its place is not used again
        self._touched.discard(dropped)
        for number in self._numbers(dropped):
            self.lists.pop(number, None)
            self.moments.set(number, Row())

    def _numbers(self, place: int) -> range:
        return range(place * self.width, (place + 1) * self.width)


class SeriesColumn(Mapping[str, Any]):
    """One statistic of many layers: accumulators by name, and all of them as arrays.

    Args:
        keys: the key of each name.
        column: which number of a sample it is.
    """

    def __init__(self, series: Series, keys: Mapping[str, Hashable], column: int = 0) -> None:
        self.series, self._keys, self._column = series, keys, column

    def __getitem__(self, name: str) -> Any:
        """The accumulator of a name."""
        return self.series.accumulator(self.number(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def number(self, name: str) -> int:
        """The number of an accumulator among the moments."""
        return self.series.places[self._keys[name]] * self.series.width + self._column

    @cached_property
    def numbers(self) -> Places:
        """The numbers of all accumulators, in the order of the names."""
        places = map(self.series.places.__getitem__, self._keys.values())
        return np.fromiter(places, np.int64, len(self._keys)) * self.series.width + self._column

    @cached_property
    def moments(self) -> Moments | None:
        """The moments of all accumulators; None if some keep every sample instead."""
        self.series.settle()
        if self.series.lists:
            return None
        self.series.moments.grow(len(self.series.places) * self.series.width)
        return self.series.moments


def _settled(field: str) -> Any:
    """A property over a column of moments."""

    def read(self: "RunningMeanVar") -> Any:
        return getattr(self._settled(), field)[self._number].item()

    def write(self: "RunningMeanVar", value: Any) -> None:
        getattr(self._settled(), field)[self._number] = value

    return property(read, write)


class RunningMeanVar:
    """Running moments of the finite samples; the others are only counted.

    >>> acc = RunningMeanVar()
    >>> for x in (1.0, 2.0, 3.0, float("nan")):
    ...     acc.update(x)
    >>> acc.mean, acc.min_, acc.max_, acc.count, acc.nonfinite
    (2.0, 1.0, 3.0, 3, 1)

    The variance is that of the population (ddof 0). For huge numbers the variance is infinite, but ``std`` is not.
    """

    count: int = _settled("count")
    mean: float = _settled("mean")
    var: float = _settled("var")
    min_: float = _settled("low")
    max_: float = _settled("high")
    nonfinite: int = _settled("nonfinite")
    last: float = _settled("last")
    """The last sample, finite or not; NaN before the first."""

    def __init__(
        self,
        count: int = 0,
        mean: float = 0.0,
        var: float = 0.0,
        min_: float = math.inf,
        max_: float = -math.inf,
        _handle: Any = None,
        nonfinite: int = 0,
    ) -> None:
        self._look_at(Series(), 0)
        self._handle = _handle
        self._series.place("")
        self.count, self.mean, self.var, self.min_, self.max_, self.nonfinite = count, mean, var, min_, max_, nonfinite

    def _look_at(self, series: Series, number: int) -> None:
        self._series, self._number, self._handle = series, number, None

    def _settled(self) -> Moments:
        self._series.settle()
        self._series.moments.grow(self._number + 1)
        return self._series.moments

    @property
    def std(self) -> float:
        """The standard deviation."""
        return self._settled().row(self._number).std

    def append(self, sample: Any) -> None:
        """Add one sample: a number, or a tensor with one element (copied, without waiting for the GPU)."""
        self._series.append(self._number, sample)

    def update(self, x: Any) -> None:
        """Add one sample; the same as ``append``."""
        self.append(x)

    def settle(self) -> None:
        """Wait for samples that are still on a device."""
        self._series.settle()

    def merge(self, other: "RunningMeanVar | Iterable[float]") -> None:
        """Add the samples of another accumulator."""
        if isinstance(other, RunningMeanVar):
            self._settled().merge(self._number, other.row())
        else:
            for sample in other:
                self.append(sample)

    def state(self) -> tuple[int, float, float, float, float, int]:
        """The six fields."""
        row = self.row()
        return row.finite, row.mean, row.var, row.low, row.high, row.nonfinite

    def row(self) -> Row:
        """All fields as plain numbers."""
        return self._settled().row(self._number)

    @classmethod
    def of_row(cls, *row: Any) -> "RunningMeanVar":
        """The accumulator that had this row."""
        fresh = cls()
        fresh._settled().set(0, Row(*row))
        return fresh

    def start_sync(self, dst_rank: int = 0) -> None:
        """Begin to gather the accumulators of all ranks; every rank gets the result."""
        device = torch.device("cuda" if "nccl" in dist.get_backend() else "cpu")
        own = torch.tensor(self.row(), dtype=torch.float64, device=device)
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        self._handle = dist.all_gather(rows, own, async_op=True), rows

    def finish_sync(self) -> None:
        """Wait for the other ranks and merge the samples of all."""
        if self._handle is None:
            raise LifecycleError("finish_sync() needs a start_sync() before it")
        (work, rows), self._handle = self._handle, None
        work.wait()
        whole = Moments(1)
        for row in rows:
            whole.merge(0, Row(*row.tolist()))
        self._settled().set(self._number, whole.row(0))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        raise TypeError("RunningMeanVar keeps no samples to iterate over; use inplace=False for a list of them")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunningMeanVar) and self.state() == other.state()

    __hash__ = None  # type: ignore[assignment]  # not hashable: it changes with every sample

    def __repr__(self) -> str:
        count, mean, var, low, high, nonfinite = self.state()
        return f"RunningMeanVar({count=}, {mean=}, {var=}, min_={low}, max_={high}, {nonfinite=})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RunningMeanVar.of_row, tuple(self.row())


def start_sync_rmv_or_error(acc: Any, dst_rank: int) -> None:
    """Start the sync of an in-place accumulator if there are several processes."""
    if dist.is_available() and dist.is_initialized():
        acc.start_sync(dst_rank)


def finish_sync_rmv_or_error(acc: Any) -> None:
    """Finish what :func:`start_sync_rmv_or_error` started."""
    if dist.is_available() and dist.is_initialized():
        acc.finish_sync()


class SampleList(list[float]):
    """A ``list`` of floats that also takes tensors; reading it in any way first fetches what is still on a device."""

    def __init__(self, series: Series, number: int) -> None:
        list.__init__(self)
        self._series, self._number = series, number

    def append(self, sample: Any) -> None:
        """Add one sample: a number, or a tensor with one element (copied, without waiting for the GPU)."""
        self._series.append(self._number, sample)

    def merge(self, other: Iterable[float]) -> None:
        """Append the samples of another list."""
        self.extend(other)

    def settle(self) -> None:
        """Wait for samples that are still on a device."""
        self._series.settle()

    def __radd__(self, other: list[float]) -> list[float]:
        return other + list(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(list(self), dtype=dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return sample_list, (list(self),)


def sample_list(samples: Iterable[float] = ()) -> SampleList:
    """A list of samples that belongs to nothing else."""
    alone = Series(inplace=False)
    alone.place("")
    alone.lists[0].extend(map(float, samples))
    return alone.lists[0]


def _after_settling(name: str) -> Any:
    """The method of ``list``, called after fetching what waits."""
    method = getattr(list, name)

    @functools.wraps(method)
    def settled(self: SampleList, *args: Any, **kwargs: Any) -> Any:
        for samples in (self, *args):
            if isinstance(samples, SampleList):
                samples.settle()
        return method(self, *args, **kwargs)

    return settled


for _name in (
    *("__len__", "__iter__", "__reversed__", "__contains__", "__getitem__", "__setitem__", "__delitem__", "__repr__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__iadd__", "__mul__", "__rmul__"),
    *("__imul__", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
):
    setattr(SampleList, _name, _after_settling(_name))


def pack(value: Any) -> Any:
    """The accumulators inside a preprocessor's value as plain data."""
    if isinstance(value, RunningMeanVar):
        return {"row": list(value.row())}
    if isinstance(value, tuple):
        return {"each": [pack(part) for part in value]}
    return {"samples": torch.tensor(list(value), dtype=torch.float64, device=HOST)}


def unpack(data: Any) -> Any:
    """What :func:`pack` was given.

    >>> unpack(pack((RunningMeanVar(1, 2.0), [3.0])))
    (RunningMeanVar(count=1, mean=2.0, var=0.0, min_=inf, max_=-inf, nonfinite=0), [3.0])
    """
    ((kind, content),) = data.items()
    if kind == "row":
        return RunningMeanVar.of_row(*content)
    if kind == "each":
        return tuple(unpack(part) for part in content)
    return sample_list(content.tolist())
