"""Checksums of tensors, on their device: equal bits give equal numbers, and any change of one element another one."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from .precision import wide_dtype

WORDS = 4096
"""Words of four bytes in a row: each row has one sum."""
ROWS_AT_ONCE = {"cpu": 16}
"""How many rows are multiplied at once: what fits into the cache of a CPU."""
MOST_ROWS = 4096
"""The same on other devices: limits the memory for products to 64 MiB."""
BITS = 24
"""Whole numbers of so many bits fit into a float32, in which numbers are stored."""


@torch.no_grad()
def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """One int64 for each tensor; all are on one device. Nothing waits for it.

    Every word of a tensor is multiplied by an odd number that depends on its place, modulo 2^32; a row of products is
    summed modulo 2^64 and multiplied by the odd number of the row. So a single changed element changes the sum for
    sure; that many of them do not has a chance of one in 2^32 or less.

    >>> before, after = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    >>> sums = checksums([before, before.clone(), after])
    >>> (sums == sums[0]).tolist()
    [True, True, False]
    """
    whole = [_words(tensor) for tensor in tensors]
    device = whole[0].device
    weights, zeros = _weights(device)
    ends, sums = list[Tensor](), list[Tensor | None]()
    for words in whole:
        rows = len(words) // WORDS
        end = words[rows * WORDS :]
        ends += [end, zeros[len(end) :]]
        sums.append(_sum_of_rows(words[: rows * WORDS].view(rows, WORDS), weights) if rows else None)
    found = _sums(torch.cat(ends).view(-1, WORDS), weights)
    if any(own is not None for own in sums):
        none = found.new_zeros(())
        found = found + torch.stack([none if own is None else own for own in sums])
    return found


def as_float(sums: Tensor) -> Tensor:
    """Checksums as whole numbers that fit into a float32; different ones become the same with a chance of 2^-24."""
    folded = sums ^ (sums >> BITS) ^ (sums >> 2 * BITS)
    return (folded & ((1 << BITS) - 1)).to(wide_dtype(sums))


def _sum_of_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """The sum of a large part: rows times odd numbers of their own."""
    at_once = ROWS_AT_ONCE.get(rows.device.type, MOST_ROWS)
    sums = torch.cat([_sums(part, weights) for part in torch.split(rows, at_once)])
    return (sums * _odd_numbers(len(sums), 1, rows.device)).sum()


def _sums(rows: Tensor, weights: Tensor) -> Tensor:
    """One sum for each row. Products are added in pairs: sums of int64 are ten times as fast as those of int32."""
    return (rows * weights).view(torch.int64).sum(1)


def _words(tensor: Tensor) -> Tensor:
    """The bits of a tensor as int32, with zeros at the end if they do not fill the last one."""
    flat = tensor.detach().contiguous().view(-1)
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
    """The numbers that words are multiplied by, and a row of zeros."""
    odd = (_odd_numbers(WORDS, 2, device) >> 16).to(torch.int32) | 1
    return odd, torch.zeros(WORDS, dtype=torch.int32, device=device)


def _odd_numbers(count: int, which: int, device: torch.device) -> Tensor:
    """Fixed odd numbers without a pattern; no random stream is touched."""
    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device) * -7046029254386353131 + which
    numbers = (numbers ^ (numbers >> 30)) * -4658895280553007687
    numbers = (numbers ^ (numbers >> 27)) * -7723592293110705685
    return (numbers ^ (numbers >> 31)) | 1
