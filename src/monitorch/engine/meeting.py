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

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ExchangeError
from .ranks import several_processes
from .torch_private import default_store

PATIENCE, LONG_PATIENCE = 10.0, 60.0
"""Seconds to wait for the others at the first meeting, when it is unknown whether they watch, too: at a tick, and
if nothing can be measured without them."""

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
        store = _c10d().PrefixStore(f"monitorch/agreed/{topic}/{number}", default_store())
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
    """Let the caller look into the store, at least once and then with growing pauses, for so many seconds."""
    deadline, pause = time.monotonic() + patience, PAUSES[0]
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, PAUSES[1])
        yield


def _c10d() -> Any:
    """The torch module for stores and groups; some builds of torch have none."""
    from torch.distributed import distributed_c10d

    return distributed_c10d


class Meeting:
    """An inspector and its counterparts in the other processes.

    Processes find each other by the class of model that they watch; several inspectors of one class are matched by the
    order of their first ticks.

    All meet at the first tick. If a process does not come in time, all show their own numbers. If it was only late,
    that is, came at the same step, all wait for it at the next tick. Once they have met, they are connected: then a
    process that leaves or dies is noticed at once.

    Args:
        what: the class of the watched model.
    """

    def __init__(self, what: str = "") -> None:
        self.what, self._place = what, 0
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
    def is_ending(self) -> bool:
        """Whether the next tick is the last one, to which not all processes may come."""
        return self._left is not None

    def gather(self, own: Any, step: int) -> dict[int, Any]:
        """What all processes send at a tick, by rank; raises an error if some are missing."""
        if self._left is not None:  # the end of training
            self._leave_behind(pickle.dumps(own))
            return {dist.get_rank(): own, **self._left}
        self.meet(step)
        try:
            return dict(enumerate(self._all_gather(own)))
        except Exception as error:  # a process has left or died, or did not come within the time limit
            self._give_up(error)
            raise ExchangeError(self._reason) from error

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
        """Training has ended in all processes: whether there is a last tick, which not all may join.

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
        store, own = self._store, dist.get_rank()
        missing = {rank: f"end/{rank}" for rank in range(dist.get_world_size()) if rank != own}
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
        self._store.set(f"end/{dist.get_rank()}", left)

    def leave(self) -> None:
        """Join no further tick, and tell the others."""
        self.is_over, self._group = True, None  # closes the connections
        if self._store is None:
            return
        _taken[self.what].discard(self._place)
        store, base, self._store, self._base = self._store, self._base, None, None
        if several_processes():
            try:
                store.compare_set(f"{self._tries}/how", "", APART)
                store.compare_set(f"end/{dist.get_rank()}", "", NOTHING.decode())
                base.compare_set("round", str(self._round), str(self._round + 1))
            except Exception:  # the store is gone, and so are the others
                return

    def _give_up(self, error: Exception) -> None:
        self._reason = f"the other processes could not be reached: {error}"
        self.leave()

    def _join(self) -> None:
        """Join the current round: all processes that have come since one left."""
        if self._store is not None:
            return
        self._place = next(place for place in count() if place not in _taken[self.what])
        name = f"monitorch/{self.what}/{self._place}"
        self._base = _c10d().PrefixStore(name, default_store().clone())
        self._base.compare_set("round", "", "0")
        self._round = int(self._base.get("round"))
        self._store = _c10d().PrefixStore(str(self._round), self._base)
        _taken[self.what].add(self._place)

    def _find_out(self, step: int, patience: float) -> tuple[str, str]:
        """The outcome of this meeting, and why."""
        store, number, rank = self._store, self._tries, dist.get_rank()
        self._tries += 1
        here = [f"{number}/{other}" for other in range(dist.get_world_size())]
        how = f"{number}/how"
        store.set(here[rank], str(step))
        patience = self._later_patience(number) if number else patience
        for _ in _looks(patience):
            if store.check(here):
                store.compare_set(how, "", TOGETHER)
            if store.check([how]):
                return store.get(how).decode(), "the other processes had stopped waiting for this one"
        missing = [other for other, key in enumerate(here) if not store.check([key])]
        reason = f"{_named(missing)} did not take part within {patience:.3g} s"
        return store.compare_set(how, "", APART if number else LATER).decode(), reason

    def _later_patience(self, number: int) -> float:
        """Long enough for processes that came late to the last meeting; 0 if one did not come to it."""
        before = [f"{number - 1}/{other}" for other in range(dist.get_world_size())]
        if not self._store.check(before) or len({self._store.get(key) for key in before}) > 1:
            return 0.0
        return self._limit().total_seconds()

    def _limit(self) -> timedelta:
        """How long to wait for processes that will come: shorter than their own collectives wait for this one."""
        limit: timedelta = default_store().timeout * 0.75
        return limit

    def _connect(self) -> None:
        store, limit = _c10d().PrefixStore("connections", self._store), timedelta(seconds=CONNECTING)
        try:
            self._group = _c10d().ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), limit)
        except Exception as error:
            cure = "set the environment variable GLOO_SOCKET_IFNAME to the network interface to use"
            raise ExchangeError(f"they could not connect ({error}); {cure}") from error

    def _all_gather(self, own: Any) -> list[Any]:
        data = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
        sizes = [int(size) for size in self._gather_tensor(torch.tensor([len(data)], dtype=torch.int64, device="cpu"))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device="cpu")
        padded[: len(data)] = data
        parts = zip(self._gather_tensor(padded), sizes, strict=True)
        return [pickle.loads(part[:size].numpy().tobytes()) for part, size in parts]

    def _gather_tensor(self, own: Tensor) -> list[Tensor]:
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        options = _c10d().AllgatherOptions()
        options.timeout = self._limit()
        self._group.allgather([found], [own], options).wait()
        return found


def _named(ranks: list[int]) -> str:
    """Ranks as text.

    >>> _named([1]), _named([1, 2, 3, 4, 5])
    ('rank 1', 'ranks 1, 2, 3 and 2 more')
    """
    shown = ", ".join(map(str, ranks[:3]))
    rest = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{rest}"
