"""Checks that all processes come to a tick, and exchanges their numbers.

A collective that only some processes enter would meet the next collective of the others, such as the all-reduce of
DistributedDataParallel, and both would fail. So processes first meet in the store of the default group, where no one
waits for long. They then exchange numbers over separate connections.
"""

import pickle
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..errors import ExchangeError
from .ranks import Parcel, Plan, Result, alone, own_seat, several_processes
from .reductions import Array, How, Seat, run
from .torch_private import connect, default_store, reduce_in_place

PATIENCE, LONG_PATIENCE = 10.0, 60.0
"""Seconds to wait for the others at the first meeting, when it is unknown whether they watch as well: at a tick, and
when nothing can be measured without them."""

AGREEING = 1.0
"""Seconds to wait, once all have met, for results that should have arrived by now."""

CONNECTING = 30.0
"""Seconds that processes may take to connect after they have met."""

PAUSES = 0.001, 0.05
"""Seconds between two checks of the store, at first and at most."""

TOGETHER, LATER, APART = "together", "later", "apart"
"""How a meeting ends: all came; not all came, but they may next time; not all came, and there is no next time."""

NOTHING = b"nothing"
"""The value that a process stores when it has nothing left to show."""

_taken: dict[str, set[int]] = defaultdict(set)  # by class of model, also of inspectors that were deleted
_asked: Counter[str] = Counter()


def agree(topic: str, decide: Callable[[], str]) -> str:
    """The decision of the first process that calls this; the others wait for it, for a limited time.

    Args:
        topic: the same in all processes; each use of a topic gets a new answer.
        decide: called only by the first process.
    """
    number, _asked[topic] = _asked[topic], _asked[topic] + 1
    try:
        store = _part_of_store(f"monitorch/agreed/{topic}/{number}", default_store())
        own = str(dist.get_rank())
        is_first = store.compare_set("who", "", own).decode() == own
        for _ in () if is_first else _looks(LONG_PATIENCE):
            if store.check(["answer"]):
                return str(store.get("answer").decode())
    except Exception:  # there are no other processes
        return decide()
    answer = decide()
    if is_first:
        with suppress(Exception):
            store.set("answer", answer)
    return answer


def _looks(patience: float) -> Iterator[None]:
    """Yield whenever to look into the store: at least once, then with growing pauses, for ``patience`` seconds."""
    deadline, pause = time.monotonic() + patience, PAUSES[0]
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, PAUSES[1])
        yield


def _part_of_store(name: str, store: Any) -> Any:
    from torch.distributed.distributed_c10d import PrefixStore  # some builds of torch have none

    return PrefixStore(name, store)


class Meeting:
    """An inspector and its counterparts in the other processes.

    Processes find each other by the class of model that they watch; several inspectors of one class are matched by the
    order of their first ticks.

    All meet at the first tick. If a process does not come in time, all show their own numbers. If it was only late (it
    came at the same step), all wait for it at the next tick. Once they have met, they are connected: then a process
    that leaves or dies is noticed at once.

    Args:
        what: the class of the watched model.
    """

    def __init__(self, what: str = "") -> None:
        self.what, self._seat = what, Seat()
        self._place: int | None = None
        self._default: Any = None
        self._limit = timedelta(seconds=CONNECTING)
        """How long to wait for processes that are known to come."""
        self._store: Any = None
        self._base: Any = None
        self._round = self._tries = 0
        self._group: Any = None
        self._left: dict[int, Any] | None = None  # by the other processes, at the end
        self._reason = ""
        self.is_over = False
        """Whether the processes will never meet again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Meeting, (self.what,)  # a copy has not met the others

    @property
    def has_met(self) -> bool:
        """Whether all processes are connected."""
        return self._group is not None

    @property
    def patience(self) -> float:
        """How many seconds training may wait for an exchange that began some ticks ago."""
        return AGREEING if self.has_met else PATIENCE

    @property
    def is_ending(self) -> bool:
        """Whether the next tick is the last one, to which not all processes may come."""
        return self._left is not None

    def begin(self) -> None:
        """Take a place among inspectors of this class of model; call it in the same order in all processes."""
        if self._place is None and not self.is_over:
            self._default, self._seat = default_store(), own_seat()
            # shorter than the timeout of the training's own collectives
            self._limit = self._default.timeout * 0.75
            self._place = next(place for place in count() if place not in _taken[self.what])
            _taken[self.what].add(self._place)

    def exchange(self, own: Parcel, plan: Plan, step: int) -> Result:
        """Merge the numbers of all processes at a tick; raises an error if some are missing."""
        if self._left is not None:  # the end of training
            self._leave_behind(pickle.dumps(own))
            return alone({self._seat.rank: own, **self._left}, plan, self._seat)
        self.meet(step)
        try:
            found = run(plan(own, self._seat, False), self.reduce)
        except Exception as error:  # a process has left or died, or did not come within the time limit
            self._give_up(error)
            raise ExchangeError(self._reason) from error
        with suppress(Exception):  # whoever leaves now would close connections from which others still read
            self.reduce(np.zeros(1), How.LARGEST)
        return found

    def meet(self, step: int, *, patience: float | None = None) -> None:
        """Wait until all processes are here; raises an error if some do not come.

        All of them get the same result, in any order. Once they have met, this does not wait.

        Args:
            step: the training step of this process.
            patience: how many seconds to wait at the first meeting; ``PATIENCE`` if None.
        """
        if self._group is not None:
            return
        if not self.is_over:
            try:
                self._join()
                how, self._reason = self._find_out(step, PATIENCE if patience is None else patience)
                if how == TOGETHER:
                    self._connect()
                elif how == APART:
                    self.leave()
            except Exception as error:
                self._give_up(error)
        if self._group is None:
            raise ExchangeError(self._reason)

    def end(self, *, has_more: bool, shows: bool) -> bool:
        """Training has ended everywhere. Returns whether there is a last tick, which not all processes may join.

        Only the process that shows it waits for the last numbers of the others, which they put into the store.
        """
        try:
            self._join()
            if shows:
                self._left = self._wait_for_the_rest(LONG_PATIENCE if has_more else PATIENCE)
                return has_more or bool(self._left)
            self._left = {}
            if not has_more:
                self._leave_behind(NOTHING)
        except Exception as error:  # the store is gone, and so are the others
            self._give_up(error)
        return has_more

    def _wait_for_the_rest(self, patience: float) -> dict[int, Any]:
        """The last numbers of the other processes, by rank; those that do not come in time are left out."""
        store = self._store
        missing = {rank: f"end/{rank}" for rank in range(self._seat.processes) if rank != self._seat.rank}
        found: dict[int, Any] = {}
        for _ in _looks(patience):
            for rank in [rank for rank, key in missing.items() if store.check([key])]:
                left = store.get(missing.pop(rank))
                if left != NOTHING:
                    found[rank] = pickle.loads(left)
            if not missing:
                break
        return found

    def _leave_behind(self, left: bytes) -> None:
        self._store.set(f"end/{self._seat.rank}", left)

    def leave(self) -> None:
        """Join no further tick, tell the others, and let a later inspector take the place."""
        self._part()
        if self._place is not None:
            _taken[self.what].discard(self._place)
            self._place = None

    def _part(self) -> None:
        """The same, but keep the place: the others may not know yet that this process is gone."""
        self.is_over, self._group = True, None  # closes the connections
        if self._store is None:
            return
        store, base, self._store, self._base = self._store, self._base, None, None
        if several_processes():
            try:
                store.compare_set(f"{self._tries}/how", "", APART)
                store.compare_set(f"end/{self._seat.rank}", "", NOTHING.decode())
                base.compare_set("round", str(self._round), str(self._round + 1))
            except Exception:  # the store is gone, and so are the others
                return

    def _give_up(self, error: Exception) -> None:
        self._reason = f"the other processes could not be reached: {error}"
        self._part()

    def _join(self) -> None:
        """Join the current round: all processes that have come since one left."""
        self.begin()
        if self._store is not None:
            return
        self._base = _part_of_store(f"monitorch/{self.what}/{self._place}", self._default.clone())
        self._base.compare_set("round", "", "0")
        self._round = int(self._base.get("round"))
        self._store = _part_of_store(str(self._round), self._base)

    def _find_out(self, step: int, patience: float) -> tuple[str, str]:
        """The outcome of this meeting, and why."""
        store, number = self._store, self._tries
        self._tries += 1
        here = [f"{number}/{other}" for other in range(self._seat.processes)]
        how = f"{number}/how"
        store.set(here[self._seat.rank], str(step))
        patience = self._later_patience(number) if number else patience
        for _ in _looks(patience):
            if store.check(here):
                store.compare_set(how, "", TOGETHER)
            if store.check([how]):
                return store.get(how).decode(), "the other processes stopped waiting for this one"
        missing = [other for other, key in enumerate(here) if not store.check([key])]
        reason = f"{_named(missing)} did not take part within {patience:.3g} s"
        return store.compare_set(how, "", APART if number else LATER).decode(), reason

    def _later_patience(self, number: int) -> float:
        """Long enough for processes that came late to the last meeting; 0 if one did not come to it."""
        before = [f"{number - 1}/{other}" for other in range(self._seat.processes)]
        if not self._store.check(before) or len({self._store.get(key) for key in before}) > 1:
            return 0.0
        return self._limit.total_seconds()

    def _connect(self) -> None:
        store, limit = _part_of_store("connections", self._store), timedelta(seconds=CONNECTING)
        try:
            self._group = connect(store, *self._seat, limit)
        except Exception as error:
            cure = "set the environment variable GLOO_SOCKET_IFNAME to the network interface to use"
            raise ExchangeError(f"they could not connect ({error}); {cure}") from error

    def reduce(self, numbers: Array, how: How) -> Array:
        """Reduce an array over all processes, which must be connected."""
        found: Array = numbers.copy()
        group = self._group
        if group is None:
            raise ExchangeError("this process has left the others")
        operation = dist.ReduceOp.MAX if how is How.LARGEST else dist.ReduceOp.SUM
        reduce_in_place(group, torch.from_numpy(found), operation, self._limit)
        return found


def _named(ranks: list[int]) -> str:
    """Ranks as text.

    >>> _named([1]), _named([1, 2, 3, 4, 5])
    ('rank 1', 'ranks 1, 2, 3 and 2 more')
    """
    shown = ", ".join(map(str, ranks[:3]))
    rest = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{rest}"
