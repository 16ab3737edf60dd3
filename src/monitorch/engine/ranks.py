"""Merges the numbers of several processes, in one exchange for all participants.

Each ``start_sync`` registers what to merge; the first ``finish_sync`` does it for all of them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from ..errors import ExchangeError
from .rank_numbers import Merged, Payload, put_together
from .rank_rows import MergedRows, RankMerge, RowPayload
from .reductions import Array, How, Program, Seat, replay, run, side_by_side


class Participant(Protocol):
    """Something that exists on every rank and can merge the data of all ranks."""

    def payload(self) -> Payload:
        """The data for the other ranks."""

    def merge_ranks(self, merged: Merged) -> None:
        """Take what all ranks have together instead of what this one has."""


class Parcel(NamedTuple):
    """What one process brings to an exchange."""

    numbers: dict[str, Payload]
    rows: RowPayload


class Result(NamedTuple):
    """What all processes that take part have together."""

    numbers: dict[str, Merged]
    rows: MergedRows
    is_partial: bool
    """Whether some processes were missing."""


Plan: TypeAlias = Callable[[Parcel, Seat, bool], Program[Result]]
"""The program of a process for its parcel; the last argument says whether some processes are missing."""

Travel: TypeAlias = Callable[[Parcel, Plan], Result]

_offered: list[Participant | RankMerge] = []


def several_processes() -> bool:
    """Whether there are several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def own_rank() -> int:
    """The rank of this process; 0 if there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def offer(participant: Participant | RankMerge) -> None:
    """Take part in the next exchange. Those of one class are matched in the order in which they were offered."""
    if several_processes() and not any(participant is known for known in _offered):
        _offered.append(participant)


def own_seat() -> Seat:
    """The rank of this process and the number of processes."""
    return Seat(own_rank(), dist.get_world_size()) if several_processes() else Seat()


def exchange() -> None:
    """Merge everything that was offered, in that order, with collectives of the default group.

    Does nothing without offers.
    """
    offered = list(_offered)
    _offered.clear()
    if offered:
        merge_all(offered, _travel, own_seat())


def merge_all(participants: Sequence[Participant | RankMerge], travel: Travel, seat: Seat) -> None:
    """Merge the numbers of these with those of their counterparts in the other processes.

    If the other processes cannot be reached, each participant gets its own data back, and an error says why.

    Args:
        participants: those of one class are matched in this order.
        travel: runs a plan together with the other processes.
        seat: the place of this process.
    """
    named, counts, rows = dict[str, Participant](), Counter[str](), RankMerge(lambda *_: None)
    for participant in participants:
        if isinstance(participant, RankMerge):
            rows = participant
        else:
            kind = type(participant).__name__
            named[f"{kind} {counts[kind]}"] = participant
            counts[kind] += 1
    own = Parcel({name: participant.payload() for name, participant in named.items()}, rows.payload())

    def plan(parcel: Parcel, seat: Seat, is_partial: bool) -> Program[Result]:
        programs = put_together(parcel.numbers, seat), rows.merge_ranks(parcel.rows, seat, anew=is_partial)
        numbers, merged_rows = yield from side_by_side(*programs)
        return Result(numbers, merged_rows, is_partial)

    try:
        result, failure = travel(own, plan), None
    except Exception as error:
        result, failure = alone({seat.rank: own}, plan, seat), error
    for name, participant in named.items():
        participant.merge_ranks(result.numbers[name])
    rows.hand_out(result.rows, anew=result.is_partial)
    if isinstance(failure, ExchangeError):
        raise failure
    if failure is not None:
        raise ExchangeError(f"the other processes could not be reached: {failure}") from failure


def alone(parcels: Mapping[int, Parcel], plan: Plan, seat: Seat) -> Result:
    """Merge the parcels of some processes, by rank, without them; returns what the one with this seat gets."""
    programs = [plan(parcel, Seat(rank, seat.processes), True) for rank, parcel in parcels.items()]
    return replay(programs)[list(parcels).index(seat.rank)]


def merged(payloads: Mapping[int, Payload]) -> Merged:
    """What a participant gets if the processes with these ranks take part."""
    processes = max(payloads) + 1
    programs = [put_together({"": payload}, Seat(rank, processes)) for rank, payload in payloads.items()]
    return replay(programs)[0][""]


def _travel(own: Parcel, plan: Plan) -> Result:
    return run(plan(own, own_seat(), False), _reduce)


def _reduce(numbers: Array, how: How) -> Array:
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    tensor = torch.from_numpy(np.ascontiguousarray(numbers)).to(device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX if how is How.LARGEST else dist.ReduceOp.SUM)
    found: Array = tensor.cpu().numpy()
    return found
