"""Reductions over processes, as programs that do not know how numbers travel.

A program yields what is to be reduced, and gets the result: the same in every process. So each process can run it with
collectives, and one process can run it for all, as the tests and the last tick do. What a program yields next may
depend on results only, never on what this process alone knows: all processes must yield the same sizes.
"""

import pickle
from collections.abc import Callable, Generator, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Array: TypeAlias = NDArray[Any]


class How(Enum):
    """How the numbers of several processes become one."""

    LARGEST = "the largest one"
    SUM = "their sum"


class Reduction(NamedTuple):
    """Numbers of this process, and how to reduce them over all processes."""

    numbers: Array
    how: How


class Seat(NamedTuple):
    """The place of a process among those that take part."""

    rank: int = 0
    processes: int = 1


Program: TypeAlias = Generator[Sequence[Reduction], list[Array], T]
"""Yields reductions that can be done at the same time."""

Reduce: TypeAlias = Callable[[Array, How], Array]

_REDUCE: dict[How, Any] = {How.LARGEST: np.maximum, How.SUM: np.add}


def run(program: Program[T], reduce: Reduce) -> T:
    """Run a program; arrays of one type that are reduced in the same way travel together."""
    try:
        wanted = next(program)
        while True:
            wanted = program.send(_reduced(wanted, reduce))
    except StopIteration as end:
        found: T = end.value
        return found


def _reduced(wanted: Sequence[Reduction], reduce: Reduce) -> list[Array]:
    together: dict[tuple[str, str], list[int]] = {}
    for index, (numbers, how) in enumerate(wanted):
        together.setdefault((how.name, numbers.dtype.str), []).append(index)
    found: list[Array] = [numbers for numbers, _ in wanted]
    for indices in together.values():
        parts = [wanted[index].numbers.ravel() for index in indices]
        whole = np.concatenate(parts)
        if len(whole):
            reduced = reduce(whole, wanted[indices[0]].how)
            ends = np.cumsum([len(part) for part in parts])[:-1]
            for index, part in zip(indices, np.split(reduced, ends), strict=True):
                found[index] = part.reshape(wanted[index].numbers.shape)
    return found


def side_by_side(*programs: Program[Any]) -> Program[list[Any]]:
    """Run programs at the same time, so that what they yield travels together; returns what each has returned."""
    results: list[Any] = [None] * len(programs)
    answers: list[list[Array] | None] = [None] * len(programs)
    running = list(range(len(programs)))
    while running:
        wanted: list[Reduction] = []
        sizes: dict[int, int] = {}
        for index in list(running):
            try:
                own = programs[index].send(answers[index])  # type: ignore[arg-type]  # None starts a generator
                sizes[index] = len(own)
                wanted += own
            except StopIteration as end:
                results[index] = end.value
                running.remove(index)
        if running:
            found = yield wanted
            for index in running:
                answers[index], found = found[: sizes[index]], found[sizes[index] :]
    return results


def replay(programs: Sequence[Program[T]]) -> list[T]:
    """Run the programs of several processes in this one; returns what each has returned."""
    wanted, results = [], list[T]()
    try:
        wanted = [next(program) for program in programs]
    except StopIteration as end:
        return [end.value, *(_result(program) for program in programs[1:])]
    while not results:
        found = [_combined(same) for same in zip(*wanted, strict=True)]
        wanted = []
        for program in programs:
            try:
                wanted.append(program.send([array.copy() for array in found]))
            except StopIteration as end:
                results.append(end.value)
    return results


def _result(program: Program[T]) -> T:
    try:
        next(program)
    except StopIteration as end:
        found: T = end.value
        return found
    raise RuntimeError("programs of one exchange must end at the same time")


def _combined(same: Sequence[Reduction]) -> Array:
    whole: Array = same[0].numbers
    for other in same[1:]:
        whole = _REDUCE[other.how](whole, other.numbers)
    return whole


# parts of programs


def largest(*numbers: int) -> Program[list[int]]:
    """The largest of each of these numbers over all processes."""
    (found,) = yield [Reduction(np.array(numbers, np.int64), How.LARGEST)]
    return [int(number) for number in found]


def digest(*things: Any) -> int:
    """A hash that is the same in all processes."""
    content = b"|".join(thing if isinstance(thing, bytes) else repr(thing).encode() for thing in things)
    return int.from_bytes(blake2b(content, digest_size=7).digest(), "big")


def agree_on(digests: Sequence[int], *numbers: int) -> Program[tuple[list[bool], list[int]]]:
    """Whether all processes have the same digests, and the largest of some more numbers."""
    count = len(digests)
    found = yield from largest(*digests, *(-each for each in digests), *numbers)
    same = [high == -low for high, low in zip(found[:count], found[count : 2 * count], strict=True)]
    return same, found[2 * count :]


def gather(own: Any, seat: Seat) -> Program[dict[int, Any]]:
    """What each process has, by rank, without those that have None; bytes travel once, whoever has them."""
    content = b"" if own is None else pickle.dumps(own)
    sizes = np.zeros(seat.processes, np.int64)
    sizes[seat.rank] = len(content)
    (sizes,) = yield [Reduction(sizes, How.SUM)]
    ends = np.cumsum(sizes)
    everything = np.zeros(int(ends[-1]), np.uint8)
    everything[int(ends[seat.rank]) - len(content) : int(ends[seat.rank])] = np.frombuffer(content, np.uint8)
    (everything,) = yield [Reduction(everything, How.LARGEST)]
    spans = zip((ends - sizes).tolist(), ends.tolist(), strict=True)
    whole = everything.tobytes()
    return {rank: pickle.loads(whole[begin:end]) for rank, (begin, end) in enumerate(spans) if end > begin}


def union(own: Sequence[Any], seat: Seat) -> Program[list[Any]]:
    """Everything that any process has, without repetition and in the same order everywhere.

    Most processes have the same items, so the first process sends all of its own, and the others only what it lacks.
    """
    first = yield from gather(list(own) if seat.rank == 0 else None, seat)
    known = dict.fromkeys(first.get(0, ()))
    rest = yield from gather([one for one in own if one not in known] or None, seat)
    return list(dict.fromkeys([*known, *(one for more in rest.values() for one in more)]))
