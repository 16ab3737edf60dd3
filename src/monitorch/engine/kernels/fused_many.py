"""All parameters of a model in a constant number of launches."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...numerical.precision import HOST
from .device_many import HEADER_BYTES, many_kernel
from .fused import _DTYPES, ROW_BYTES, threshold
from .launch import Launcher

TILE = 4096
CHUNK = 16384
WARPS = 4

WHOLE: Any = {"dtype": torch.int64, "device": HOST}

Group = tuple[torch.dtype, bool, int]
"""Tensors of one launch: their dtype, whether they are aligned, how many neighbouring elements share a row."""


@lru_cache(maxsize=64)
def _launcher(group: Group, keep: bool, update: bool) -> Launcher:
    dtype, aligned, neighbours = group
    return Launcher(many_kernel, WARPS, _DTYPES[dtype], aligned, keep, update, neighbours, TILE, CHUNK)


def _inner(x: Tensor) -> int:
    """How far apart in memory the rows of ``x`` begin."""
    return x.stride(0) if x.dim() > 0 and x.shape[0] > 1 else x.numel()


def _rows(x: Tensor) -> int:
    return x.shape[0] if x.dim() > 0 else 1


def _chunks(members: Sequence[int], tensors: Sequence[Tensor]) -> Tensor:
    """Which chunk of which tensor each program reads."""
    sizes = [-(-tensors[index].numel() // CHUNK) for index in members]
    counts = torch.tensor(sizes, **WHOLE)
    owner = torch.repeat_interleave(torch.tensor(list(members), **WHOLE), counts)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return torch.stack([owner, torch.arange(len(owner), **WHOLE) - starts], dim=1).to(torch.int32)


class _Many:
    """Tables on the device that say what to read; rebuilt only when that has changed.

    Capturing into a CUDA graph needs one call before it with tensors of the same shapes.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._shapes: Any = None
        self._groups: list[Group] = []
        self._launches: list[tuple[Launcher, Tensor]] = []
        self._layout: list[tuple[int, int, int, int]] = []
        self._flags = self._table = torch.empty(0, **WHOLE)
        self._spare: Tensor | None = None
        self._recorded: list[Any] = []

    def run(
        self,
        tensors: Sequence[Tensor],
        previous: Sequence[Tensor] | None,
        before: Sequence[Tensor] | None,
        follows: Sequence[bool],
        eps: float | None,
        block: Tensor,
        first: int,
    ) -> None:
        """Write the rows from ``first`` on; see the classes below."""
        if not tensors:
            return
        addresses = [
            [0] * len(tensors) if given is None else [x.data_ptr() for x in given]
            for given in (tensors, previous, before)
        ]
        shapes: list[Any] = [previous is None, before is None, *((x.numel(), x.dtype) for x in tensors)]
        if eps is not None:  # rows matter
            shapes += [(x.shape, x.stride()) for x in tensors]
        key = addresses, [int(f) for f in follows], shapes
        if key != self._key:
            self._arrange(tensors, key, eps is not None)
        device, table = tensors[0].get_device(), self._table
        row = block.data_ptr() + first * ROW_BYTES
        bound = 0.0 if eps is None else threshold(eps)
        for launch, chunks in self._launches:
            launch(device, chunks.shape[0], table.data_ptr(), chunks.data_ptr(), row, bound)
        if torch.cuda.is_current_stream_capturing():
            self._recorded.append((table, self._launches, self._flags))
            self._key = None  # the table of a captured graph is filled when it is replayed
        elif self._spare is None:
            self._spare = torch.empty(table.shape, **WHOLE, pin_memory=True)

    def _arrange(self, tensors: Sequence[Tensor], key: Any, rates: bool) -> None:
        """Build the tables for ``tensors``; what depends only on shapes is kept while these stay the same."""
        addresses, follows, shapes = key
        groups = [
            (x.dtype, (p | k | o) % 16 == 0, (16 if _inner(x) % 16 == 0 else 1) if rates else 0)
            for x, p, k, o in zip(tensors, *addresses, strict=True)
        ]
        if shapes != self._shapes or groups != self._groups:
            no_previous, no_before, *_ = shapes
            self._lay_out(tensors, groups, rates, not no_previous, not no_before)
            self._shapes, self._groups = shapes, groups
        values = [
            number
            for p, k, o, f, layout in zip(*addresses, follows, self._layout, strict=True)
            for number in (p, k, o, int(f and k != 0), *layout)
        ]
        self._table = self._upload(values, tensors[0].device)
        self._key = key

    def _lay_out(self, tensors: Sequence[Tensor], groups: list[Group], rates: bool, keep: bool, update: bool) -> None:
        """Assign the tensors to launches and programs, and the flags to the tensors."""
        device = tensors[0].device
        sizes = [HEADER_BYTES + -(-_rows(x) // 16) * 16 if rates else 0 for x in tensors]
        self._flags = torch.zeros(sum(sizes), dtype=torch.int8, device=device)
        address = self._flags.data_ptr()
        self._layout = []
        for x, size in zip(tensors, sizes, strict=True):
            self._layout.append((x.numel(), _inner(x), _rows(x), address))
            address += size
        self._launches = []
        for group in dict.fromkeys(groups):
            members = [index for index, other in enumerate(groups) if other == group]
            self._launches.append((_launcher(group, keep, update), _chunks(members, tensors).to(device)))
        self._spare = None

    def _upload(self, values: list[int], device: torch.device) -> Tensor:
        """The table on the device; the pinned copy is never written again while it may still be read."""
        if torch.cuda.is_current_stream_capturing() and self._spare is not None:
            pinned, self._spare = self._spare, None
            self._recorded.append(pinned)
            pinned.copy_(torch.tensor(values, **WHOLE))
        else:
            pinned = torch.tensor(values, **WHOLE, pin_memory=True)
        return pinned.to(device, non_blocking=True)


class ManyGradients(_Many):
    """Rows of many tensors at once."""

    def __call__(
        self,
        tensors: Sequence[Tensor],
        previous: Sequence[Tensor] | None,
        follows: Sequence[bool],
        eps: float | None,
        block: Tensor,
        first: int,
    ) -> None:
        """Write row ``first + i`` from ``tensors[i]``, which ``previous[i]`` becomes; rates only with ``eps``."""
        self.run(tensors, previous, None, follows, eps, block, first)


class ManyUpdates(_Many):
    """Rows of what was added to many tensors."""

    def __call__(
        self,
        tensors: Sequence[Tensor],
        before: Sequence[Tensor],
        previous: Sequence[Tensor] | None,
        follows: Sequence[bool],
        block: Tensor,
        first: int,
    ) -> None:
        """Write row ``first + i`` from ``tensors[i] - before[i]``, which ``previous[i]``, of float32, becomes."""
        if previous is not None and any(kept.dtype != torch.float32 for kept in previous):  # they are written to
            raise TypeError("differences are kept as float32")
        self.run(tensors, previous, before, follows, None, block, first)
