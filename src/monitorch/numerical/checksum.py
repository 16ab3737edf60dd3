"""Checksums of tensors, on their device: equal bits give equal checksums, and any changed element another one."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batches import numbers_on
from .precision import HOST, wide_dtype

WORDS = 4096
"""Words of four bytes in a row: each row has one sum."""
ROWS_AT_ONCE = {"cpu": 16}
"""How many rows are multiplied at once: what fits into the cache of a CPU."""
MOST_ROWS = 4096
"""The same on other devices: limits the memory for products to 64 MiB."""
BITS = 24
"""Integers of this many bits fit into a float32, the format in which numbers are stored."""


@torch.no_grad()
def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """One int64 for each tensor; all are on one device. Nothing waits for it.

    Every word of a tensor is multiplied by an odd number that depends on its place, modulo 2^32; a row of products is
    summed modulo 2^64 and multiplied by the odd number of the row. So a single changed element always changes the sum;
    several changes cancel with a chance of at most 2^-32.

    >>> before, after = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    >>> sums = checksums([before, before.clone(), after])
    >>> (sums == sums[0]).tolist()
    [True, True, False]
    """
    whole = [_words(tensor) for tensor in tensors]
    device = whole[0].device
    weights, zeros = _weights(device)
    plan = _plan(tuple(map(len, whole)), device)
    sums = [_sums(_rows([_cut(whole[own], *words) for own, *words in parts], zeros), weights) for parts in plan.parts]
    found = torch.zeros(len(whole), dtype=torch.int64, device=device)
    return found.index_add_(0, plan.owners, torch.cat(sums) * plan.factors) if sums else found


def as_float(sums: Tensor) -> Tensor:
    """Checksums as whole numbers that fit into a float32; different ones become the same with a chance of 2^-24."""
    folded = sums ^ (sums >> BITS) ^ (sums >> 2 * BITS)
    return (folded & ((1 << BITS) - 1)).to(wide_dtype(sums))


class _Plan(NamedTuple):
    """How the words of some tensors become rows."""

    parts: list[list[tuple[int, int, int]]]
    """What is multiplied at once: tensors, and which of their words."""
    owners: Tensor
    """The tensor of each row."""
    factors: Tensor
    """What the sum of each row is multiplied by: odd numbers, and 1 for a row that is not full."""


@lru_cache(maxsize=16)
def _plan(sizes: tuple[int, ...], device: torch.device) -> _Plan:
    """The rows for tensors with these numbers of words; a partial row at the end of a tensor stands alone."""
    most = ROWS_AT_ONCE.get(device.type, MOST_ROWS)
    parts, room = list[list[tuple[int, int, int]]](), 0
    for own, size in enumerate(sizes):
        begin = 0
        while begin < size:
            if not room:
                parts.append([])
                room = most
            end = min(size, begin + room * WORDS)
            parts[-1].append((own, begin, end))
            room -= -(-(end - begin) // WORDS)
            begin = end
    rows = np.array([-(-size // WORDS) for size in sizes], np.int64)
    owners = np.repeat(np.arange(len(sizes)), rows)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(rows) - rows, rows)
    factors = _odd_numbers(int(rows.max(initial=0)), 1, HOST).numpy()[places]
    factors[(places + 1) * WORDS > np.repeat(np.array(sizes), rows)] = 1
    return _Plan(parts, numbers_on(device, owners), numbers_on(device, factors))


def _cut(words: Tensor, begin: int, end: int) -> Tensor:
    return words if end - begin == len(words) else words[begin:end]


def _rows(parts: list[Tensor], zeros: Tensor) -> Tensor:
    """Words as rows, with zeros at the end of those that are not full."""
    lacking = [-len(part) % WORDS for part in parts]
    fillings = {count: zeros[:count] for count in set(lacking)}
    filled = [own for part, count in zip(parts, lacking, strict=True) for own in (part, fillings[count])]
    return (parts[0] if lacking == [0] else torch.cat(filled)).view(-1, WORDS)


def _sums(rows: Tensor, weights: Tensor) -> Tensor:
    """One sum for each row. Products are added in pairs: sums of int64 are ten times as fast as those of int32."""
    return (rows * weights).view(torch.int64).sum(1)


def _words(tensor: Tensor) -> Tensor:
    """The bits of a tensor as int32, with zeros at the end if they do not fill the last one."""
    flat = tensor.contiguous().view(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    lacking = -flat.numel() % max(4 // flat.itemsize, 1)
    if lacking:
        flat = torch.cat([flat, flat.new_zeros(lacking)])
    elif flat.storage_offset() * flat.itemsize % 4:
        flat = flat.clone()
    return flat.view(torch.int32)


@lru_cache(maxsize=16)
def _weights(device: torch.device) -> tuple[Tensor, Tensor]:
    """The numbers that words are multiplied by, and as many zeros as a row may lack."""
    odd = (_odd_numbers(WORDS, 2, device) >> 16).to(torch.int32) | 1
    return odd, torch.zeros(WORDS - 1, dtype=torch.int32, device=device)


def _odd_numbers(count: int, which: int, device: torch.device) -> Tensor:
    """Fixed odd numbers without a pattern; no random stream is touched."""
    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device) * -7046029254386353131 + which
    numbers = (numbers ^ (numbers >> 30)) * -4658895280553007687
    numbers = (numbers ^ (numbers >> 27)) * -7723592293110705685
    return (numbers ^ (numbers >> 31)) | 1
