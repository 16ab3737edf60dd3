"""Rows of several processes: kept until a tick, exchanged all at once, and added up to rows of whole tensors.

Norms, rates and cosines of a whole tensor cannot be computed from those of its parts, but from the sums behind them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..engine.columns import CHANNELS, DEAD, DOT, FOLLOWS, LARGEST, SIZE, SQUARES, UNIT, WIDTH
from .notes import OWN, Note, Rows

Places = NDArray[np.int64]

SITE, MOMENT, TAG, PART, BEFORE = range(5)
"""Columns that identify a row: its site, pass, kind and part, and the pass it is compared with."""

PASSES = 1 << 20
"""More than the passes of one step: a moment is a step and the number of the pass in it."""


class Load(NamedTuple):
    """What one process sends.

    Names of sites, where each row belongs, the rows, the unit of the row before each, and for some of them which
    channels are active.
    """

    keys: list[Any]
    places: Places
    rows: Rows
    units: Rows
    alive: dict[int, NDArray[np.bool_]]


class Last(NamedTuple):
    """The last row of a site."""

    moment: int
    unit: float
    parts: int = 0


NOTHING = Last(-1, 1.0)


class JointRows:
    """Keeps the rows of this process, and delivers the combined rows of all processes to their sites."""

    def __init__(self) -> None:
        self._sites: dict[Any, Any] = {}
        self._named: Counter[Any] = Counter()
        self._sent: dict[Any, Last] = {}
        self._received: dict[Any, Last] = {}
        self._forget()

    def __reduce__(self) -> tuple[Any, ...]:
        return JointRows, ()  # a copy has no model

    def _forget(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # by identity: a number, and the site
        self._notes: list[Places] = []
        self._rows: list[Rows] = []
        self._alive: dict[int, NDArray[np.bool_]] = {}

    def enrol(self, site: Any, *what: Any) -> None:
        """Give a site a name that is the same in every process: what is measured, and the number among those."""
        if not site.key:
            site.key = (*what, self._named[what])
            self._named[what] += 1
            self._sites[site.key] = site

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

    def keep(self, notes: Sequence[Note], rows: Tensor) -> None:
        """Keep rows until they are exchanged."""
        numbers: Rows = rows.double().numpy()
        # a row without a unit was never written, and some tensors have no part here
        kept = np.flatnonzero((numbers[:, UNIT] != 0) & (numbers[:, SIZE] > 0)).tolist()
        own, seen = [notes[place] for place in kept], self._seen
        for note in own:
            if id(note.site) not in seen:
                seen[id(note.site)] = len(seen), note.site
        first = sum(map(len, self._rows))
        self._alive |= _on_host({first + index: note.alive for index, note in enumerate(own)})
        columns = [(seen[id(note.site)][0], note.step, note.tag, note.part) for note in own]
        self._notes.append(np.array(columns, np.int64).reshape(-1, PART + 1))
        self._rows.append(numbers[kept])

    def accumulators(self) -> tuple[()]:
        """None: rows are already on the CPU."""
        return ()

    def payload(self) -> Load:
        """The rows for the other processes; clears the kept ones."""
        rows = np.concatenate([np.zeros((0, WIDTH)), *self._rows])
        places = np.concatenate([np.zeros((0, PART + 1), np.int64), *self._notes])
        places[:, MOMENT] = places[:, MOMENT] * PASSES + _number_in_group(places[:, [SITE, MOMENT, TAG]])
        keys = [site.key for _, site in self._seen.values()]
        before, units = self._rows_before(keys, places, rows[:, UNIT])
        load = Load(keys, np.column_stack([places, before]), rows, units, self._alive)
        self._forget()
        return load

    def _rows_before(self, keys: list[Any], places: Places, units: Rows) -> tuple[Places, Rows]:
        """Moment and unit of the row before each of the same site, which may have been sent earlier."""
        moments, previous = np.zeros(len(places), np.int64), np.zeros(len(places))
        order = np.argsort(places[:, SITE], kind="stable")
        moments[order[1:]], previous[order[1:]] = places[order[:-1], MOMENT], units[order[:-1]]
        begins = _starts(places[order][:, :1])
        for key, begin, end in zip(keys, begins, [*begins, len(order)][1:], strict=True):
            first, last = order[begin], order[end - 1]
            moments[first], previous[first] = self._sent.get(key, NOTHING)[:2]
            self._sent[key] = Last(int(places[last, MOMENT]), float(units[last]))
        return moments, previous

    def merge_ranks(self, loads: dict[int, Load]) -> None:
        """Deliver the combined rows of all processes."""
        keys = list(dict.fromkeys(key for load in loads.values() for key in load.keys))
        number = {key: index for index, key in enumerate(keys)}
        by_rank = [_common(load, rank, number) for rank, load in loads.items()]
        places = np.concatenate(by_rank)
        last = [self._received.get(key, NOTHING) for key in keys]
        rows, units = (np.concatenate([getattr(load, name) for load in loads.values()]) for name in ("rows", "units"))
        found, joint, parts = fold(places, rows, units, last)
        _count_dead(found, joint, zip(by_rank, loads.values(), strict=True))
        ends = np.searchsorted(found[:, SITE], np.arange(len(keys)), side="right")
        for key, begin, end in zip(keys, [0, *ends], ends, strict=False):
            self._received[key] = Last(int(found[end - 1, MOMENT]), float(joint[end - 1, UNIT]), int(parts[end - 1]))
            if key in self._sites:
                self._sites[key].deliver(joint[begin:end], found[begin:end, TAG].tolist())


def _common(load: Load, rank: int, number: dict[Any, int]) -> Places:
    """Places with the site numbers that all ranks share."""
    places: Places = load.places.copy()
    places[:, SITE] = np.array([number[key] for key in load.keys], np.int64)[places[:, SITE]]
    places[places[:, PART] == OWN, PART] = rank
    return places


def _on_host(alive: dict[int, Tensor | None]) -> dict[int, NDArray[np.bool_]]:
    """Flags by row number, copied to the CPU together."""
    there = {row: flags for row, flags in alive.items() if flags is not None}
    if not there:
        return {}
    whole = torch.cat(list(there.values())).cpu()
    parts = torch.split(whole, [len(flags) for flags in there.values()])
    return {row: flags.numpy() for row, flags in zip(there, parts, strict=True)}


def _count_dead(found: Places, joint: Rows, sent: Iterable[tuple[Places, Load]]) -> None:
    """If all processes send their active channels, count those as dead that are active in no process."""
    alive: dict[Any, list[NDArray[np.bool_]]] = defaultdict(list)
    for places, load in sent:
        for row, flags in load.alive.items():
            alive[tuple(places[row, : TAG + 1])].append(flags)
    for index, place in enumerate(found[:, : TAG + 1].tolist() if alive else ()):
        by_rank = alive.get(tuple(place), [])
        if len({len(flags) for flags in by_rank}) == 1:
            joint[index, CHANNELS] = len(by_rank[0])
            joint[index, DEAD] = len(by_rank[0]) - np.count_nonzero(np.logical_or.reduce(by_rank))


def fold(places: Places, rows: Rows, units: Rows, last: list[Last]) -> tuple[Places, Rows, NDArray[np.int64]]:
    """Add up rows of the same pass: copies of one part count once.

    Args:
        places: site, moment, kind and part of each row, and the moment it is compared with.
        rows: sums.
        units: the unit of what each row is compared with.
        last: by site, the last row that was folded before.

    Returns:
        Places and rows in order, and the number of processes behind each.
    """
    order = np.lexsort((places[:, PART], places[:, TAG], places[:, MOMENT], places[:, SITE]))
    places, rows, units = places[order], rows[order].copy(), units[order]
    parts, passes = _starts(places[:, : PART + 1]), _starts(places[:, : TAG + 1])
    if not len(rows):
        return places, rows, passes
    spans = np.diff([*passes, len(rows)])
    unit = np.maximum.reduceat(rows[:, UNIT], passes)
    found = places[passes]
    before = _before(found, unit, spans, last)
    scale = rows[:, UNIT] / np.repeat(unit, spans)
    rows[:, SQUARES] *= scale**2
    rows[:, DOT] *= scale * units / np.repeat(before[:, 1], spans)
    means = np.add.reduceat(rows, parts) / np.diff([*parts, len(rows)])[:, None]
    joint = np.add.reduceat(means, np.searchsorted(parts, passes))
    joint[:, UNIT] = unit
    joint[:, LARGEST] = np.maximum.reduceat(rows[:, LARGEST], passes)
    # a row is not compared if processes compare it with different moments, or if some have not seen it
    agrees = np.minimum.reduceat(places[:, BEFORE], passes) == before[:, 0]
    agrees &= np.maximum.reduceat(places[:, BEFORE], passes) == before[:, 0]
    joint[:, FOLLOWS] = np.minimum.reduceat(rows[:, FOLLOWS], passes) * (agrees & (before[:, 2] == spans))
    return found, joint, spans


def _starts(columns: Places) -> NDArray[np.int64]:
    """Where a row of a sorted table differs from the row before."""
    if not len(columns):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.concatenate([[True], (columns[1:] != columns[:-1]).any(axis=1)]))


def _number_in_group(columns: Places) -> NDArray[np.int64]:
    """For each row, how many equal rows are above it."""
    order = np.lexsort(columns.T)
    starts = _starts(columns[order])
    found = np.empty(len(columns), np.int64)
    found[order] = np.arange(len(columns)) - np.repeat(starts, np.diff([*starts, len(columns)]))
    return found


def _before(found: Places, unit: Rows, spans: NDArray[np.int64], last: list[Last]) -> Rows:
    """Moment, unit and number of processes of the row before each."""
    own = np.stack([found[:, MOMENT].astype(float), unit, spans.astype(float)], axis=1)
    before = np.concatenate([own[:1], own[:-1]])
    for start in _starts(found[:, :1]):
        before[start] = last[found[start, SITE]]
    return before
