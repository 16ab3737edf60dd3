"""Rows of CPU tensors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from ..engine.columns import FOLLOWS, UNIT
from ..engine.kernels import host
from .notes import Note, Receive, hand_out
from .precision import HOST, difference
from .transfer import Parcel, Transfer

CAPACITY = 1 << 15
"""How many rows are kept before they are delivered: limits memory between two ticks."""


class HostPage:
    """Rows of CPU tensors, computed at once."""

    def __init__(self, receive: Receive = hand_out) -> None:
        self._receive = receive
        self.rows: list[tuple[float, ...]] = []
        self.notes: list[Note] = []
        self._correction: tuple[float, float] | None = None

    @contextmanager
    def corrected(self, unit: Tensor, follows: Tensor | None = None) -> Iterator[None]:
        """Multiply these columns of all rows that are written inside the block, see :meth:`DevicePage.corrected`."""
        self._correction = float(unit), 1.0 if follows is None else float(follows)
        try:
            yield
        finally:
            self._correction = None

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
        """Measure the gradients of many parameters; if one fails, the others are still measured."""
        for note, tensor, follow in zip(notes, tensors, follows, strict=True):
            note.site.guarded(self.geometry, note, tensor, follow)

    def updates(self, notes: Sequence[Note], tensors: Sequence[Tensor], follows: Sequence[bool]) -> None:
        """Measure how far many parameters have moved."""
        for note, tensor, follow in zip(notes, tensors, follows, strict=True):
            note.site.guarded(self._update, note, tensor, follow)

    def _update(self, note: Note, x: Tensor, follows: bool) -> None:
        site = note.site
        if site.sketched:
            self.geometry(note, difference(x, site.before), follows)
        else:
            self._write(note, host.update(x, site.before, site.previous, follows))

    def collect(self, step: int, tag: int, gaps: int) -> None:
        """Do nothing: there are no CUDA graphs on a CPU."""

    def forget_graphs(self) -> None:
        """Nothing to forget."""

    def _write(self, note: Note, row: tuple[float, ...]) -> None:
        if self._correction is not None:
            unit, follows = self._correction
            row = (*row[:UNIT], row[UNIT] * unit, row[FOLLOWS] * follows, *row[FOLLOWS + 1 :])
        self.rows.append(row)
        self.notes.append(note)
        if len(self.notes) >= CAPACITY:
            Transfer(self.parcels()).deliver()

    def parcels(self) -> list[Parcel]:
        """Return all rows."""
        if not self.notes:
            return []
        rows, notes, self.rows, self.notes = self.rows, self.notes, [], []
        return [(partial(self._receive, notes), torch.tensor(rows, dtype=torch.float64, device=HOST))]
