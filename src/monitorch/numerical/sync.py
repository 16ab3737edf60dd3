"""One exchange between the ranks for any number of preprocessors, and for the rows behind their numbers.

Each ``start_sync`` registers what to merge; the first ``finish_sync`` does it for all of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch.distributed as dist

from ..errors import ExchangeError
from .deferred import Deferred, settle


class Party(Protocol):
    """Something that exists on every rank and can merge the data of all ranks."""

    def accumulators(self) -> Iterable[Deferred]:
        """What must be on the CPU before it can be sent."""

    def payload(self) -> Any:
        """The data for the other ranks."""

    def merge_ranks(self, loads: dict[int, Any]) -> None:
        """Merge the payloads of all ranks into this one; some ranks may have none."""


_offered: list[Party] = []


def several_processes() -> bool:
    """Whether there are several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def offer(party: Party) -> None:
    """Take part in the next exchange. Parties of one class are matched in the order in which they were offered."""
    if several_processes() and not any(party is known for known in _offered):
        _offered.append(party)


def exchange(gather: Callable[[Any], dict[int, Any]] | None = None) -> None:
    """Merge everything that was offered, in that order; does nothing without offers.

    If the other processes cannot be reached, each party gets its own data back, and an error says why.

    Args:
        gather: sends the data of this process, and returns those of all, by rank; None for a collective of the default
            group.
    """
    parties, counts = dict[str, Party](), Counter[str]()
    for party in _offered:
        kind = type(party).__name__
        parties[f"{kind} {counts[kind]}"] = party
        counts[kind] += 1
    _offered.clear()
    if not parties:
        return
    settle(accumulator for party in parties.values() for accumulator in party.accumulators())
    own = {name: party.payload() for name, party in parties.items()}
    try:
        loads, failure = (gather or _gather)(own), None
    except Exception as error:
        loads, failure = {dist.get_rank(): own}, error
    for name, party in parties.items():
        party.merge_ranks({rank: load[name] for rank, load in loads.items() if name in load})
    if isinstance(failure, ExchangeError):
        raise failure
    if failure is not None:
        raise ExchangeError(f"the other processes could not be reached: {failure}") from failure


def _gather(own: Any) -> dict[int, Any]:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return dict(enumerate(gathered))
