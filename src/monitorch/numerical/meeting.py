"""Whether all processes come to a tick, and the way their numbers take.

A collective that only some processes enter would meet the next one of the others, such as the all-reduce of
DistributedDataParallel, and both would fail. So processes first meet in the store of the default group, where nobody
waits for long. What they then exchange goes over connections of their own.
"""

import pickle
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ExchangeError
from .sync import several_processes

PATIENCE, LONG_PATIENCE = 10.0, 60.0
"""Seconds to wait for the others at the first meeting, when nobody knows yet whether they watch, too: at a tick, and
where nothing can be measured without them."""

CONNECTING = 30.0
"""Seconds that processes which have met may take to connect."""

PAUSES = 0.001, 0.05
"""Seconds between two looks into the store, at first and at most."""

TOGETHER, LATER, APART = "together", "later", "apart"
"""How a meeting ends: all are there; not all, but they may be next time; not all, and there is no next time."""

NOTHING = b"nothing"
"""What a process leaves that has nothing left."""

_taken: dict[str, set[int]] = defaultdict(set)  # by what is watched, also of inspectors that are gone without leaving
_asked: Counter[str] = Counter()


def agree(topic: str, decide: Callable[[], str]) -> str:
    """What the first process that comes here has decided; the others wait for that, though not for ever.

    Args:
        topic: the same in all processes; each time it is asked for, there is another answer.
        decide: called by the first one only.
    """
    number, _asked[topic] = _asked[topic], _asked[topic] + 1
    try:
        store = _c10d().PrefixStore(f"monitorch/agreed/{topic}/{number}", _default_store())
        own = str(dist.get_rank())
        is_first = store.compare_set("who", "", own).decode() == own
        deadline = time.monotonic() + LONG_PATIENCE
        while not is_first and time.monotonic() < deadline:
            if store.check(["answer"]):
                return str(store.get("answer").decode())
            time.sleep(PAUSES[0])
    except Exception:  # there is nobody to ask
        return decide()
    answer = decide()
    if is_first:
        with suppress(Exception):
            store.set("answer", answer)
    return answer


def _c10d() -> Any:
    """Where torch keeps stores and groups; some builds of torch have none."""
    from torch.distributed import distributed_c10d

    return distributed_c10d


def _default_store() -> Any:
    """The store that all processes of the default group share."""
    return _c10d()._get_default_store()


class Meeting:
    """An inspector and its counterparts in the other processes.

    Processes find each other by what they watch, and the first, second, ... of those who watch such a thing by the
    order in which they come to their first tick.

    All meet at the first tick. Whoever does not come in time is not waited for, and all then show their own numbers;
    where it only was late, that is, came at the same step, all are waited for at the next tick. Once they have met they
    are connected: then a process that leaves or dies is noticed at once.

    Args:
        what: the class of the watched model.
    """

    def __init__(self, what: str = "") -> None:
        self.what, self._place = what, 0
        self._store: Any = None
        self._base: Any = None
        self._round = self._tries = 0
        self._group: Any = None
        self._left: dict[int, Any] | None = None  # by the others, at the end
        self._reason = ""
        self.is_over = False
        """Whether the processes will never meet again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Meeting, (self.what,)  # a copy has met nobody

    @property
    def is_ending(self) -> bool:
        """Whether the next tick is the last one, to which not all processes may come."""
        return self._left is not None

    def gather(self, own: Any, step: int) -> dict[int, Any]:
        """What all processes bring to a tick, by rank; an error where they are not all there."""
        if self._left is not None:  # the end
            self._leave_behind(pickle.dumps(own))
            return {dist.get_rank(): own, **self._left}
        self.meet(step)
        try:
            return dict(enumerate(self._all_gather(own)))
        except Exception as error:  # a process has left or died, or did not come within the time limit
            self._give_up(error)
            raise ExchangeError(self._reason) from error

    def meet(self, step: int, *, patience: float | None = None) -> None:
        """Wait until all processes are here; an error where they do not come.

        All of them get the same answer, whoever comes first. Once they have met there is nothing to wait for.

        Args:
            step: where in its training this process is.
            patience: how many seconds to wait at the first meeting; ``PATIENCE`` if None.
        """
        if self._group is not None:
            return
        if not self.is_over:
            self._meet(step, PATIENCE if patience is None else patience)
        if self._group is None:
            raise ExchangeError(self._reason)

    def end(self, *, has_more: bool, shows: bool) -> bool:
        """The training is over, also for the others: whether there is to be a last tick, to which not all may come.

        Only the process that shows it waits, for what the others have left; they leave that in the store and go.
        """
        try:
            self._join()
            if shows:
                self._left = self._wait_for_the_rest(LONG_PATIENCE if has_more else PATIENCE)
                return has_more or bool(self._left)
            self._left = {}
            if not has_more:
                self._leave_behind(NOTHING)
        except Exception as error:  # the store has gone, and the others with it
            self._give_up(error)
        return has_more

    def _wait_for_the_rest(self, patience: float) -> dict[int, Any]:
        """What the other processes have left, by rank; of those that do not come in time, nothing."""
        store, own = self._store, dist.get_rank()
        missing = {rank: f"end/{rank}" for rank in range(dist.get_world_size()) if rank != own}
        found: dict[int, Any] = {}
        deadline, pause = time.monotonic() + patience, PAUSES[0]
        while missing and time.monotonic() < deadline:
            for rank in [rank for rank, key in missing.items() if store.check([key])]:
                left = store.get(missing.pop(rank))
                if left != NOTHING:
                    found[rank] = pickle.loads(left)
            if missing:
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
        return found

    def _leave_behind(self, left: bytes) -> None:
        self._store.set(f"end/{dist.get_rank()}", left)

    def leave(self) -> None:
        """Come to no further tick; the others are told."""
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
            except Exception:  # the store has gone, and the others with it
                return

    def _meet(self, step: int, patience: float) -> None:
        try:
            self._join()
            how, self._reason = self._find_out(step, patience)
            if how == TOGETHER:
                self._connect()
            elif how == APART:
                self.leave()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._reason = f"the other processes could not be reached: {error}"
        self.leave()

    def _join(self) -> None:
        """Take part in the present round: that of all who have come since somebody left."""
        if self._store is not None:
            return
        self._place = next(place for place in count() if place not in _taken[self.what])
        name = f"monitorch/{self.what}/{self._place}"
        self._base = _c10d().PrefixStore(name, _default_store().clone())
        self._base.compare_set("round", "", "0")
        self._round = int(self._base.get("round"))
        self._store = _c10d().PrefixStore(str(self._round), self._base)
        _taken[self.what].add(self._place)

    def _find_out(self, step: int, patience: float) -> tuple[str, str]:
        """How this meeting ends, and why."""
        store, number, rank = self._store, self._tries, dist.get_rank()
        self._tries += 1
        here = [f"{number}/{other}" for other in range(dist.get_world_size())]
        how = f"{number}/how"
        store.set(here[rank], str(step))
        patience = self._later_patience(number) if number else patience
        deadline, pause = time.monotonic() + patience, PAUSES[0]
        while not store.check([how]):
            if store.check(here):
                store.compare_set(how, "", TOGETHER)
            elif time.monotonic() >= deadline:
                missing = [other for other, key in enumerate(here) if not store.check([key])]
                reason = f"{_named(missing)} did not take part within {patience:.3g} s"
                return store.compare_set(how, "", APART if number else LATER).decode(), reason
            else:
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
        return store.get(how).decode(), "the other processes had stopped waiting for this one"

    def _later_patience(self, number: int) -> float:
        """Long enough for all who came late to the meeting before, nothing where somebody did not come to it."""
        before = [f"{number - 1}/{other}" for other in range(dist.get_world_size())]
        if not self._store.check(before) or len({self._store.get(key) for key in before}) > 1:
            return 0.0
        return self._limit().total_seconds()

    def _limit(self) -> timedelta:
        """How long to wait for those who are known to come: shorter than their own collectives wait for this one."""
        limit: timedelta = _default_store().timeout * 0.75
        return limit

    def _connect(self) -> None:
        store, limit = _c10d().PrefixStore("connections", self._store), timedelta(seconds=CONNECTING)
        try:
            self._group = _c10d().ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), limit)
        except Exception as error:
            cure = "the environment variable GLOO_SOCKET_IFNAME says which network to use"
            raise ExchangeError(f"they do not connect ({error}); {cure}") from error

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
    """Ranks in words.

    >>> _named([1]), _named([1, 2, 3, 4, 5])
    ('rank 1', 'ranks 1, 2, 3 and 2 more')
    """
    shown = ", ".join(map(str, ranks[:3]))
    rest = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{rest}"
