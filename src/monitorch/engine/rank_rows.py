"""Merges the rows of several processes into rows of whole tensors.

Norms, rates and cosines of a whole tensor cannot be computed from those of its parts, only from the underlying sums.
Processes first agree on where rows are: once on names for what is measured, and per tick on its passes, by a digest.
Then the rows are reduced, each column by its declared rule. The traffic does not depend on the number of processes.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..numerical.moments import group_ends, group_starts
from .buffers import METER, PART, STEP, TAG, Infos
from .columns import CHANNELS, DEAD, DOT, FOLLOWS, SIZE, UNIT, WIDTH, Column, Merge
from .distributed_tensors import OWN
from .meter import OUTPUT, OUTPUT_GRADIENT, Meter
from .reductions import How, Program, Reduction, Seat, agree_on, digest, replay, union
from .rows import Mask, Numbers, Places

MOMENT, BEFORE = STEP, PART + 1
"""Columns that identify a row: beside its meter, kind and part, the pass it comes from and the one it is compared with.

A moment is a step and the number of the pass in it.
"""

PASSES = 1 << 20
"""Larger than the number of passes in a step."""

TAGS = 1 << 6
"""Larger than any tag."""

NO_STEP = -(1 << 40)
NOT_HERE = OWN - 1
"""Stands for a tensor that this process has never seen."""

Flags: TypeAlias = NDArray[np.bool_]
Name: TypeAlias = tuple[Any, int]
"""The key of a meter, and a tag."""


class RowPayload(NamedTuple):
    """The rows of one process.

    Names of meters, where each row belongs, the rows, the unit of the row before each, and for some of them which
    channels are active.
    """

    keys: list[Any]
    places: Places
    rows: Numbers
    units: Numbers
    alive: dict[int, Flags]


class Last(NamedTuple):
    """The last row of a meter."""

    moment: int
    unit: float
    processes: int = 0


NOTHING = Last(-1, 1.0)

Receive = Callable[[Infos, Numbers], None]
"""Takes whole rows, and where they come from."""


@dataclass
class Names:
    """What all processes have agreed on: what is measured, and which parts of it there are."""

    numbers: dict[Name, int] = field(default_factory=dict)
    digest: int = 0
    own_parts: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    """The part of each that this process had when parts were last counted; see ``_count_parts``."""
    parts: Numbers = field(default_factory=lambda: np.zeros(0))
    """How many parts each has; 0 where every process has its own."""
    copies: Numbers = field(default_factory=lambda: np.zeros(0))
    """In how many processes each part is."""

    def plus(self, more: list[Name]) -> "Names":
        """The same with some more at the end."""
        if not more:
            return self
        numbers = dict(self.numbers)
        for name in more:
            numbers.setdefault(name, len(numbers))
        return Names(numbers, digest(self.digest, more), self.own_parts, self.parts, self.copies)

    def __len__(self) -> int:
        return len(self.numbers)


class MergedRows(NamedTuple):
    """Whole rows, oldest first for each meter."""

    keys: list[Any]
    places: Places
    """Meter, as a place in ``keys``, moment and tag."""
    rows: Numbers
    processes: Places
    """How many processes are behind each."""
    names: Names


class RankMerge:
    """Keeps the rows of this process until a tick, and hands out the merged rows of all processes.

    Args:
        receive: takes the merged rows.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._meters: dict[Any, Meter] = {}
        self._keys: dict[int, Any] = {}
        self._named: Counter[Any] = Counter()
        self._sent: dict[Any, Last] = {}
        self._received: dict[Any, Last] = {}
        self._order: dict[Any, int] = {}
        """The order in which the meters of the last payload were first used."""
        self._names = Names()
        self._forget()

    def _forget(self) -> None:
        self._infos: list[Places] = []
        self._rows: list[Numbers] = []
        self._alive: dict[int, Flags] = {}

    def register(self, meter: Meter, *what: Any) -> None:
        """Give a meter a name that is the same in every process: what is measured, and the number among those."""
        if not meter.key:
            meter.key = (*what, self._named[what])
            self._named[what] += 1
            self._meters[meter.key], self._keys[meter.number] = meter, meter.key

    def state_dict(self) -> dict[str, Any]:
        """What the next rows are compared with, to continue the run later."""
        kept = ("_sent", "_received")
        return {name: {key: tuple(value) for key, value in getattr(self, name).items()} for name in kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._sent, self._received = ({key: Last(*v) for key, v in state[n].items()} for n in ("_sent", "_received"))

    @property
    def waits(self) -> bool:
        """Whether there are rows to exchange."""
        return bool(self._rows)

    def keep(self, infos: Infos, rows: Numbers, alive: dict[int, Tensor]) -> None:
        """Keep rows until they are exchanged."""
        first = sum(map(len, self._rows))
        self._alive |= _on_host({first + row: flags for row, flags in alive.items()})
        self._infos.append(infos[:, : PART + 1])
        self._rows.append(rows)

    def payload(self) -> RowPayload:
        """The rows for the other processes; clears the kept ones."""
        rows = np.concatenate([np.zeros((0, WIDTH)), *self._rows])
        places = np.concatenate([np.zeros((0, PART + 1), np.int64), *self._infos])
        numbers, first, places[:, METER] = np.unique(places[:, METER], return_index=True, return_inverse=True)
        keys = [self._keys[number] for number in numbers.tolist()]
        self._order = dict(zip(keys, first.tolist(), strict=True))
        places[:, MOMENT] = places[:, MOMENT] * PASSES + _number_in_group(places[:, [METER, MOMENT, TAG]])
        before, units = self._rows_before(keys, places, rows[:, UNIT])
        payload = RowPayload(keys, np.column_stack([places, before]), rows, units, self._alive)
        self._forget()
        return payload

    def _rows_before(self, keys: list[Any], places: Places, units: Numbers) -> tuple[Places, Numbers]:
        """Moment and unit of the row before each of the same meter, which may have been sent earlier."""
        moments, previous = np.zeros(len(places), np.int64), np.zeros(len(places))
        order = np.argsort(places[:, METER], kind="stable")
        moments[order[1:]], previous[order[1:]] = places[order[:-1], MOMENT], units[order[:-1]]
        begins = group_starts(places[order, METER])
        first, last = order[begins], order[group_ends(begins, len(order)) - 1]
        before = np.array([self._sent.get(key, NOTHING)[:2] for key in keys]).reshape(-1, 2)
        moments[first], previous[first] = before.T
        ends = zip(places[last, MOMENT].tolist(), units[last].tolist(), strict=True)
        self._sent |= zip(keys, itertools.starmap(Last, ends), strict=True)
        return moments, previous

    def merge_ranks(self, own: RowPayload, seat: Seat, *, anew: bool = False) -> Program[MergedRows]:
        """Merge rows with those of all processes; changes nothing here.

        Args:
            own: the rows of one process.
            seat: the place of that process.
            anew: whether only some processes take part, so that earlier agreements do not apply.
        """
        return _merged(own, seat, Names() if anew else self._names, self._received)

    def hand_out_alone(self) -> None:
        """Pass the rows of this process on as they are: the others have left."""
        (merged,) = replay([self.merge_ranks(self.payload(), Seat(), anew=True)])
        self.hand_out(merged, anew=True)

    def hand_out(self, merged: MergedRows, *, anew: bool = False) -> None:
        """Pass whole rows on, in the order in which this process has measured them."""
        keys, found, rows, processes, names = merged
        self._names = self._names if anew else names
        if not keys:
            return
        ends = group_ends(group_starts(found[:, METER]), len(found)) - 1
        last = zip(found[ends, MOMENT].tolist(), rows[ends, UNIT].tolist(), processes[ends].tolist(), strict=True)
        self._received |= zip([keys[meter] for meter in found[ends, METER]], itertools.starmap(Last, last), strict=True)
        here = np.array([self._meters[key].number if key in self._meters else -1 for key in keys], np.int64)
        infos = np.zeros((len(found), PART + 1), np.int64)
        infos[:, METER], infos[:, MOMENT], infos[:, TAG] = here[found[:, 0]], found[:, MOMENT], found[:, TAG]
        first = np.array([self._order.get(key, len(found)) for key in keys], np.int64)[found[:, METER]]
        measured = np.lexsort((first, infos[:, MOMENT]))
        measured = measured[infos[measured, METER] >= 0]
        infos[:, STEP] //= PASSES
        self._receive(infos[measured], rows[measured])


def _on_host(alive: dict[int, Tensor]) -> dict[int, Flags]:
    """Flags by row number, copied to the CPU together."""
    if not alive:
        return {}
    whole = torch.cat(list(alive.values())).cpu()
    parts = torch.split(whole, [len(flags) for flags in alive.values()])
    return {row: flags.numpy() for row, flags in zip(alive, parts, strict=True)}


def _number_in_group(columns: Places) -> Places:
    """For each row, how many equal rows are above it."""
    order = np.lexsort(columns.T)
    starts = group_starts(columns[order])
    found = np.empty(len(columns), np.int64)
    found[order] = np.arange(len(columns)) - np.repeat(starts, group_ends(starts, len(columns)) - starts)
    return found


class _OwnRows:
    """The rows of one process, by name."""

    def __init__(self, payload: RowPayload) -> None:
        codes = payload.places[:, METER] * TAGS + payload.places[:, TAG]
        found, entries = np.unique(codes, return_inverse=True)
        self.names: list[Name] = [(payload.keys[code // TAGS], code % TAGS) for code in found.tolist()]
        self.parts = np.full(len(found), OWN, np.int64)
        self.parts[entries] = payload.places[:, PART]
        # if a tensor was re-sharded within a tick, only rows of the latest part match the other processes
        stays = np.flatnonzero(payload.places[:, PART] == self.parts[entries])
        self.entries, self.places = entries[stays], payload.places[stays]
        self.rows, self.units = payload.rows[stays], payload.units[stays]
        place = {int(row): index for index, row in enumerate(stays)} if payload.alive else {}
        self.alive = {place[row]: flags for row, flags in payload.alive.items() if row in place}
        self.has_elements: Mask = self.rows[:, SIZE] > 0
        """Some tensors have no part in this process."""

    @property
    def moments(self) -> Places:
        return self.places[:, MOMENT]

    def layout(self, numbers: Places) -> tuple[bytes, bytes]:
        """A description of the rows that does not depend on their order; ``numbers`` are the numbers of the names."""
        number = numbers[self.entries]
        order = np.lexsort((self.moments, number))
        return number[order].tobytes(), self.moments[order].tobytes()

    def numbers_in(self, names: Names, new: list[Name]) -> Places:
        """The number of each name, also of those that are still to be added."""
        after = {name: len(names) + index for index, name in enumerate(new)}
        return np.array([names.numbers.get(name, after.get(name, -1)) for name in self.names], np.int64)

    def parts_by(self, numbers: Places, names: Names) -> Places:
        """The part of each name that is here, or was when it was last seen."""
        found = np.full(len(names), NOT_HERE, np.int64)
        found[: len(names.own_parts)] = names.own_parts
        found[numbers] = self.parts
        return found


def _merged(payload: RowPayload, seat: Seat, names: Names, received: dict[Any, Last]) -> Program[MergedRows]:
    own = _OwnRows(payload)
    new = [name for name in own.names if name not in names.numbers]
    numbers = own.numbers_in(names, new)
    moved = bool(new) or bool((names.own_parts[numbers] != own.parts).any())
    steps = own.moments // PASSES
    first, last = (-int(steps.min()), int(steps.max())) if len(steps) else (NO_STEP, NO_STEP)
    digests = [names.digest, digest(new), digest(*own.layout(numbers))]
    (same_names, same_new, same_layout), (first, last, moved_somewhere, has_alive) = yield from agree_on(
        digests, first, last, moved, bool(own.alive)
    )
    if last == NO_STEP:
        return MergedRows([], np.zeros((0, 3), np.int64), np.zeros((0, WIDTH)), np.zeros(0, np.int64), names)
    if not same_names:  # as when a process has begun later
        names, moved_somewhere = Names().plus((yield from union(own.names, seat))), True
    else:
        names = names.plus(new if same_new else (yield from union(new, seat)))
    numbers = own.numbers_in(names, [])
    entries = numbers[own.entries]
    if same_names and same_new and same_layout:
        layout = _Layout(names, entries, own.moments, received)
    else:
        layout = _Layout(names, *(yield from _passes(names, entries, own.moments, -first, last)), received)
    if moved_somewhere:
        names = yield from _count_parts(names, own.parts_by(numbers, names), seat)
    table = _Table(layout, own, entries, names)
    wanted = [Reduction(table.extremes(), How.LARGEST)]
    if has_alive:
        wanted.append(Reduction(table.own_widths(), How.LARGEST))
    extremes, *widths = yield wanted
    wanted = [Reduction(table.sums(extremes), How.SUM)]
    if has_alive:
        wanted.append(Reduction(table.alive(widths[0]), How.LARGEST))
    sums, *alive = yield wanted
    rows, processes = table.whole(extremes, sums)
    if has_alive:
        table.count_dead(rows, widths[0], alive[0])
    exists = rows[:, SIZE] > 0
    return MergedRows(layout.keys, layout.places[exists], rows[exists], processes[exists], names)


def _passes(names: Names, entries: Places, moments: Places, first: int, last: int) -> Program[tuple[Places, Places]]:
    """The passes that any process has seen: their names and moments."""
    seen = np.zeros(last - first + 1, np.uint8)
    seen[moments // PASSES - first] = 1
    (seen,) = yield [Reduction(seen, How.LARGEST)]
    steps = np.flatnonzero(seen) + first
    passes = np.zeros((len(names), len(steps)), np.int64)
    np.maximum.at(passes, (entries, np.searchsorted(steps, moments // PASSES)), moments % PASSES + 1)
    (passes,) = yield [Reduction(passes, How.LARGEST)]
    entry, step = np.nonzero(passes)
    count = passes[entry, step]
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(entry, count), np.repeat(steps[step], count) * PASSES + number


def _count_parts(names: Names, own: Places, seat: Seat) -> Program[Names]:
    """Find out how many parts each tensor has, and how many processes hold each part."""
    is_here = own != NOT_HERE
    low = np.where(is_here, -own, NO_STEP)
    highest, lowest, holders = yield [
        Reduction(np.where(is_here, own, NO_STEP), How.LARGEST),
        Reduction(low, How.LARGEST),
        Reduction(is_here.astype(np.int64), How.SUM),
    ]
    parts = np.where(highest == OWN, 0.0, 1.0)
    differ = np.flatnonzero((highest != OWN) & (highest != -lowest))
    found = np.zeros((len(differ), seat.processes), np.uint8)
    here = np.flatnonzero(is_here[differ])
    of_this = own[differ[here]]
    found[here, np.where(of_this == OWN, seat.rank, of_this)] = 1
    if len(differ):
        (found,) = yield [Reduction(found, How.LARGEST)]
        parts[differ] = found.sum(axis=1)
    return Names(names.numbers, names.digest, own, parts, np.where(parts > 0, holders / np.maximum(parts, 1), 1.0))


class _Layout:
    """Where the rows of a tick are: sorted by meter and moment."""

    def __init__(self, names: Names, entries: Places, moments: Places, received: dict[Any, Last]) -> None:
        used = sorted(set(entries.tolist()))
        by_number = list(names.numbers)
        place: dict[Any, int] = {}
        meter, tag = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        for number in used:
            key, tag[number] = by_number[number]
            meter[number] = place.setdefault(key, len(place))
        self.keys = list(place)
        order = np.lexsort((tag[entries], moments, meter[entries]))
        self.entries, self.moments = entries[order], moments[order]
        self.places = np.stack([meter[self.entries], self.moments, tag[self.entries]], axis=1)
        self.starts = group_starts(self.places[:, METER])
        """Where the rows of each meter begin."""
        self._last = [received.get(key, NOTHING) for key in self.keys]
        self.moments_before = self.before(self.moments, 0).astype(np.int64)
        """The moment that a row of all processes is compared with."""
        self._low = int(moments.min())
        self._span = int(moments.max()) - self._low + 1
        codes = self._codes(self.entries, self.moments)
        self._order = np.argsort(codes)
        self._sorted = codes[self._order]

    def __len__(self) -> int:
        return len(self.moments)

    def before(self, column: NDArray[Any], last: int) -> Numbers:
        """A column of the row before each; ``last``: which number of an earlier tick's last row it is."""
        found = np.empty(len(column))
        found[1:] = column[:-1]
        found[self.starts] = [row[last] for row in self._last]
        return found

    def find(self, entries: Places, moments: Places) -> Places:
        """The place of each of these rows."""
        found: Places = self._order[np.searchsorted(self._sorted, self._codes(entries, moments))]
        return found

    def _codes(self, entries: Places, moments: Places) -> Places:
        return entries * self._span + (moments - self._low)


OF_EXTREMES = [column for column in Column if column.merge is not Merge.SUM]
SIGNS = np.array([-1.0 if column.merge is Merge.SMALLEST else 1.0 for column in OF_EXTREMES])
OF_SUMS = [column for column in Column if column.merge is Merge.SUM]
OF_BATCHES = (OUTPUT, OUTPUT_GRADIENT)


class _Table:
    """The rows of this process where all processes expect them.

    Args:
        layout: where they are expected.
        own: the rows.
        entries: the number of the name of each.
        names: what all processes have agreed on.
    """

    def __init__(self, layout: _Layout, own: _OwnRows, entries: Places, names: Names) -> None:
        self._layout, self._own, self._entries, self._names = layout, own, entries, names
        self._at = layout.find(entries, own.moments)
        self._full = np.flatnonzero(own.has_elements)
        is_batch = np.array([_is_batch(key) for key in layout.keys], bool)
        self._is_batch = is_batch[layout.places[:, METER]]

    def extremes(self) -> Numbers:
        """The columns of which the largest or smallest is wanted; what is not here is smaller than anything."""
        own = self._own.rows[self._full][:, OF_EXTREMES]
        own[:, OF_EXTREMES.index(FOLLOWS)] *= (
            self._own.places[self._full, BEFORE] == self._layout.moments_before[self._at[self._full]]
        )
        own *= SIGNS
        own[np.isnan(own)] = np.inf  # an unknown part makes the whole unknown
        found = np.full((len(self._layout), len(OF_EXTREMES)), -np.inf)
        found[self._at[self._full]] = own
        return found

    @np.errstate(all="ignore")
    def sums(self, extremes: Numbers) -> Numbers:
        """The columns that are added up, in the unit of the whole, and 1 where a row is here."""
        full, at = self._full, self._at[self._full]
        unit = extremes[:, OF_EXTREMES.index(UNIT)]
        rows, units = self._own.rows[full], self._own.units[full]
        scale = rows[:, UNIT] / unit[at]
        for column in OF_SUMS:
            if column == DOT:  # a product with the row before, which has its own unit
                follows = rows[:, FOLLOWS] > 0
                in_unit = rows[:, column] * (scale * units / self._layout.before(unit, 1)[at])
                rows[:, column] = np.where(follows, in_unit, 0.0)
            elif column.power:
                rows[:, column] *= scale**column.power
        copies = self._names.copies[self._layout.entries[at]]
        rows /= np.where(self._is_batch[at], copies, 1.0)[:, None]
        found = np.zeros((len(self._layout), len(OF_SUMS) + 1))
        found[at, :-1] = rows[:, OF_SUMS]
        found[self._at, -1] = 1.0
        return found

    @np.errstate(all="ignore")
    def whole(self, extremes: Numbers, sums: Numbers) -> tuple[Numbers, Places]:
        """The rows of all processes, and how many processes are behind each."""
        processes = sums[:, -1]
        rows = np.zeros((len(self._layout), WIDTH))
        parts = self._names.parts[self._layout.entries]
        is_whole = self._is_batch | (parts == 0) | (parts == processes)
        rows[:, OF_SUMS] = sums[:, :-1] * np.where(is_whole, 1.0, parts / processes)[:, None]
        known = np.where(np.isposinf(extremes), np.nan, extremes * SIGNS)
        rows[:, OF_EXTREMES] = known
        # a row is not compared if some processes have seen only one of the two
        rows[:, FOLLOWS] *= self._layout.before(processes, 2) == processes
        return rows, processes.astype(np.int64)

    # which channels are active

    def own_widths(self) -> Places:
        """How many channels each name has."""
        found = np.zeros(len(self._names), np.int64)
        for row, flags in self._own.alive.items():
            found[self._entries[row]] = len(flags)
        return found

    def alive(self, widths: Places) -> NDArray[np.uint8]:
        """For each row with channels: a flag for "unknown here", then which channels are active."""
        _, ends, found = self._blocks(widths)
        for row in self._full.tolist():
            width, flags = widths[self._entries[row]], self._own.alive.get(row)
            if width:
                begin = ends[self._at[row]] - width - 1
                if flags is None or len(flags) != width:
                    found[begin] = 1
                else:
                    found[begin + 1 : begin + 1 + width] = flags
        return found

    def count_dead(self, rows: Numbers, widths: Places, alive: NDArray[np.uint8]) -> None:
        """If all processes know their active channels, count those as dead that are active in no process."""
        of_row, ends, _ = self._blocks(widths)
        for row in np.flatnonzero(of_row).tolist():
            unknown, *flags = alive[ends[row] - of_row[row] - 1 : ends[row]].tolist()
            if not unknown:
                rows[row, CHANNELS], rows[row, DEAD] = len(flags), len(flags) - sum(flags)

    def _blocks(self, widths: Places) -> tuple[Places, Places, NDArray[np.uint8]]:
        of_row = widths[self._layout.entries]
        ends = np.cumsum(of_row + (of_row > 0))
        return of_row, ends, np.zeros(int(ends[-1]), np.uint8)


def _is_batch(key: Any) -> bool:
    """Whether each process measures its own samples of this, rather than a part of one tensor."""
    return key[0] in OF_BATCHES
