"""All parameters of a model in a constant number of launches."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...numerical.precision import HOST
from .device_many import HEADER_BYTES, many_kernel
from .device_sketch import join_kernel, parts_kernel
from .fused import DTYPES, ROW_BYTES, SKETCH_WARPS, pool_of_signs, threshold
from .launch import Launcher
from .reference import SKETCH

TILE = 4096
CHUNK = 16384
WARPS = 4

SLOTS = 512
"""Roughly how many programs sketch all tensors: enough to fill a GPU, few enough to need little memory."""
MOST_SLOTS = 128
"""The most of them for one tensor, since a single program joins their results."""
FEWEST_BLOCKS = 16
"""The fewest blocks per program, if there are that many."""

WHOLE: Any = {"dtype": torch.int64, "device": HOST}

Group = tuple[torch.dtype, bool, int]
"""Tensors of one launch: their dtype, whether they are aligned, how many neighbouring elements share a row."""


@lru_cache(maxsize=64)
def _launcher(group: Group, keep: bool, update: bool) -> Launcher:
    dtype, aligned, neighbours = group
    return Launcher(many_kernel, WARPS, DTYPES[dtype], aligned, keep, update, neighbours, TILE, CHUNK)


def _inner(x: Tensor) -> int:
    """How far apart in memory the rows of ``x`` begin."""
    return x.stride(0) if x.dim() > 0 and x.shape[0] > 1 else x.numel()


def _rows(x: Tensor) -> int:
    return x.shape[0] if x.dim() > 0 else 1


def _parts(members: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Which part of which tensor each program reads; ``sizes`` are the numbers of parts."""
    counts = torch.tensor(sizes, **WHOLE)
    owner = torch.repeat_interleave(torch.tensor(list(members), **WHOLE), counts)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return torch.stack([owner, torch.arange(len(owner), **WHOLE) - starts], dim=1).to(torch.int32)


class _Tabled:
    """A table on the device that says what to read; uploaded only when that has changed.

    Capturing into a CUDA graph needs one call before it with tensors of the same shapes.
    """

    _uploads = 1
    """How many uploads a captured graph may need."""

    def __init__(self) -> None:
        self._key: Any = None
        self._table = torch.empty(0, **WHOLE)
        self._spares: list[Tensor] = []
        self._recorded: list[Any] = []

    def _launched(self, *used: Any) -> None:
        """While capturing, keep what the kernels read; otherwise prepare for a later capture."""
        if torch.cuda.is_current_stream_capturing():
            self._recorded.append((self._table, *used))
            self._key = None  # the table of a captured graph is filled when it is replayed
            return
        while len(self._spares) < self._uploads:
            self._spares.append(torch.empty(self._table.shape, **WHOLE, pin_memory=True))

    def _upload(self, values: list[int], device: torch.device) -> Tensor:
        """The table on the device; the pinned copy is never written again while it may still be read."""
        if torch.cuda.is_current_stream_capturing() and self._spares:
            pinned = self._spares.pop()
            self._recorded.append(pinned)
            pinned.copy_(torch.tensor(values, **WHOLE))
        else:
            pinned = torch.tensor(values, **WHOLE, pin_memory=True)
        return pinned.to(device, non_blocking=True)


class _Many(_Tabled):
    """Rows of many tensors in a few launches; what depends only on their shapes is kept while these stay the same."""

    def __init__(self) -> None:
        super().__init__()
        self._shapes: Any = None
        self._groups: list[Group] = []
        self._launches: list[tuple[Launcher, Tensor]] = []
        self._layout: list[tuple[int, int, int, int]] = []
        self._flags = torch.empty(0, **WHOLE)

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
        self._launched(self._launches, self._flags)

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
            chunks = _parts(members, [-(-tensors[index].numel() // CHUNK) for index in members])
            self._launches.append((_launcher(group, keep, update), chunks.to(device)))
        self._spares = []


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


@lru_cache(maxsize=64)
def _parts_launcher(dtype: torch.dtype, aligned: bool) -> Launcher:
    return Launcher(parts_kernel, SKETCH_WARPS, DTYPES[dtype], aligned)


@lru_cache(maxsize=2)
def _join_launcher(keep: bool) -> Launcher:
    return Launcher(join_kernel, SKETCH_WARPS, keep)


def spans(blocks: Sequence[int]) -> list[int]:
    """How many blocks of each tensor go into one slot, for tensors of this many blocks.

    >>> spans([1, 100]), spans([100_000])
    ([16, 16], [782])
    """
    fair = max(FEWEST_BLOCKS, -(-sum(blocks) // SLOTS))
    return [max(fair, -(-count // MOST_SLOTS)) for count in blocks]


class ManySketches(_Tabled):
    """Rows of what a step adds to many tensors, estimated from their sketches before and after it."""

    _uploads = 2

    def __init__(self) -> None:
        super().__init__()
        self._shapes: Any = None
        self._launches: list[tuple[Launcher, Tensor]] = []
        self._layout: list[tuple[int, int, int, int]] = []
        self._slots = 0
        self._follows: list[int] = []

    def keep(self, tensors: Sequence[Tensor], states: Sequence[Tensor]) -> None:
        """Before a step: write the sketch of ``tensors[i]`` into the second row of ``states[i]``, of float64."""
        known = len(self._follows) == len(tensors)  # ``follows`` is not read here, so the table can stay
        self._run(tensors, states, self._follows if known else [0] * len(tensors), 0, keep=True)

    def __call__(
        self, tensors: Sequence[Tensor], states: Sequence[Tensor], follows: Sequence[bool], block: Tensor, first: int
    ) -> None:
        """After it: write row ``first + i``; the sketch of the change goes into the first row of ``states[i]``."""
        self._run(tensors, states, [int(f) for f in follows], block.data_ptr() + first * ROW_BYTES, keep=False)

    def _run(
        self, tensors: Sequence[Tensor], states: Sequence[Tensor], follows: list[int], row: int, *, keep: bool
    ) -> None:
        addresses = [(x.data_ptr(), state.data_ptr()) for x, state in zip(tensors, states, strict=True)]
        shapes = [(x.numel(), x.dtype, address % 16 == 0) for x, (address, _) in zip(tensors, addresses, strict=True)]
        key = addresses, follows, shapes
        if key != self._key:
            if shapes != self._shapes:
                self._lay_out(shapes, tensors[0].device)
                self._shapes = shapes
            entries = zip(addresses, self._layout, follows, strict=True)
            self._table = self._upload([n for own, lay, f in entries for n in (*own, *lay, f, 0)], tensors[0].device)
            self._key, self._follows = key, follows
        device, table = tensors[0].get_device(), self._table.data_ptr()
        # not kept, so that others can use this memory until the next step
        slots = torch.empty(self._slots, SKETCH, dtype=torch.float64, device=tensors[0].device)
        for launch, parts in self._launches:
            launch(device, len(parts), table, parts.data_ptr(), pool_of_signs(device).data_ptr(), slots.data_ptr())
        _join_launcher(keep)(device, len(tensors), table, slots.data_ptr(), row)
        self._launched(self._launches, slots)

    def _lay_out(self, shapes: list[tuple[int, torch.dtype, bool]], device: torch.device) -> None:
        """Assign slots to tensors, and tensors to launches."""
        blocks = [-(-size // SKETCH) for size, _, _ in shapes]
        counts, first = [], 0
        self._layout, self._launches, self._spares = [], [], []
        for (size, _, _), number, span in zip(shapes, blocks, spans(blocks), strict=True):
            counts.append(-(-number // span))
            self._layout.append((size, span, first, counts[-1]))
            first += counts[-1]
        self._slots = first
        for kind in dict.fromkeys((dtype, aligned) for _, dtype, aligned in shapes):
            members = [index for index, (_, *other) in enumerate(shapes) if tuple(other) == kind]
            parts = _parts(members, [counts[index] for index in members])
            self._launches.append((_parts_launcher(*kind), parts.to(device)))
