"""The life cycle that all preprocessors with accumulators share."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import OptionError
from ..numerical.accumulator import Accumulator, accumulators_in, new_accumulator
from ..numerical.deferred import Deferred, settle
from ..numerical.ledger import Ledger
from ..numerical.notes import Mask, Rows
from ..numerical.sync import exchange, offer
from .abstract import AbstractPreprocessor


class AccumulatingPreprocessor(AbstractPreprocessor):
    """Keeps accumulators by name; a name shows up with its first sample.

    A subclass names its ``statistics`` and calls :meth:`_record` with one sample for each.
    """

    statistics: tuple[str, ...] = ("value",)

    def __init__(self, inplace: bool) -> None:
        self.inplace = inplace
        self._values: OrderedDict[str, Any] = OrderedDict()
        self.ledger: Ledger | None = None
        """Where rows for this preprocessor wait, if gatherers measure for it."""

    @property
    def value(self) -> dict[str, Any]:
        """Accumulators by name: one each, or a tuple in the order of ``statistics``."""
        settle(self.accumulators())
        return self._values

    def series(self, statistic: str) -> OrderedDict[str, Accumulator]:
        """The accumulators of one statistic, by name."""
        if statistic not in self.statistics:
            raise OptionError.unknown("statistic", statistic, self.statistics)
        index = self.statistics.index(statistic)
        return OrderedDict((name, list(accumulators_in(value))[index]) for name, value in self.value.items())

    def accumulators(self) -> Iterable[Deferred]:
        """All accumulators there are."""
        self._collect()
        return (accumulator for value in self._values.values() for accumulator in accumulators_in(value))

    def reset(self) -> None:
        """Start with new accumulators; those handed out keep their numbers."""
        self._collect()
        self._values = OrderedDict()

    def release(self) -> OrderedDict[str, Any]:
        """Give away the accumulators as they are and start with new ones."""
        values = self._values
        self.reset()
        return values

    @contextmanager
    def showing(self, values: OrderedDict[str, Any]) -> Iterator[None]:
        """Have the accumulators of an earlier tick in place of the present ones for a while; later rows wait."""
        present, ledger = self._values, self.ledger
        self._values, self.ledger = values, None
        try:
            yield
        finally:
            self._values, self.ledger = present, ledger

    def take(self, name: str, rows: Rows, is_lead: Mask) -> None:
        """Add the samples in rows of raw sums; a lead row only says what the next one is compared with."""
        rows = rows[~is_lead]
        if len(rows):
            self._extend(name, *self._samples(rows))

    def _samples(self, rows: Rows) -> tuple[Rows, ...]:
        """The samples of each statistic, from rows of raw sums; only for preprocessors that say what they ask for."""
        raise NotImplementedError(f"{type(self).__name__} takes tensors, not rows")

    def _collect(self) -> None:
        if self.ledger is not None:
            self.ledger.deliver()

    def start_sync(self, dst_rank: int = 0) -> None:
        """Offer the accumulators to the other ranks."""
        offer(self)

    def finish_sync(self) -> None:
        """Merge with the other ranks."""
        exchange()

    def merge_ranks(self, values: list[dict[str, Any]]) -> None:
        """Become what the ranks have together; a name may be missing on some of them."""
        self.reset()
        for value in values:
            for name, part in value.items():
                own = self._values.setdefault(name, self._new_value(part))
                for mine, other in zip(accumulators_in(own), accumulators_in(part), strict=True):
                    mine.merge(other)

    def _new_value(self, like: Any = None) -> Any:
        """Empty accumulators for one name."""
        fresh = tuple(new_accumulator(self.inplace) for _ in self.statistics)
        return fresh if len(fresh) > 1 else fresh[0]

    def _record(self, name: str, *samples: Any) -> None:
        """Add one sample to each statistic of ``name``: tensors that were computed for this purpose."""
        for accumulator, sample in zip(self._accumulators_of(name), samples, strict=True):
            accumulator.adopt(sample)

    def _extend(self, name: str, *samples: Rows) -> None:
        """Add many samples to each statistic of ``name``."""
        for accumulator, sample in zip(self._accumulators_of(name), samples, strict=True):
            accumulator.extend_by(sample)

    def _accumulators_of(self, name: str) -> Iterable[Any]:
        if name not in self._values:
            self._values[name] = self._new_value()
        return accumulators_in(self._values[name])
