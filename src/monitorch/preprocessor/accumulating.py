"""The life cycle that all preprocessors with accumulators share."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptionError
from ..numerical.accumulator import Accumulator, accumulators_in, new_accumulator, pack, unpack
from ..numerical.deferred import Deferred, settle
from ..numerical.ledger import Ledger
from ..numerical.notes import Mask, Rows
from ..numerical.running_mean_var import RunningMeanVar
from ..numerical.sample_list import SampleList
from ..numerical.sync import exchange, offer, several_processes
from .abstract import AbstractPreprocessor


class Payload(NamedTuple):
    """What one process sends to the others: accumulators by name, and single samples by name and step."""

    values: dict[str, Any]
    in_step: dict[str, list[float]]


class AccumulatingPreprocessor(AbstractPreprocessor):
    """Keeps accumulators by name; a name appears with its first sample.

    A subclass names its ``statistics`` and calls :meth:`_record` with one sample for each.
    """

    statistics: tuple[str, ...] = ("value",)

    def __init__(self, inplace: bool) -> None:
        self.inplace = inplace
        self._values: OrderedDict[Any, Any] = OrderedDict()  # by name; a subclass may use other keys
        self._in_step: dict[Any, SampleList] = {}  # with several processes: samples that each has once per step
        self.ledger: Ledger | None = None
        """Holds rows for this preprocessor until they are read, if gatherers measure for it."""

    @property
    def value(self) -> dict[str, Any]:
        """Accumulators by name: one each, or a tuple in the order of ``statistics``."""
        return self._settled()

    def series(self, statistic: str) -> OrderedDict[str, Accumulator]:
        """The accumulators of one statistic, by name."""
        if statistic not in self.statistics:
            raise OptionError.unknown("statistic", statistic, self.statistics)
        index = self.statistics.index(statistic)
        return OrderedDict((name, list(accumulators_in(value))[index]) for name, value in self.value.items())

    def accumulators(self) -> Iterable[Deferred]:
        """All accumulators."""
        self._collect()
        kept = (accumulator for value in self._values.values() for accumulator in accumulators_in(value))
        return chain(kept, self._in_step.values())

    def reset(self) -> None:
        """Start with new accumulators; those given away keep their numbers."""
        self._collect()
        self._values, self._in_step = OrderedDict(), {}

    def clear(self) -> None:
        """Forget the model, and the ledger of its rows."""
        self.ledger = None  # first: its rows are not needed any more, and reading them would wait for the GPU
        super().clear()

    def release(self) -> OrderedDict[Any, Any]:
        """Return the accumulators as they are and start with new ones."""
        values = self._values
        self.reset()
        return values

    @contextmanager
    def showing(self, values: OrderedDict[Any, Any]) -> Iterator[None]:
        """Use the accumulators of an earlier tick inside a ``with`` block; later rows wait."""
        present, ledger = self._values, self.ledger
        self._values, self.ledger = values, None
        try:
            yield
        finally:
            self._values, self.ledger = present, ledger

    @np.errstate(all="ignore")  # non-finite numbers are counted, without NumPy's warnings
    def take(self, name: str, rows: Rows, is_lead: Mask) -> None:
        """Add the samples in rows of raw sums; a lead row only gives what the next one is compared with."""
        rows = rows[~is_lead]
        if len(rows):
            self._extend(name, *self._samples(rows))

    def _samples(self, rows: Rows) -> tuple[Rows, ...]:
        """The samples of each statistic, from rows of raw sums; only for preprocessors with an ``ask``."""
        raise NotImplementedError(f"{type(self).__name__} takes tensors, not rows")

    def _settled(self) -> OrderedDict[Any, Any]:
        """All accumulators, after reading what waits on a device."""
        settle(self.accumulators())
        return self._values

    def _collect(self) -> None:
        if self.ledger is not None:
            self.ledger.deliver()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to continue the run later, as plain data and tensors."""
        values = {name: pack(value) for name, value in self._settled().items()}
        return {"values": values, "in_step": {name: pack(samples) for name, samples in self._in_step.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.reset()
        self._values = OrderedDict((name, unpack(value)) for name, value in state["values"].items())
        self._in_step = {name: unpack(samples) for name, samples in state["in_step"].items()}

    def start_sync(self, dst_rank: int = 0) -> None:
        """Offer the accumulators to the other ranks."""
        offer(self)

    def finish_sync(self) -> None:
        """Merge with the other ranks."""
        exchange()

    def payload(self) -> Payload:
        """All accumulators, for the other ranks."""
        complete = {
            name: list(samples)
            for name, samples in self._in_step.items()
            if len(samples) == _number_of_samples(self._values.get(name))
        }
        return Payload(dict(self._settled()), complete)

    def merge_ranks(self, loads: dict[int, Payload]) -> None:
        """Merge the payloads of all ranks into this one; a name may be missing on some of them."""
        self.reset()
        averaged = _means_in_step(loads.values())
        parts = [item for load in loads.values() for item in load.values.items()]
        # moments first: ranks may keep a name in different ways; samples can be added to moments, but not vice versa
        for name, part in sorted(parts, key=lambda item: not isinstance(item[1], RunningMeanVar)):
            own = self._values.setdefault(name, self._new_value(part))
            if name not in averaged:
                for mine, other in zip(accumulators_in(own), accumulators_in(part), strict=True):
                    mine.merge(other)
        for name, samples in averaged.items():
            self._values[name].extend_by(samples)

    def _new_value(self, like: Any = None) -> Any:
        """Empty accumulators for one name."""
        fresh = tuple(new_accumulator(self.inplace) for _ in self.statistics)
        return fresh if len(fresh) > 1 else fresh[0]

    def _record(self, name: str, *samples: Any) -> None:
        """Add one sample to each statistic of ``name``; tensors must not be changed afterwards."""
        for accumulator, sample in zip(self._accumulators_of(name), samples, strict=True):
            accumulator.adopt(sample)

    def _record_in_step(self, name: str, sample: Any) -> None:
        """Keep a sample of which every process has one per step; their mean becomes one sample."""
        if several_processes():
            self._in_step.setdefault(name, SampleList()).append(sample)

    def _extend(self, name: str, *samples: Rows) -> None:
        """Add many samples to each statistic of ``name``."""
        for accumulator, sample in zip(self._accumulators_of(name), samples, strict=True):
            accumulator.extend_by(sample)

    def _accumulators_of(self, name: str) -> Iterable[Any]:
        if name not in self._values:
            self._values[name] = self._new_value()
        return accumulators_in(self._values[name])


def _number_of_samples(accumulator: Any) -> int:
    if isinstance(accumulator, RunningMeanVar):
        return accumulator.count + accumulator.nonfinite
    return 0 if accumulator is None else len(accumulator)


def _means_in_step(loads: Iterable[Payload]) -> dict[str, Rows]:
    """For each name the means over processes, step by step, then the samples that only some processes have."""
    found: dict[str, Rows] = {}
    having = list(loads)
    for name in dict.fromkeys(name for load in having for name in load.in_step):
        of_name = [load for load in having if _number_of_samples(load.values.get(name))]
        series = [np.array(load.in_step[name]) for load in of_name if name in load.in_step]
        if len(series) == len(of_name):  # otherwise some process has not kept all its samples
            common = min(map(len, series))
            rest = [samples[common:] for samples in series]
            found[name] = np.concatenate([np.mean([samples[:common] for samples in series], axis=0), *rest])
    return found
