"""Rows of all layers at once, as preprocessors get them.

Each row has an owner: a meter of the engine, or a layer of a preprocessor that is called directly. Rows are sorted by
owner, oldest first, and each knows the row before it, which may have come with an earlier tick.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..numerical.moments import group_ends, group_starts
from .columns import NONFINITE, SQUARES, WIDTH, Column

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]
Mask = NDArray[np.bool_]


class LastRows:
    """The last row of each owner."""

    def __init__(self) -> None:
        self.numbers: Numbers = np.zeros((0, WIDTH))
        self.known: Mask = np.zeros(0, bool)

    def grow(self, size: int) -> None:
        """Make room for this many owners."""
        if size > len(self.known):
            more = max(size, 2 * len(self.known)) - len(self.known)
            self.numbers = np.concatenate([self.numbers, np.zeros((more, WIDTH))])
            self.known = np.concatenate([self.known, np.zeros(more, bool)])

    def row(self, owner: int) -> list[float] | None:
        """The last row of an owner, to be saved; None if there was none."""
        return self.numbers[owner].tolist() if owner < len(self.known) and self.known[owner] else None

    def set(self, owner: int, row: Sequence[float]) -> None:
        """Continue after a saved row."""
        self.grow(owner + 1)
        self.numbers[owner, : len(row)] = row  # older releases had fewer columns
        self.known[owner] = True


def are_broken(rows: Numbers) -> Mask:
    """Which rows are of tensors with elements that are not finite."""
    broken: Mask = (rows[:, NONFINITE] > 0) | ~np.isfinite(rows[:, SQUARES])
    return broken


class RowTable:
    """Rows sorted by owner, oldest first.

    Args:
        owners: the owner of each row.
        numbers: the rows, in the order in which they were measured.
        last: the last rows of earlier tables; these rows become the last ones.
        steps: how many steps had ended when each row was measured; None if steps are not counted.
    """

    def __init__(self, owners: Places, numbers: Numbers, last: LastRows, steps: Places | None = None) -> None:
        order = np.argsort(owners, kind="stable")
        self.order, self.owners, self.numbers = order, owners[order], numbers[order]
        self.steps = np.zeros(len(order), np.int64) if steps is None else steps[order]
        last.grow(int(self.owners[-1]) + 1 if len(order) else 0)
        self._starts = group_starts(self.owners)
        self._first_owners = self.owners[self._starts]
        self._last_numbers = last.numbers[self._first_owners]
        self.is_first: Mask = np.zeros(len(order), bool)
        """Which rows are the first ones of their owner."""
        self.is_first[self._starts] = ~last.known[self._first_owners]
        ends = group_ends(self._starts, len(order)) - 1
        last.numbers[self._first_owners] = self.numbers[ends]
        last.known[self._first_owners] = True

    def __len__(self) -> int:
        return len(self.owners)

    @cached_property
    def is_broken(self) -> Mask:
        """Which rows are of tensors with elements that are not finite; their number may not be known."""
        return are_broken(self.numbers)

    def before(self, column: int) -> Numbers:
        """A column of the row before each; 0 if there was none."""
        found = np.empty(len(self))
        found[1:] = self.numbers[:-1, column]
        found[self._starts] = self._last_numbers[:, column]
        return found


class Rows:
    """The rows that one preprocessor asked for: ``rows[SQUARES]`` is a column, one number for each row.

    Args:
        chosen: which rows of the table they are.
        places: the layer of each, as a place in ``names``.
        is_baseline: which rows only serve to compare the next one with; they give no sample.
        is_first: which rows are the first ones of their layer; those of their owner, if None.
        lacks: columns that were not requested and so are missing.
    """

    def __init__(
        self,
        table: RowTable,
        chosen: Places,
        places: Places,
        names: Sequence[str],
        is_baseline: Mask | None = None,
        is_first: Mask | None = None,
        lacks: frozenset[Column] = frozenset(),
    ) -> None:
        self._lacks = lacks
        self._table, self._chosen = table, chosen
        self.places, self.names = places, names
        self.is_baseline: Mask = np.zeros(len(chosen), bool) if is_baseline is None else is_baseline
        self.is_first: Mask = table.is_first[chosen] if is_first is None else is_first
        """Which rows are the first ones of their layer in this run."""

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, column: Column) -> Numbers:
        """One column."""
        if column in self._lacks:
            raise OptionError(
                f"{column.name} was not requested, so these rows do not have it; it is in rows of: {column.of}"
            )
        found: Numbers = self._table.numbers[self._chosen, column]
        return found

    @property
    def is_broken(self) -> Mask:
        """Which rows are of tensors with elements that are not finite."""
        return self._table.is_broken[self._chosen]

    @property
    def steps(self) -> Places:
        """How many steps had ended when each row was measured: those of one step have the same number."""
        return self._table.steps[self._chosen]

    def before(self, column: Column) -> Numbers:
        """The same column of the row before each, whether that was observed or not; 0 if there was none."""
        return self._table.before(column)[self._chosen]

    @property
    def numbers(self) -> Numbers:
        """All columns, one row each."""
        return self._table.numbers[self._chosen]

    def by_layer(self) -> list["Rows"]:
        """The same rows, each layer on its own."""
        starts = group_starts(self.places)
        parts = zip(starts, group_ends(starts, len(self)), strict=True)
        return [self._part(slice(start, stop)) for start, stop in parts]

    def _part(self, part: slice) -> "Rows":
        flags = self.is_baseline[part], self.is_first[part]
        return Rows(self._table, self._chosen[part], self.places[part], self.names, *flags, self._lacks)
