"""Rows of raw sums in the order they were measured; each stays on its device until somebody reads.

A page belongs to one device. Its verbs measure a tensor, with the kernel that suits it, and write one row; nothing
waits. Reading brings all rows of a device to the host with one copy and hands them to the sites they belong to.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import SkippedSample
from .kernels import fused, fused_many, host, reference
from .kernels.row import SIZE, WIDTH
from .memory import is_capturing, lasting
from .precision import wide_dtype
from .transfer import Parcel, Transfer

CAPACITY = 1 << 15
"""Rows on a device before they begin to move to the host: bounds memory between two ticks."""

LEAD, AFTER_GAP, CAPTURED = 4, 8, 16
"""Bits of a tag above those for the kind of the pass: the row is there only so that the next one has something to be
compared with; it does not follow the row before; it is one that a CUDA graph writes whenever it runs."""

STANDING = 1 << 12
"""Rows that CUDA graphs may write, per device."""

KEPT_TABLES = 256
"""Launches for many tensors whose tables are kept."""

Rows = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Site(Protocol):
    """Whoever wants the rows of one tensor of one layer, and keeps what the next pass is compared with."""

    eps: float
    channel_dim: int | None
    rates: bool
    sketched: bool
    previous: Tensor | None
    before: Tensor | None
    scratch: Tensor | None

    def guarded(self, action: Callable[..., Any], *data: Any) -> Any:
        """Call ``action``; what goes wrong is told and goes no further."""

    def deliver(self, rows: Rows, tags: Sequence[int]) -> None:
        """Take rows, oldest first."""


class Note(NamedTuple):
    """Which pass a row comes from."""

    site: Any
    tag: int
    step: int


class HostPage:
    """Rows of CPU tensors: numbers at once."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self.notes: list[Note] = []

    def output(self, note: Note, x: Tensor) -> None:
        """Measure what a layer put out."""
        site = note.site
        self._write(note, host.output(x.detach(), site.channel_dim, site.eps))

    def geometry(self, note: Note, x: Tensor, follows: bool) -> None:
        """Measure a tensor and compare it with the one before, which it replaces."""
        site = note.site
        eps = site.eps if site.rates else None
        if site.sketched:
            self._write(note, host.sketch(x, site.previous, follows))
        else:
            self._write(note, host.geometry(x, site.previous, follows, eps))

    def gradients(self, notes: Sequence[Note], tensors: Sequence[Tensor], follows: Sequence[bool]) -> None:
        """Measure the gradients of many parameters; one that cannot be measured does not take others along."""
        for note, tensor, follow in zip(notes, tensors, follows, strict=True):
            note.site.guarded(self.geometry, note, tensor, follow)

    def updates(self, notes: Sequence[Note], tensors: Sequence[Tensor], follows: Sequence[bool]) -> None:
        """Measure how far many parameters have moved."""
        for note, tensor, follow in zip(notes, tensors, follows, strict=True):
            note.site.guarded(self._update, note, tensor, follow)

    def _update(self, note: Note, x: Tensor, follows: bool) -> None:
        site = note.site
        if site.sketched:
            self.geometry(note, x - site.before, follows)
            site.before.copy_(x)
        else:
            self._write(note, host.update(x, site.before, site.previous, follows))

    def collect(self, step: int, tag: int, gaps: int) -> None:
        """Nothing: there are no graphs on a CPU that would write by themselves."""

    def _write(self, note: Note, row: tuple[float, ...]) -> None:
        self.rows.append(row)
        self.notes.append(note)
        if len(self.notes) >= CAPACITY:
            Transfer(self.parcels()).deliver()

    def parcels(self) -> list[Parcel]:
        """Give away what is there."""
        if not self.notes:
            return []
        rows, notes, self.rows, self.notes = self.rows, self.notes, [], []
        return [(partial(hand_out, notes), torch.tensor(rows, dtype=torch.float64))]


class DevicePage:
    """Rows of tensors on a GPU or another device, written by kernels and moved to the host in one piece."""

    def __init__(self, device: torch.device) -> None:
        dtype = wide_dtype(torch.empty(0, device=device))
        self.block = torch.zeros(CAPACITY, WIDTH, dtype=dtype, device=device)
        self.notes: list[Note] = []
        self._moving: list[Transfer] = []
        self._many: dict[Any, Any] = {}
        self.standing = torch.zeros(STANDING, WIDTH, dtype=dtype, device=device)
        self._captured: list[Note] = []
        self._gaps = 0

    def output(self, note: Note, x: Tensor) -> None:
        """Measure what a layer put out."""
        site = note.site
        block, index = self._place(note)
        if not fused.AVAILABLE or not fused.supports(x):
            block[index] = reference.output(x, site.channel_dim, site.eps)
            return
        size = fused.scratch_size(x, site.channel_dim)
        if site.scratch is None or site.scratch.numel() != size:
            make = partial(torch.zeros, size, dtype=torch.float64, device=x.device)
            site.scratch = lasting(make, x.device, in_graph=site.in_graph)
        fused.output(x, site.channel_dim, site.eps, block, index, site.scratch)

    def geometry(self, note: Note, x: Tensor, follows: bool) -> None:
        """Measure a tensor and compare it with the one before, which it replaces."""
        site = note.site
        block, index = self._place(note)
        follows = follows or block is self.standing  # a gap is noticed when the row is collected
        is_supported = fused.supports(x)
        if not is_supported:
            x = x.contiguous()
        if site.rates or not fused.AVAILABLE or not (is_supported or fused.supports(x)):
            self._measure_plainly(site, x, follows, block, index)
        elif site.sketched:
            fused.sketch(x, site.previous, follows, block, index)
        else:
            fused.geometry(x, site.previous, follows, block, index)

    def gradients(self, notes: Sequence[Note], tensors: Sequence[Tensor], follows: Sequence[bool]) -> None:
        """Measure the gradients of many parameters in a constant number of launches."""
        for key, group in self._groups(notes, tensors, follows):
            if key is None:
                for note, tensor, follow in group:
                    self.geometry(note, tensor, follow)
                continue
            own, measured, flags = zip(*group, strict=True)
            previous = [note.site.previous for note in own] if key[0] else None
            many = self._many_for(fused_many.ManyGradients, own)
            many(measured, previous, flags, key[1], self.block, self._reserve(own))

    def updates(self, notes: Sequence[Note], tensors: Sequence[Tensor], follows: Sequence[bool]) -> None:
        """Measure how far many parameters have moved in a constant number of launches."""
        for key, group in self._groups(notes, tensors, follows):
            if key is None:
                for note, tensor, follow in group:
                    self.geometry(note, tensor.detach() - note.site.before, follow)
                    note.site.before.copy_(tensor.detach())
                continue
            own, measured, flags = zip(*group, strict=True)
            previous = [note.site.previous for note in own] if key[0] else None
            before = [note.site.before for note in own]
            many = self._many_for(fused_many.ManyUpdates, own)
            many(measured, before, previous, flags, self.block, self._reserve(own))

    def _many_for(self, kind: Any, notes: Sequence[Note]) -> Any:
        """The tables of an earlier launch for the same tensors, if there was one; making them costs time."""
        key = kind, len(notes), id(notes[0].site), id(notes[-1].site)
        if key not in self._many:
            if len(self._many) >= KEPT_TABLES:
                self._many.clear()
            self._many[key] = kind()
        return self._many[key]

    def _groups(self, *columns: Sequence[Any]) -> Iterable[tuple[Any, list[tuple[Note, Tensor, bool]]]]:
        """What one launch can measure together; under None what must be measured one by one."""
        groups: dict[Any, list[tuple[Note, Tensor, bool]]] = defaultdict(list)
        for note, tensor, follow in zip(*columns, strict=True):
            site = note.site
            alone = site.sketched or not fused.AVAILABLE or not fused.supports(tensor)
            key = None if alone else (site.previous is not None, site.eps if site.rates else None)
            groups[key].append((note, tensor, follow))
        return groups.items()

    def parcels(self) -> list[Parcel]:
        """Give away what is there; what is on its way already comes first."""
        for transfer in self._moving:
            transfer.deliver()
        self._moving = []
        return self._empty()

    def collect(self, step: int, tag: int, gaps: int) -> None:
        """Take over the rows that CUDA graphs have written in the step that ends here.

        Args:
            step: its number.
            tag: bits for all of them.
            gaps: how often recording has been interrupted so far.
        """
        if not self._captured:
            return
        tag |= CAPTURED | (AFTER_GAP if gaps != self._gaps else 0)
        self._gaps = gaps
        first = self._reserve([Note(note.site, note.tag | tag, step) for note in self._captured])
        rows = self.standing[: len(self._captured)]
        self.block[first : first + len(rows)] = rows
        rows.zero_()

    def _place(self, note: Note) -> tuple[Tensor, int]:
        """Where a row goes: to the next place, or in a CUDA graph to one that stays its own."""
        if note.site.in_graph and is_capturing(self.block.device):
            if len(self._captured) == STANDING:
                raise SkippedSample(f"CUDA graphs hold more than {STANDING} measurements")
            self._captured.append(note)
            index = len(self._captured) - 1
            self.standing[index].zero_()
            return self.standing, index
        return self.block, self._reserve([note])

    def _reserve(self, notes: Sequence[Note]) -> int:
        if len(self.notes) + len(notes) > CAPACITY:
            for transfer in self._moving:  # begun a whole page ago: there is nothing to wait for
                transfer.deliver()
            self._moving = [Transfer(self._empty())]
        first = len(self.notes)
        self.notes.extend(notes)
        return first

    def _empty(self) -> list[Parcel]:
        """The rows, copied: what is written next comes after the copy on the device's own queue."""
        if not self.notes:
            return []
        used, notes, self.notes = self.block[: len(self.notes)], self.notes, []
        rows = used.clone()
        used.zero_()
        return [(partial(hand_out, notes), rows)]

    def _measure_plainly(self, site: Any, x: Tensor, follows: bool, block: Tensor, index: int) -> None:
        eps = site.eps if site.rates else None
        if site.sketched:
            block[index] = reference.sketch(x, site.previous, follows)
            return
        block[index] = reference.geometry(x, site.previous if follows else None, eps)
        if site.previous is not None:
            site.previous.copy_(x)


class Ledger:
    """One page per device."""

    def __init__(self) -> None:
        self._pages: dict[torch.device, HostPage | DevicePage] = {}

    def page(self, device: torch.device) -> HostPage | DevicePage:
        """Where tensors of a device are measured."""
        page = self._pages.get(device)
        if page is None:
            page = self._pages[device] = HostPage() if device.type == "cpu" else DevicePage(device)
        return page

    def collect(self, step: int, tag: int, gaps: int) -> None:
        """Take over what CUDA graphs have written, see :meth:`DevicePage.collect`."""
        for page in self._pages.values():
            page.collect(step, tag, gaps)

    def parcels(self) -> list[Parcel]:
        """All rows, to be brought to the host and handed to their sites."""
        return [parcel for page in self._pages.values() for parcel in page.parcels()]

    def deliver(self) -> None:
        """Hand all rows to their sites now, with one copy per device."""
        Transfer(self.parcels()).deliver()


def hand_out(notes: Sequence[Note], rows: Tensor) -> None:
    """Give rows to the sites that their notes name."""
    numbers: Rows = rows.double().numpy()
    places: dict[int, list[int]] = defaultdict(list)
    for place, note in enumerate(notes):
        if not note.tag & CAPTURED or numbers[place, SIZE]:  # else its graph did not run
            places[id(note.site)].append(place)
    for own in places.values():
        notes[own[0]].site.deliver(numbers[own], [notes[place].tag for place in own])
