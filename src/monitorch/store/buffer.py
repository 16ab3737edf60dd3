"""The ticks of one lens that are not sealed yet, as the writer holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .tiles import absent, block_ticks
from .types import Floats, Frame


class StoredTick(NamedTuple):
    """One frame with its numbers in the columns of its lens."""

    seq: int
    step: int
    epoch: int
    time: float
    values: Floats

    @classmethod
    def load(cls, seq: int, step: int, epoch: int, time: float, statistics: int, data: bytes) -> StoredTick:
        """Read a row of the table."""
        return cls(seq, step, epoch, time, np.frombuffer(data, np.float32).reshape(statistics, -1))


@dataclass
class LensBuffer:
    """The ticks of one lens; columns are only added, so the numbers of an older tick are a corner of a newer one."""

    id: int
    statistics: dict[str, int] = field(default_factory=dict)
    layers: dict[str, int] = field(default_factory=dict)
    ticks: list[StoredTick] = field(default_factory=list)
    saved: int = 0
    blocks: int = 0
    next_seq: int = 0
    last_step: int | None = None
    _known: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def is_full(self) -> bool:
        """Whether there are enough ticks for a block."""
        return len(self.ticks) >= block_ticks(len(self.statistics) * len(self.layers))

    def knows(self, frame: Frame) -> bool:
        """Whether the frame has exactly these columns, in this order."""
        return self._known == (frame.statistics, frame.layers)

    def add(self, frame: Frame) -> None:
        """Add a frame whose names all have a column."""
        values = frame.values
        if not self.knows(frame):
            if (tuple(self.statistics), tuple(self.layers)) == (frame.statistics, frame.layers):
                self._known = frame.statistics, frame.layers
            else:
                values = absent((len(self.statistics), len(self.layers)))
                rows, columns = _places(self.statistics, frame.statistics), _places(self.layers, frame.layers)
                values[np.ix_(rows, columns)] = frame.values
        self.append(StoredTick(self.next_seq, frame.step, frame.epoch, frame.time, values))

    def append(self, tick: StoredTick) -> None:
        """Add a tick as it is."""
        self.ticks.append(tick)
        self.next_seq, self.last_step = tick.seq + 1, tick.step

    def stack(self) -> Floats:
        """The numbers of all ticks, ``[statistic, layer, tick]``."""
        shape = len(self.statistics), len(self.layers)
        whole = np.stack([padded(tick.values, shape) for tick in self.ticks])
        return np.moveaxis(whole, 0, -1)

    def clear(self) -> None:
        """Forget the ticks: they are sealed now."""
        self.ticks, self.saved, self.blocks = [], 0, self.blocks + 1


def padded(values: Floats, shape: tuple[int, int]) -> Floats:
    """The same numbers, with empty places for columns that came later."""
    if values.shape == shape:
        return values
    larger = absent(shape)
    larger[: values.shape[0], : values.shape[1]] = values
    return larger


def _places(known: dict[str, int], names: Iterable[str]) -> Sequence[int]:
    return [known[name] for name in names]
