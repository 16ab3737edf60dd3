"""Counts that go with the numbers of a tick: they stay on their device until somebody reads, and add up exactly."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..engine.rank_numbers import Merged, Payload, Vector
from ..numerical.batches import numbers_on
from ..numerical.precision import HOST
from ..numerical.waiting import HostCopy, Pending
from .accumulating import Kept, SeparateStatistics

Counts: TypeAlias = NDArray[np.int64]
"""How often each of several things occurred."""

Lines: TypeAlias = dict[str, dict[str, float]]
"""Numbers by name, then by line."""


class CountTable(NamedTuple):
    """Counts of one length that are still on a device: a row for each key."""

    rows: dict[Hashable, int]
    counts: Tensor

    def plus(self, keys: Sequence[Hashable], counts: Tensor) -> "CountTable":
        """The same with one more row for each key; a key may come several times."""
        places = [self.rows.setdefault(key, len(self.rows)) for key in keys]
        new = len(self.rows) - len(self.counts)
        known = functional.pad(self.counts, (0, 0, 0, new)) if new else self.counts
        return CountTable(self.rows, known.index_add(0, numbers_on(counts.device, places), counts))


@dataclass
class CountsKept(Kept):
    """Also counts since the last tick, by key."""

    waiting: dict[tuple[int, torch.device], CountTable] = field(default_factory=dict)
    """Counts that are still on a device, by length and device."""
    arrived: dict[Any, Counts] = field(default_factory=dict)

    def add(self, keys: Sequence[Hashable], counts: Tensor) -> None:
        """Add one row of counts for each key."""
        place = counts.shape[1], counts.device
        self.waiting[place] = self.waiting.get(place, CountTable({}, counts[:0])).plus(keys, counts)

    def merge_all(self, keys: Iterable[Hashable], counts: NDArray[Any]) -> None:
        """Add rows of counts that are on the CPU."""
        for key, row in zip(keys, counts, strict=True):
            self.merge(key, row)

    def merge(self, key: Hashable, counts: NDArray[Any]) -> None:
        """Add counts that are on the CPU; the shorter ones are 0 at the end."""
        known = self.arrived.get(key, np.zeros(0, np.int64))
        size = max(len(known), len(counts))
        new = np.pad(np.asarray(counts, np.int64), (0, size - len(counts)))
        self.arrived[key] = np.pad(known, (0, size - len(known))) + new

    def take(self) -> list[Pending]:
        """What to copy to the CPU."""
        waiting, self.waiting = self.waiting, {}
        return [(partial(self.merge_all, table.rows), table.counts) for table in waiting.values()]


class CountingStatistics(SeparateStatistics):
    """Keeps counts beside samples: ``self._count(key, counts)`` adds a tensor of integers to those of its key."""

    _kept_type = CountsKept

    def counts(self) -> dict[Any, Counts]:
        """The counts since the last tick, by key, without keys that have none."""
        self._kept.batches.flush()
        HostCopy(self._counts.take()).deliver()
        return {key: counts for key, counts in self._counts.arrived.items() if counts.any()}

    def _count(self, key: Hashable, counts: Tensor) -> None:
        self._counts.add((key,), counts[None])

    @property
    def _counts(self) -> CountsKept:
        kept = self._kept
        assert isinstance(kept, CountsKept)
        return kept

    def _merge_counts(self, counts: Iterable[tuple[Any, NDArray[Any]]]) -> None:
        for key, own in counts:
            self._counts.merge(key, own)

    def pending(self, kept: Kept) -> list[Pending]:
        """Also counts."""
        assert isinstance(kept, CountsKept)
        return [*super().pending(kept), *kept.take()]

    def payload(self) -> Payload:
        """All accumulators, and the counts, which add up."""
        found = super().payload()
        found.vectors = {key: Vector(counts) for key, counts in self.counts().items()}
        return found

    def merge_ranks(self, merged: Merged) -> None:
        """Take the accumulators and counts of all ranks."""
        super().merge_ranks(merged)
        self._merge_counts((key, counts.round()) for key, counts in merged.vectors.items())

    def state_dict(self) -> dict[str, Any]:
        """Also the counts."""
        counts = {key: torch.tensor(own, device=HOST, dtype=torch.int64) for key, own in self.counts().items()}
        return {**super().state_dict(), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._merge_counts((key, own.numpy()) for key, own in state.get("counts", {}).items())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "counts": self.counts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        counts = state.pop("counts")
        super().__setstate__(state)
        self._merge_counts(counts.items())
