"""One exchange between the ranks for any number of preprocessors, and for the rows behind their numbers.

Each ``start_sync`` says what is to be merged; the first ``finish_sync`` does it for all of them.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

import torch.distributed as dist

from ..errors import ExchangeError
from .deferred import Deferred, settle


class Party(Protocol):
    """Something that exists on every rank, and knows how to become what all ranks have together."""

    def accumulators(self) -> Iterable[Deferred]:
        """What must be on the host before it can be sent."""

    def payload(self) -> Any:
        """What the other ranks need to know."""

    def merge_ranks(self, loads: dict[int, Any]) -> None:
        """Become what the ranks have together, from the payloads by rank; some ranks may have none."""


_offered: list[Party] = []


def several_processes() -> bool:
    """Whether there is anybody to exchange with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def any_process(fact: bool) -> bool:
    """Whether it is so in any process; all of them must ask."""
    loads, _ = _gather(fact)
    return any(loads.values())


def offer(party: Party) -> None:
    """Take part in the next exchange. Parties of one class meet in the order in which they were offered."""
    if several_processes() and not any(party is known for known in _offered):
        _offered.append(party)


def exchange() -> None:
    """Merge all that was offered, in that order; without offers nothing happens.

    Where the others cannot be reached everybody gets back what it had, and then an error says why.
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
    loads, failure = _gather(own)
    for name, party in parties.items():
        party.merge_ranks({rank: load[name] for rank, load in loads.items() if name in load})
    if failure is not None:
        raise ExchangeError(f"the other processes could not be reached: {failure}") from failure


def _gather(own: Any) -> tuple[dict[int, Any], Exception | None]:
    gathered: list[Any] = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(gathered, own)
    except Exception as error:  # a process has died, or did not come within the time limit of the group
        return {dist.get_rank(): own}, error
    return dict(enumerate(gathered)), None
