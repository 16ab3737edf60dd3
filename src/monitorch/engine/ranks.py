"""Numbers of several processes: one exchange for everybody who has some, and rows that are added up to whole tensors.

Each ``start_sync`` registers what to merge; the first ``finish_sync`` does it for all of them. Norms, rates and cosines
of a whole tensor cannot be computed from those of its parts, but from the sums behind them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ExchangeError
from ..numerical.moments import group_starts
from .buffers import METER, PART, STEP, TAG, Infos
from .columns import CHANNELS, DEAD, DOT, FOLLOWS, SIZE, UNIT, WIDTH, Column, Merge
from .distributed_tensors import OWN
from .meter import Meter
from .rows import Numbers, Places

MOMENT, BEFORE = STEP, PART + 1
"""Columns that identify a row: beside its meter, kind and part, the pass it comes from and the one it is compared with.

A moment is a step and the number of the pass in it.
"""

PASSES = 1 << 20
"""More than the passes of one step."""


class Participant(Protocol):
    """Something that exists on every rank and can merge the data of all ranks."""

    def payload(self) -> Any:
        """The data for the other ranks."""

    def merge_ranks(self, payloads: dict[int, Any]) -> None:
        """Merge the payloads of all ranks into this one; some ranks may have none."""


_offered: list[Participant] = []


def several_processes() -> bool:
    """Whether there are several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def own_rank() -> int:
    """The rank of this process; 0 if there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def offer(participant: Participant) -> None:
    """Take part in the next exchange. Those of one class are matched in the order in which they were offered."""
    if several_processes() and not any(participant is known for known in _offered):
        _offered.append(participant)


def exchange(gather: Callable[[Any], dict[int, Any]] | None = None) -> None:
    """Merge everything that was offered, in that order; does nothing without offers.

    If the other processes cannot be reached, each participant gets its own data back, and an error says why.

    Args:
        gather: sends the data of this process, and returns those of all, by rank; None for a collective of the default
            group.
    """
    participants, counts = dict[str, Participant](), Counter[str]()
    for participant in _offered:
        kind = type(participant).__name__
        participants[f"{kind} {counts[kind]}"] = participant
        counts[kind] += 1
    _offered.clear()
    if not participants:
        return
    own = {name: participant.payload() for name, participant in participants.items()}
    try:
        payloads, failure = (gather or _gather)(own), None
    except Exception as error:
        payloads, failure = {dist.get_rank(): own}, error
    for name, participant in participants.items():
        participant.merge_ranks({rank: sent[name] for rank, sent in payloads.items() if name in sent})
    if isinstance(failure, ExchangeError):
        raise failure
    if failure is not None:
        raise ExchangeError(f"the other processes could not be reached: {failure}") from failure


def _gather(own: Any) -> dict[int, Any]:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return dict(enumerate(gathered))


class RowPayload(NamedTuple):
    """What one process sends.

    Names of meters, where each row belongs, the rows, the unit of the row before each, and for some of them which
    channels are active.
    """

    keys: list[Any]
    places: Places
    rows: Numbers
    units: Numbers
    alive: dict[int, NDArray[np.bool_]]


class Last(NamedTuple):
    """The last row of a meter."""

    moment: int
    unit: float
    parts: int = 0


NOTHING = Last(-1, 1.0)

Receive = Callable[[Infos, Numbers], None]
"""Takes whole rows, and where they come from."""


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
        """Which of the meters in the last payload was used first, second, and so on."""
        self._forget()

    def _forget(self) -> None:
        self._infos: list[Places] = []
        self._rows: list[Numbers] = []
        self._alive: dict[int, NDArray[np.bool_]] = {}

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
        kept = np.flatnonzero(rows[:, SIZE] > 0)  # some tensors have no part here
        first = sum(map(len, self._rows))
        by_row = {int(row): first + index for index, row in enumerate(kept)} if alive else {}
        self._alive |= _on_host({by_row[row]: flags for row, flags in alive.items() if row in by_row})
        self._infos.append(infos[kept, : PART + 1])
        self._rows.append(rows[kept])

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
        begins = group_starts(places[order][:, :1])
        for key, begin, end in zip(keys, begins, [*begins, len(order)][1:], strict=True):
            first, last = order[begin], order[end - 1]
            moments[first], previous[first] = self._sent.get(key, NOTHING)[:2]
            self._sent[key] = Last(int(places[last, MOMENT]), float(units[last]))
        return moments, previous

    def merge_ranks(self, payloads: dict[int, RowPayload]) -> None:
        """Hand out the merged rows of all processes, in the order in which this one has measured them."""
        keys = list(dict.fromkeys(key for payload in payloads.values() for key in payload.keys))
        number = {key: index for index, key in enumerate(keys)}
        by_rank = [_common(payload, rank, number) for rank, payload in payloads.items()]
        places = np.concatenate(by_rank)
        last = [self._received.get(key, NOTHING) for key in keys]
        rows, units = (
            np.concatenate([getattr(payload, name) for payload in payloads.values()]) for name in ("rows", "units")
        )
        found, joint, parts = merge(places, rows, units, last)
        _count_dead(found, joint, zip(by_rank, payloads.values(), strict=True))
        ends = np.searchsorted(found[:, METER], np.arange(len(keys)), side="right")
        for key, end in zip(keys, ends, strict=True):
            self._received[key] = Last(int(found[end - 1, MOMENT]), float(joint[end - 1, UNIT]), int(parts[end - 1]))
        here = np.array([self._meters[key].number if key in self._meters else -1 for key in keys], np.int64)
        infos = found[:, : PART + 1].copy()
        infos[:, METER] = here[found[:, METER]] if len(keys) else 0
        order = np.array([self._order.get(key, len(places)) for key in keys], np.int64)[found[:, METER]]
        is_here = infos[:, METER] >= 0
        measured = np.lexsort((order, infos[:, MOMENT]))
        measured = measured[is_here[measured]]
        infos[:, STEP] //= PASSES
        self._receive(infos[measured], joint[measured])


def _common(payload: RowPayload, rank: int, number: dict[Any, int]) -> Places:
    """Places with the numbers of meters that all ranks share."""
    places: Places = payload.places.copy()
    places[:, METER] = np.array([number[key] for key in payload.keys], np.int64)[places[:, METER]]
    places[places[:, PART] == OWN, PART] = rank
    return places


def _on_host(alive: dict[int, Tensor]) -> dict[int, NDArray[np.bool_]]:
    """Flags by row number, copied to the CPU together."""
    if not alive:
        return {}
    whole = torch.cat(list(alive.values())).cpu()
    parts = torch.split(whole, [len(flags) for flags in alive.values()])
    return {row: flags.numpy() for row, flags in zip(alive, parts, strict=True)}


def _count_dead(found: Places, joint: Numbers, sent: Iterable[tuple[Places, RowPayload]]) -> None:
    """If all processes send their active channels, count those as dead that are active in no process."""
    alive: dict[Any, list[NDArray[np.bool_]]] = defaultdict(list)
    for places, payload in sent:
        for row, flags in payload.alive.items():
            alive[tuple(places[row, : TAG + 1])].append(flags)
    for index, place in enumerate(found[:, : TAG + 1].tolist() if alive else ()):
        by_rank = alive.get(tuple(place), [])
        if len({len(flags) for flags in by_rank}) == 1:
            joint[index, CHANNELS] = len(by_rank[0])
            joint[index, DEAD] = len(by_rank[0]) - np.count_nonzero(np.logical_or.reduce(by_rank))


_REDUCE = {Merge.LARGEST: np.maximum, Merge.SMALLEST: np.minimum}


def merge(places: Places, rows: Numbers, units: Numbers, last: list[Last]) -> tuple[Places, Numbers, Places]:
    """Merge rows of the same pass, column by column; copies of one part count once.

    Args:
        places: meter, moment, kind and part of each row, and the moment it is compared with.
        rows: sums.
        units: the unit of what each row is compared with.
        last: by meter, the last row that was merged before.

    Returns:
        Places and rows in order, and the number of processes behind each.
    """
    order = np.lexsort((places[:, PART], places[:, TAG], places[:, MOMENT], places[:, METER]))
    places, rows, units = places[order], rows[order].copy(), units[order]
    parts, passes = group_starts(places[:, : PART + 1]), group_starts(places[:, : TAG + 1])
    if not len(rows):
        return places, rows, passes
    spans = np.diff([*passes, len(rows)])
    found, unit = places[passes], np.maximum.reduceat(rows[:, UNIT], passes)
    before = _before(found, unit, spans, last)
    scale = rows[:, UNIT] / np.repeat(unit, spans)
    for column in Column:  # count in the unit of the whole
        if column == DOT:  # a product with the row before, which has its own unit
            rows[:, column] *= scale * units / np.repeat(before[:, 1], spans)
        elif column != UNIT and column.power:
            rows[:, column] *= scale**column.power
    means = np.add.reduceat(rows, parts) / np.diff([*parts, len(rows)])[:, None]
    joint = np.add.reduceat(means, np.searchsorted(parts, passes))
    for column in Column:
        if column.merge is not Merge.SUM:
            joint[:, column] = _REDUCE[column.merge].reduceat(rows[:, column], passes)
    # a row is not compared if processes compare it with different moments, or if some have not seen it
    agrees = np.minimum.reduceat(places[:, BEFORE], passes) == before[:, 0]
    agrees &= np.maximum.reduceat(places[:, BEFORE], passes) == before[:, 0]
    joint[:, FOLLOWS] *= agrees & (before[:, 2] == spans)
    return found, joint, spans


def _number_in_group(columns: Places) -> Places:
    """For each row, how many equal rows are above it."""
    order = np.lexsort(columns.T)
    starts = group_starts(columns[order])
    found = np.empty(len(columns), np.int64)
    found[order] = np.arange(len(columns)) - np.repeat(starts, np.diff([*starts, len(columns)]))
    return found


def _before(found: Places, unit: Numbers, spans: Places, last: list[Last]) -> Numbers:
    """Moment, unit and number of processes of the row before each."""
    own = np.stack([found[:, MOMENT].astype(float), unit, spans.astype(float)], axis=1)
    before = np.concatenate([own[:1], own[:-1]])
    for start in group_starts(found[:, :1]):
        before[start] = last[found[start, METER]]
    return before
