"""Rows of tensors on a GPU or another device."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..engine.columns import FOLLOWS, UNIT, WIDTH
from ..engine.kernels import fused, fused_many, reference
from ..errors import SkippedSample
from .memory import is_capturing, lasting
from .notes import LEAD, Note, Receive, hand_out
from .precision import difference, wide_dtype_of
from .transfer import Parcel, Transfer

CAPACITY = 1 << 15
"""How many rows stay on a device before they are copied to the CPU: limits memory between two ticks."""

STANDING = 1 << 12
"""How many rows CUDA graphs may write, per device."""

KEPT_TABLES = 256
"""How many tables of launches for many tensors are cached."""


class DevicePage:
    """Rows of tensors on a GPU or another device, written by kernels and copied to the CPU in one piece."""

    def __init__(self, device: torch.device, receive: Receive = hand_out) -> None:
        self._receive = receive
        dtype = wide_dtype_of(device)
        self.block = torch.zeros(CAPACITY, WIDTH, dtype=dtype, device=device)
        self.notes: list[Note] = []
        self._moving: list[Transfer] = []
        self._many: dict[Any, Any] = {}
        self.standing = torch.zeros(STANDING, WIDTH, dtype=dtype, device=device)
        self._captured: list[Note] = []
        self._correction: tuple[Tensor, Tensor | None] | None = None
        self._uncorrected = 0

    @contextmanager
    def corrected(self, unit: Tensor, follows: Tensor | None = None) -> Iterator[None]:
        """Correct all rows that are written inside the block.

        Args:
            unit: multiplies their units; 0 leaves the rows out.
            follows: 0 if none of them is compared with the row before.
        """
        self._correction, self._uncorrected = (unit, follows), len(self.notes)
        try:
            yield
            self._correct()
        finally:
            self._correction = None

    def _correct(self) -> None:
        if self._correction is not None and self._uncorrected < len(self.notes):
            rows = self.block[self._uncorrected : len(self.notes)]
            for column, factor in zip((UNIT, FOLLOWS), self._correction, strict=True):
                if factor is not None:
                    rows[:, column] *= factor.to(rows.device, non_blocking=True)
        self._uncorrected = 0

    def output(self, note: Note, x: Tensor) -> None:
        """Measure a layer's output."""
        site = note.site
        if not site.knows(x):
            site.reader = self._output_reader(site, x)
        block, index = self._place(note)
        site.reader(x, block, index)
        self._keep_for_graph(site, block)

    def geometry(self, note: Note, x: Tensor, follows: bool) -> None:
        """Measure a tensor and compare it with the one before, which it replaces; the site knows its layout."""
        site = note.site
        if site.reader is None:
            site.reader = self._geometry_reader(site, x)
        block, index = self._place(note)
        site.reader(x, block, index, follows or block is self.standing)  # gaps are noticed on the CPU
        self._keep_for_graph(site, block)

    def _keep_for_graph(self, site: Any, block: Tensor) -> None:
        """Keep the memory that a CUDA graph writes to while it may run, whatever the site uses next."""
        if block is self.standing:
            site.door.hold(block, site.previous, None if isinstance(site.reader, partial) else site.reader)

    def _output_reader(self, site: Any, x: Tensor) -> Any:
        if not fused.AVAILABLE or not fused.supports(x):
            return partial(_output_plainly, site)
        make = partial(torch.zeros, fused.scratch_size(x, site.channel_dim), dtype=torch.float64, device=x.device)
        scratch = lasting(make, x.device, in_graph=site.in_graph)
        return fused.OutputReader(x, site.channel_dim, site.eps, scratch)

    def _geometry_reader(self, site: Any, x: Tensor) -> Any:
        whole = x if fused.supports(x) else x.contiguous()
        is_update = site.before is not None
        if site.rates or not fused.AVAILABLE or not fused.supports(whole) or (is_update and not site.sketched):
            return partial(_geometry_plainly, site)
        sketches = partial(fused.SketchReader, before=site.before) if is_update else fused.SketchReader
        reader = (sketches if site.sketched else fused.GeometryReader)(whole, site.previous)
        return reader if whole is x else lambda x, *where: reader(x.contiguous(), *where)

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
                    self.geometry(note, tensor.detach(), follow)
                continue
            own, measured, flags = zip(*group, strict=True)
            previous = [note.site.previous for note in own] if key[0] else None
            before = [note.site.before for note in own]
            many = self._many_for(fused_many.ManyUpdates, own)
            many(measured, before, previous, flags, self.block, self._reserve(own))

    def _many_for(self, kind: Any, notes: Sequence[Note]) -> Any:
        """The cached tables of an earlier launch for the same tensors; making them costs time."""
        key = kind, len(notes), id(notes[0].site), id(notes[-1].site)
        if key not in self._many:
            if len(self._many) >= KEPT_TABLES:
                self._many.clear()
            self._many[key] = kind()
        return self._many[key]

    def _groups(self, *columns: Sequence[Any]) -> Iterable[tuple[Any, list[tuple[Note, Tensor, bool]]]]:
        """Tensors that one launch can measure together; under None those that must be measured one by one."""
        groups: dict[Any, list[tuple[Note, Tensor, bool]]] = defaultdict(list)
        for note, tensor, follow in zip(*columns, strict=True):
            site = note.site
            alone = site.sketched or not fused.AVAILABLE or not fused.supports(tensor)
            key = None if alone else (site.previous is not None, site.eps if site.rates else None)
            groups[key].append((note, tensor, follow))
        return groups.items()

    def parcels(self) -> list[Parcel]:
        """Return all rows; those that are already being copied come first."""
        for transfer in self._moving:
            transfer.deliver()
        self._moving = []
        return self._empty()

    def collect(self, step: int, tag: int, gaps: int) -> None:
        """Copy the rows that CUDA graphs have written since the last call.

        Args:
            step: the number of the step.
            tag: bits for all of them.
            gaps: how many gaps in recording there were so far.
        """
        if not self._captured:
            return
        lines = [None if note.line is None else (note.line[0], gaps) for note in self._captured]
        of_step = zip(self._captured, lines, strict=True)
        first = self._reserve([note._replace(tag=note.tag | tag, step=step, line=line) for note, line in of_step])
        rows = self.standing[: len(self._captured)]
        self.block[first : first + len(rows)] = rows
        rows.zero_()

    def forget_graphs(self) -> None:
        """All graphs were dropped, except for backward passes that may still run."""
        if self._captured:
            self.standing, self._captured = torch.zeros_like(self.standing), []

    def _place(self, note: Note) -> tuple[Tensor, int]:
        """Where to write a row: at the next place or, in a CUDA graph, at a fixed one."""
        if note.site.in_graph and is_capturing(self.block.device):
            if len(self._captured) == STANDING:
                raise SkippedSample(f"CUDA graphs hold more than {STANDING} measurements")
            self._captured.append(note._replace(tag=note.tag & ~LEAD))  # each run has its own tag
            index = len(self._captured) - 1
            self.standing[index].zero_()
            return self.standing, index
        if len(self.notes) == CAPACITY:
            return self.block, self._reserve([note])
        self.notes.append(note)
        return self.block, len(self.notes) - 1

    def _reserve(self, notes: Sequence[Note]) -> int:
        if len(notes) > len(self.block):
            raise SkippedSample(f"{len(notes)} parameters at once are more than {len(self.block)}")
        if len(self.notes) + len(notes) > len(self.block):
            for transfer in self._moving:  # begun a whole page ago, so this does not wait
                transfer.deliver()
            self._moving = [Transfer(self._empty())]
        first = len(self.notes)
        self.notes.extend(notes)
        return first

    def _empty(self) -> list[Parcel]:
        """A copy of the rows; later writes come after the copy on the device's stream."""
        if not self.notes:
            return []
        self._correct()
        used, notes, self.notes = self.block[: len(self.notes)], self.notes, []
        rows = used.clone()
        used.zero_()
        return [(partial(self._receive, notes), rows)]


def _output_plainly(site: Any, x: Tensor, block: Tensor, index: int) -> None:
    block[index] = reference.output(x, site.channel_dim, site.eps)


def _geometry_plainly(site: Any, x: Tensor, block: Tensor, index: int, follows: bool) -> None:
    if site.before is not None:  # the update
        x = difference(x, site.before)
    if site.sketched:
        block[index] = reference.sketch(x, site.previous, follows)
        return
    block[index] = reference.geometry(x, site.previous if follows else None, site.eps if site.rates else None)
    if site.previous is not None:
        site.previous.copy_(x)
