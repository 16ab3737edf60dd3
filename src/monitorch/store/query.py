"""Reads tiles from the tables into arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .lens_index import Axis, LensIndex, SealedBlock
from .tiles import TILE_LAYERS, WIDTHS, Columns, absent, join, merge, summarise
from .types import Floats

_TILES = (
    "SELECT block, data FROM tile WHERE lens = ? AND level = ? AND statistic = ? AND layers = ? "
    "AND block BETWEEN ? AND ?"
)


class Span(NamedTuple):
    """Columns of a window: which ticks each covers, and its numbers ``[layer, column]``."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    columns: Columns


class LayerRows(NamedTuple):
    """Layers whose numbers are in the same tiles: their rows in a result and in a tile."""

    group: int
    target: Any
    tile: Any

    def copy(self, target: NDArray[Any], tile: NDArray[Any]) -> None:
        """Move ``[..., layer, tick]`` from a tile to a result; layers that came later stay as they are."""
        if isinstance(self.tile, slice):
            known = tile[..., self.tile, :]
            start = self.target.start
            target[..., start : start + known.shape[-2], :] = known
        else:
            known = self.tile < tile.shape[-2]
            target[..., self.target[known], :] = tile[..., self.tile[known], :]


class Query:
    """One statistic of some layers of a lens.

    Args:
        connection: the tables, at one moment.
        lens: the lens at that moment.
        statistic: its place.
        rows: the places of the layers.
    """

    def __init__(self, connection: sqlite3.Connection, lens: LensIndex, statistic: int, rows: Sequence[int]) -> None:
        self._connection, self._lens, self._statistic, self._places = connection, lens, statistic, rows
        places = np.array(rows, np.int64)
        self._rows = [_rows_of(places, group) for group in np.unique(places // TILE_LAYERS).tolist()]

    def raw(self, begin: int, end: int) -> Floats:
        """The numbers of each tick, ``[row, tick]``; of sealed ticks, those that were not pruned."""
        sealed = max(min(end, self._lens.sealed), begin)
        blocks = {block.id: block for block in self._blocks(begin, sealed) if block.id >= self._lens.raw_from}
        values = absent((len(self._places), end - begin))  # a block may lack the statistic, a layer, or all its ticks
        for rows, number, data in self._tiles(0, blocks):
            block = blocks[number]
            low, high = _cut(block, begin, sealed)
            start = block.start + low - begin
            tile = np.frombuffer(data, np.float32).reshape(-1, block.ticks)
            rows.copy(values[:, start : start + high - low], tile[:, low:high])
        if end > sealed:
            values[:, sealed - begin :] = self._lens.tail_values(self._statistic, self._places, begin, end)
        return values

    def window(self, begin: int, end: int, resolution: int) -> Span:
        """At most ``resolution`` columns for the ticks from ``begin`` to ``end``."""
        ticks = max(end - begin, 1)
        level = max(number for number, width in enumerate(WIDTHS) if width == 1 or ticks >= width * resolution)
        if level == 0 and all(block.id >= self._lens.raw_from for block in self._blocks(begin, end)):
            return _span(self.raw(begin, end), begin, -(-ticks // resolution))
        return _pooled(_joined([*self._sealed(level, begin, end), self._unsealed(level, begin, end)]), resolution)

    def _sealed(self, level: int, begin: int, end: int) -> Iterator[Span]:
        """Read neighbouring blocks that have this level together, others one by one."""
        waiting: list[SealedBlock] = []
        for block in self._blocks(begin, end):
            coarse = max(level, (block.id < self._lens.raw_from) + (block.id < self._lens.fine_from))
            whole = _length(block, begin, end) == block.ticks
            if coarse == level and level and whole:
                waiting.append(block)
                continue
            yield from self._whole(level, waiting)
            waiting = []
            if block.id >= self._lens.raw_from:
                low, high = _cut(block, begin, end)
                yield _span(self.raw(block.start + low, block.start + high), block.start + low, WIDTHS[level])
            else:
                for span in self._whole(max(coarse, 1), [block]):
                    yield _chosen(span, (span.end > begin) & (span.begin < end))
        yield from self._whole(level, waiting)

    def _whole(self, level: int, blocks: Sequence[SealedBlock]) -> Iterator[Span]:
        """Whole blocks as columns of a level; partly hidden columns are left out."""
        if not blocks:
            return
        width, by_id = WIDTHS[level], {block.id: block for block in blocks}
        counts = np.array([-(-block.ticks // width) for block in blocks])
        places = dict(zip(by_id, (np.cumsum(counts) - counts).tolist(), strict=True))
        first = np.concatenate([np.arange(count) * width for count in counts])
        starts, ticks, shown = (
            np.repeat([getattr(block, name) for block in blocks], counts) for name in ("start", "ticks", "shown")
        )
        last = np.minimum(first + width, ticks)
        shape = len(self._places), len(first)
        columns = Columns(absent((3, *shape)), np.zeros((2, *shape), np.uint16))
        for rows, number, data in self._tiles(level, by_id):
            count = -(-by_id[number].ticks // width)
            place = slice(places[number], places[number] + count)
            for target, tile in zip(columns.take(place), Columns.from_bytes(data, count), strict=True):
                rows.copy(target, tile)
        yield _chosen(Span(starts + first, starts + last, columns), last <= shown)

    def _unsealed(self, level: int, begin: int, end: int) -> Span:
        values = self._lens.tail_values(self._statistic, self._places, begin, end)
        return _span(values, max(begin, self._lens.sealed), WIDTHS[level])

    def _blocks(self, begin: int, end: int) -> list[SealedBlock]:
        return [block for block in self._lens.blocks if _length(block, begin, end) > 0]

    def _tiles(self, level: int, blocks: Collection[int]) -> Iterator[tuple[LayerRows, int, bytes]]:
        """The tiles of blocks: ``(rows, block, blob)``."""
        for rows in self._rows:
            key = self._lens.id, level, self._statistic, rows.group, min(blocks, default=0), max(blocks, default=-1)
            for number, data in self._connection.execute(_TILES, key):
                if number in blocks:  # blocks in between may be hidden
                    yield rows, number, data


def _rows_of(places: NDArray[np.int64], group: int) -> LayerRows:
    """Slices where possible, which are faster."""
    target = np.flatnonzero(places // TILE_LAYERS == group)
    tile = places[target] - group * TILE_LAYERS
    if (np.diff(target) == 1).all() and (np.diff(tile) == 1).all():
        return LayerRows(group, slice(target[0], target[-1] + 1), slice(tile[0], tile[-1] + 1))
    return LayerRows(group, target, tile)


def _cut(block: SealedBlock, begin: int, end: int) -> tuple[int, int]:
    """Which ticks of a block are between two positions of the axis."""
    return max(begin - block.start, 0), min(end - block.start, block.shown)


def _length(block: SealedBlock, begin: int, end: int) -> int:
    low, high = _cut(block, begin, end)
    return max(high - low, 0)


def _span(values: Floats, begin: int, width: int) -> Span:
    """Ticks ``[row, tick]`` as columns of this many ticks."""
    starts, end = np.arange(begin, begin + values.shape[1], width), begin + values.shape[1]
    columns = Columns.single(values) if width == 1 else summarise(values, width)
    return Span(starts, np.minimum(starts + width, end), columns)


def _joined(spans: Sequence[Span]) -> Span:
    begins, ends, columns = zip(*spans, strict=True)
    return Span(np.concatenate(begins), np.concatenate(ends), columns[0] if len(columns) == 1 else join(columns))


def _chosen(span: Span, which: NDArray[np.bool_]) -> Span:
    return span if which.all() else Span(span.begin[which], span.end[which], span.columns.take(which))


def _pooled(span: Span, resolution: int) -> Span:
    group = max(-(-len(span.begin) // resolution), 1)
    last = np.minimum(np.arange(group - 1, len(span.end) + group - 1, group), len(span.end) - 1)
    return Span(span.begin[::group], span.end[last], merge(span.columns, group))


def column_axis(axis: Axis, span: Span) -> tuple[Axis, NDArray[np.int64]]:
    """The start of each column, and its last step."""
    return axis.take(span.begin), axis.step[span.end - 1]
