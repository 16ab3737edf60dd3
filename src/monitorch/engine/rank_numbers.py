"""Merges finished numbers of several processes: moments, counts, losses of the same step, and lists."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..numerical.moments import Row
from .distributed_tensors import OWN
from .reductions import How, Program, Reduction, Seat, agree_on, digest, gather, union

Numbers: TypeAlias = NDArray[np.float64]

LISTED = 1 << 18
"""The most list entries, which cannot be reduced, that all processes together may send in one tick."""


class Vector(NamedTuple):
    """Numbers of one key that are merged element by element."""

    numbers: NDArray[Any]
    part: int = OWN
    """Which part of a tensor they are of: copies of a part count once, and parts are added up."""
    averages: bool = False
    """Whether to average over the processes that have an element, instead of adding."""


@dataclass
class Payload:
    """What one participant has in one process."""

    moments: dict[Any, Row] = field(default_factory=dict)
    """Moments of samples; those of all processes are pooled."""
    vectors: dict[Any, Vector] = field(default_factory=dict)
    lists: dict[Any, list[float]] = field(default_factory=dict)
    """Individual samples, which are gathered; if there are very many, they are thinned out evenly."""
    facts: Any = None
    """Any other small data to gather; None if there is none."""
    counts_copies_once: bool = False
    """Whether moments that are equal in all processes are duplicates and count once."""


@dataclass
class Merged:
    """What a participant has in all processes together."""

    processes: int
    """How many have taken part."""
    moments: dict[Any, Row] = field(default_factory=dict)
    vectors: dict[Any, Numbers] = field(default_factory=dict)
    lists: list[dict[Any, list[float]]] = field(default_factory=list)
    """By process, in the order of ranks."""
    facts: dict[int, Any] = field(default_factory=dict)
    """By rank."""


Payloads: TypeAlias = Mapping[str, Payload]
"""By participant."""

MOMENTS, COPIES, SUMS, PARTS, MEANS = range(5)
"""The kinds of data that are reduced."""


class Name(NamedTuple):
    """What is reduced, the same in every process."""

    kind: int
    participant: str
    key: Hashable


def put_together(own: Payloads, seat: Seat) -> Program[dict[str, Merged]]:
    """Put the numbers of all processes together, by participant."""
    named = _by_name(own)
    lengths = [_length(one) for one in named.values()]
    rest = _rest(own, LISTED // seat.processes)
    (is_same,), (somebody_gathers,) = yield from agree_on(
        [digest(list(zip(named, lengths, strict=True)))], rest is not None
    )
    names = list(named)
    if not is_same:
        names = yield from union(names, seat)
        found = np.array([_length(named.get(name)) for name in names], np.int64)
        (found,) = yield [Reduction(found, How.LARGEST)]
        lengths = found.tolist()
    table = _Table(names, lengths, named, seat)
    extremes, parts = yield [Reduction(table.extremes(), How.LARGEST), Reduction(table.parts(), How.LARGEST)]
    (sums,) = yield [Reduction(table.sums(extremes), How.SUM)]
    merged = {participant: Merged(int(sums[0])) for participant in own}
    for name, whole in table.whole(extremes, parts, sums).items():
        if name.participant in merged:
            where = merged[name.participant]
            if isinstance(whole, Row):
                where.moments[name.key] = whole
            else:
                where.vectors[name.key] = whole
    if somebody_gathers:
        gathered = yield from gather(rest, seat)
        for rank, by_participant in gathered.items():
            for participant, (lists, facts) in by_participant.items():
                if participant in merged:
                    merged[participant].lists += [lists] if lists else []
                    merged[participant].facts |= {} if facts is None else {rank: facts}
    return merged


def _by_name(own: Payloads) -> dict[Name, Row | Vector]:
    found: dict[Name, Row | Vector] = {}
    for participant, payload in own.items():
        kind = COPIES if payload.counts_copies_once else MOMENTS
        found |= {Name(kind, participant, key): row for key, row in payload.moments.items()}
        for key, vector in payload.vectors.items():
            kind_of_vector = MEANS if vector.averages else SUMS if vector.part == OWN else PARTS
            found[Name(kind_of_vector, participant, key)] = vector
    return found


def _length(one: Row | Vector | None) -> int:
    return len(one.numbers) if isinstance(one, Vector) else 0


def _rest(own: Payloads, room: int) -> dict[str, tuple[dict[Any, list[float]], Any]] | None:
    """What cannot be reduced, by participant."""
    listed = sum(len(samples) for payload in own.values() for samples in payload.lists.values())
    every = max(1, -(-listed // max(room, 1)))
    found = {}
    for participant, payload in own.items():
        if payload.lists or payload.facts is not None:
            lists = {key: samples[::every] for key, samples in payload.lists.items()}
            found[participant] = lists, payload.facts
    return found or None


FINITE, MEAN, STD, LOW, HIGH, NONFINITE, VAR, LAST = range(len(Row._fields))
OF_SAMPLES = [MEAN, STD, VAR]
"""Fields of moments that are undefined without samples."""


class _Table:
    """The numbers of this process where all processes expect them.

    Args:
        names: what is reduced, in the order in which all processes send it.
        lengths: how many numbers each has; 0 for moments.
        named: what this process has.
    """

    def __init__(
        self, names: Sequence[Name], lengths: Sequence[int], named: Mapping[Name, Row | Vector], seat: Seat
    ) -> None:
        self._names, self._seat = names, seat
        self._of_moments = [name for name in names if name.kind in (MOMENTS, COPIES)]
        rows = [named.get(name) for name in self._of_moments]
        self._here = np.array([row is not None for row in rows], bool)
        own = [row if isinstance(row, Row) else Row() for row in rows]
        self._rows = np.array(own, np.float64).reshape(len(own), len(Row._fields))
        of_vectors = [(name, length) for name, length in zip(names, lengths, strict=True) if name.kind >= SUMS]
        self._of_vectors = of_vectors
        self._vectors = [named.get(name) for name, _ in of_vectors]

    def extremes(self) -> Numbers:
        """Each field of moments, and its negative; what is not here is smaller than anything."""
        own, negative = self._rows.copy(), -self._rows
        own[np.isnan(own)] = negative[np.isnan(negative)] = -np.inf  # there may be no last sample
        is_empty = self._rows[:, FINITE] == 0
        for fields in (own, negative):
            fields[np.ix_(is_empty, OF_SAMPLES)] = -np.inf
        found = np.stack([own, negative], axis=1)
        found[~self._here] = -np.inf
        return found

    def parts(self) -> NDArray[np.uint8]:
        """For numbers that belong to parts of tensors: which part is here."""
        found = np.zeros((len(self._of_vectors), self._seat.processes), np.uint8)
        for index, ((name, _), vector) in enumerate(zip(self._of_vectors, self._vectors, strict=True)):
            if name.kind == PARTS and isinstance(vector, Vector):
                found[index, vector.part] = 1
        is_wanted = [name.kind == PARTS for name, _ in self._of_vectors]
        return found[np.array(is_wanted, bool)] if is_wanted else found

    @np.errstate(all="ignore")
    def sums(self, extremes: Numbers) -> Numbers:
        """What is added up; moments are in a unit and around a centre that all processes know by now."""
        centre, unit = _centre_and_unit(extremes)
        finite, mean, std, nonfinite = (self._rows[:, field] for field in (FINITE, MEAN, STD, NONFINITE))
        off, spread = (mean - centre) / unit, std / unit
        moments = np.stack([self._here, finite, finite * off, finite * (off**2 + spread**2), nonfinite], axis=1)
        moments[finite == 0, 2:4] = 0.0
        found = [np.ones(1), np.where(self._here[:, None], moments, 0.0).ravel()]
        for (name, length), vector in zip(self._of_vectors, self._vectors, strict=True):
            whole = np.zeros((2, length) if name.kind == MEANS else length + 1)
            if isinstance(vector, Vector) and name.kind == MEANS:
                whole[:, : len(vector.numbers)] = vector.numbers, np.ones(len(vector.numbers))
            elif isinstance(vector, Vector):
                whole[: len(vector.numbers)], whole[-1] = vector.numbers, 1.0
            found.append(whole.ravel())
        return np.concatenate(found)

    @np.errstate(all="ignore")
    def whole(self, extremes: Numbers, parts: NDArray[np.uint8], sums: Numbers) -> dict[Name, Row | Numbers]:
        """What all processes have together, by name."""
        found: dict[Name, Row | Numbers] = dict.fromkeys(self._names, np.zeros(0))
        ends = 1, 1 + 5 * len(self._of_moments)
        moments, sums = sums[ends[0] : ends[1]].reshape(-1, 5), sums[ends[1] :]
        found |= zip(self._of_moments, self._pooled(extremes, moments), strict=True)
        parts_of = iter(parts)
        for name, length in self._of_vectors:
            if name.kind == MEANS:
                whole, sums = sums[: 2 * length].reshape(2, length), sums[2 * length :]
                found[name] = whole[0] / whole[1]
            else:
                numbers, holders, sums = sums[:length], sums[length], sums[length + 1 :]
                found[name] = numbers * (next(parts_of).sum() / holders) if name.kind == PARTS else numbers
        return found

    def _pooled(self, extremes: Numbers, sums: Numbers) -> list[Row]:
        centre, unit = _centre_and_unit(extremes)
        holders, finite, off, squares, nonfinite = sums.T
        high, low = extremes[:, 0], -extremes[:, 1]
        largest, is_empty = high.copy(), high[:, FINITE] == 0
        largest[:, LOW] = low[:, LOW]
        largest[:, LAST] = np.where(np.isneginf(largest[:, LAST]), np.nan, largest[:, LAST])
        largest[np.ix_(is_empty, OF_SAMPLES)] = 0.0
        pooled, share = largest.copy(), off / finite
        std = unit * np.sqrt(np.maximum(squares / finite - share**2, 0.0))
        pooled[:, OF_SAMPLES] = np.where(is_empty[:, None], 0.0, np.stack([centre + unit * share, std, std**2], axis=1))
        pooled[:, FINITE], pooled[:, NONFINITE] = finite, nonfinite
        # as they are where only one process has them, or all have copies
        may_be_copies = np.array([name.kind == COPIES for name in self._of_moments], bool)
        are_same = is_empty | (high[:, :LAST] == low[:, :LAST]).all(axis=1)
        chosen = np.where(((holders == 1) | (may_be_copies & are_same))[:, None], largest, pooled)
        rows = [Row._make(row) for row in chosen.tolist()]
        return [row._replace(finite=int(row.finite), nonfinite=int(row.nonfinite)) for row in rows]


def _centre_and_unit(extremes: Numbers) -> tuple[Numbers, Numbers]:
    """A centre between the smallest and the largest mean, and a unit in which all deviations from it are small."""
    high, low = extremes[:, 0, MEAN], -extremes[:, 1, MEAN]
    centre = np.where(np.isfinite(high), high / 2 + low / 2, 0.0)
    unit = np.maximum(extremes[:, 0, STD], high / 2 - low / 2)
    return centre, np.where(np.isfinite(unit) & (unit > 0), unit, 1.0)
