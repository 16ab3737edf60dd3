"""One exchange between the ranks for any number of preprocessors.

Each ``start_sync`` says what is to be merged; the first ``finish_sync`` does it for all of them.
"""

from typing import Any, Protocol

import torch.distributed as dist

from .accumulator import accumulators_in
from .deferred import settle


class Party(Protocol):
    """Something with accumulators by name that exist on every rank."""

    @property
    def value(self) -> dict[str, Any]:
        """Accumulators by name."""

    def merge_ranks(self, values: list[dict[str, Any]]) -> None:
        """Become what the ranks have together."""


_offered: list[Party] = []


def several_processes() -> bool:
    """Whether there is anybody to exchange with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def offer(party: Party) -> None:
    """Take part in the next exchange. Every rank must offer the same parties in the same order."""
    if several_processes():
        _offered.append(party)


def exchange() -> None:
    """Merge all that was offered; without offers nothing happens."""
    if not _offered:
        return
    parties = _offered[:]
    _offered.clear()
    settle(acc for party in parties for value in party.value.values() for acc in accumulators_in(value))
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, [dict(party.value) for party in parties])
    for party, values in zip(parties, zip(*gathered, strict=True), strict=True):
        party.merge_ranks(list(values))
