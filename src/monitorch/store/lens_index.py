"""What a reader keeps in memory of one lens: its names, its axis, and the ticks that are not yet sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..statistic import Statistic
from .buffer import StoredTick, padded
from .tiles import absent
from .types import Floats

_BLOCKS = "SELECT id, segment, seq, ticks, steps, epochs, times FROM block WHERE lens = ? AND id >= ? ORDER BY id"
_HOT = "SELECT seq, step, epoch, time, statistics, data FROM hot WHERE lens = ? AND seq >= ? ORDER BY seq"
_NAMES = (
    "SELECT name, scale, low, high, tag, curve, line, role, band, side, error FROM statistic WHERE lens = ? "
    "ORDER BY place"
)
_LAYERS = "SELECT name FROM lens_layer JOIN layer ON layer.id = layer WHERE lens = ? ORDER BY lens_layer.place"


class Axis(NamedTuple):
    """When the numbers were measured."""

    step: NDArray[np.int64]
    epoch: NDArray[np.int32]
    time: NDArray[np.float64]

    def take(self, which: Any) -> Axis:
        """The axis of some ticks; ``which`` is a slice, indices or a mask."""
        return Axis(*(array[which] for array in self))


@dataclass
class SealedBlock:
    """Sealed ticks; readers see the first ``shown``, at position ``start`` of the axis."""

    axis: Axis
    id: int
    segment: int
    seq: int
    ticks: int
    shown: int = 0
    start: int = 0


@dataclass
class LensIndex:
    """Follows the tables of a lens."""

    id: int
    name: str
    statistics: list[Statistic] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    blocks: list[SealedBlock] = field(default_factory=list)
    tail: list[StoredTick] = field(default_factory=list)
    raw_from: int = 0
    fine_from: int = 0
    histograms: tuple[str, ...] = ()
    """The tags that have some."""

    def refresh(self, connection: sqlite3.Connection, end_of: Callable[[int], int | None]) -> None:
        """Read what is new; ``end_of`` returns the last valid step of a segment."""
        statistics = [_statistic(*row) for row in connection.execute(_NAMES, [self.id])]
        layers = [name for (name,) in connection.execute(_LAYERS, [self.id])]
        first = "SELECT raw_from, fine_from FROM lens WHERE id = ?"
        raw_from, fine_from = connection.execute(first, [self.id]).fetchone()
        tags = connection.execute("SELECT DISTINCT tag FROM histogram WHERE lens = ? ORDER BY tag", [self.id])
        histograms = tuple(tag for (tag,) in tags)
        new = [_block(*row) for row in connection.execute(_BLOCKS, (self.id, len(self.blocks)))]
        sealed = new[-1].seq + new[-1].ticks if new else 0
        tail = [tick for tick in self.tail if tick.seq >= sealed]
        known = tail[-1].seq + 1 if tail else 0
        tail += [StoredTick.load(*row) for row in connection.execute(_HOT, (self.id, known))]
        # if a refresh fails in the middle, nothing of it is kept
        self.statistics, self.layers, self.raw_from, self.fine_from = statistics, layers, raw_from, fine_from
        self.histograms = histograms
        self.blocks += new
        self.tail = tail
        vars(self).pop("axis", None)
        self._place_blocks(end_of)

    def _place_blocks(self, end_of: Callable[[int], int | None]) -> None:
        start = 0
        for block in self.blocks:
            end = end_of(block.segment)
            block.start = start
            block.shown = block.ticks if end is None else int(np.searchsorted(block.axis.step, end, "right"))
            start += block.shown
        self.sealed = start

    @cached_property
    def axis(self) -> Axis:
        """All visible ticks."""
        parts = [block.axis.take(slice(block.shown)) for block in self.blocks]
        tail = self.tail
        step = np.array([tick.step for tick in tail], np.int64)
        epoch = np.array([tick.epoch for tick in tail], np.int32)
        return Axis(
            np.concatenate([*(part.step for part in parts), step]),
            np.concatenate([*(part.epoch for part in parts), epoch]),
            np.concatenate([*(part.time for part in parts), np.array([tick.time for tick in tail], np.float64)]),
        )

    def span(self, first: int | None, last: int | None) -> tuple[int, int]:
        """The range of ticks for the steps from ``first`` to ``last``."""
        begin = 0 if first is None else int(np.searchsorted(self.axis.step, first, "left"))
        end = len(self.axis.step) if last is None else int(np.searchsorted(self.axis.step, last, "right"))
        return begin, max(begin, end)

    def tail_values(self, statistic: int, rows: Sequence[int], begin: int, end: int) -> Floats:
        """The numbers of unsealed ticks, ``[row, tick]``."""
        shape = statistic + 1, len(self.layers)
        ticks = self.tail[max(begin - self.sealed, 0) : max(end - self.sealed, 0)]
        if not ticks:
            return absent((len(rows), 0))
        return np.stack([padded(tick.values[: shape[0]], shape)[statistic, rows] for tick in ticks], -1)


def _block(number: int, segment: int, seq: int, ticks: int, steps: bytes, epochs: bytes, times: bytes) -> SealedBlock:
    axis = Axis(np.frombuffer(steps, np.int64), np.frombuffer(epochs, np.int32), np.frombuffer(times))
    if any(len(moments) != ticks for moments in axis):
        raise ValueError(f"block {number} has another number of ticks than of steps, epochs or times")
    return SealedBlock(axis, number, segment, seq, ticks)


def _statistic(name: str, scale: Any, low: float | None, high: float | None, *parts: Any) -> Statistic:
    return Statistic(name, scale, None if low is None or high is None else (low, high), *parts)
