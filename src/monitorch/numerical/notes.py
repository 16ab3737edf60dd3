"""What belongs to a row of raw sums: its site, and the pass it comes from."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..engine.columns import FOLLOWS, SIZE, SQUARES, UNIT

Rows = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAD = 4
"""Bit of a tag above those for the kind of the pass: the row is kept only to compare the next one with it."""

OWN, SHARED = -1, 0
"""Which part of a tensor is measured here: one that only this process has; or the whole, which every process has."""


class Site(Protocol):
    """Receives the rows of one tensor of one layer, and keeps what the next pass is compared with."""

    eps: float
    channel_dim: int | None
    rates: bool
    sketched: bool
    previous: Tensor | None
    before: Tensor | None
    reader: Any
    in_graph: bool
    door: Any
    line: tuple[int, int] | None
    key: tuple[Any, ...]

    def knows(self, x: Tensor) -> bool:
        """Whether the reader works for ``x``."""

    def guarded(self, action: Callable[..., Any], *data: Any) -> Any:
        """Call ``action``; errors are reported, not raised."""

    def deliver(self, rows: Rows, tags: Sequence[int]) -> None:
        """Take rows, oldest first."""


class Note(NamedTuple):
    """Which pass a row comes from, and with several processes which part: rows of one part are copies."""

    site: Any
    tag: int
    step: int
    part: int = OWN
    alive: Tensor | None = None
    """Which channels are active, if processes count dead channels together."""
    line: tuple[int, int] | None = None
    """With CUDA graphs: rows of a site are compared only along one line, see :func:`cut`."""


Receive = Callable[[Sequence[Note], Tensor], None]
"""A function that takes rows and their notes on the CPU."""


def lengths(rows: Rows, *, by_size: bool = False) -> Rows:
    """The norm behind each row, with ``by_size`` divided by the root of the number of elements."""
    found: Rows = np.sqrt(rows[:, SQUARES]) * rows[:, UNIT]
    return found / np.sqrt(np.maximum(rows[:, SIZE], 1)) if by_size else found


def cut(notes: Sequence[Note], rows: Tensor) -> None:
    """Undo comparisons of CUDA graphs with anything older than the row before.

    Such a graph compares with what is in its memory. Whether that is the last tensor is known only here: there may have
    been a gap, or a graph for another shape, with its own memory, may have run in between.
    """
    was_written = rows[:, UNIT].numpy() != 0
    for place, note in enumerate(notes):
        if note.line is not None and was_written[place]:
            if note.line != note.site.line:
                rows[place, FOLLOWS] = 0
            note.site.line = note.line


def hand_out(notes: Sequence[Note], rows: Tensor) -> None:
    """Deliver rows to the sites in their notes."""
    numbers: Rows = rows.double().numpy()
    places: dict[int, list[int]] = defaultdict(list)
    for place, note in enumerate(notes):
        if numbers[place, UNIT]:  # otherwise it was never written: its kernel failed, or its graph did not run
            places[id(note.site)].append(place)
    for own in places.values():
        notes[own[0]].site.deliver(numbers[own], [notes[place].tag for place in own])
