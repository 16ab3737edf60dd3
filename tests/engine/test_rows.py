"""Rows of all layers at once, sorted by owner, each with the row before it."""

import numpy as np
import pytest

from monitorch.engine.columns import DOT, NONFINITE, SQUARES, UNIT, WIDTH, Column
from monitorch.engine.rows import LastRows, Rows, RowTable

# the owners of rows, table by table
TABLES = {
    "one owner": [[0, 0, 0], [0], [0, 0]],
    "several owners": [[2, 0, 2, 1, 0], [1, 2], [0, 0, 2, 2]],
    "an owner that comes late": [[1, 1], [5, 1], [5, 0, 5]],
    "an owner that misses a table": [[0, 3], [3, 3], [0, 3]],
    "an empty table": [[], [4, 4], [], [4]],
    "many owners": [np.random.default_rng(seed).integers(0, 40, 200).tolist() for seed in range(3)],
}


def numbers(count, seed):
    return np.random.default_rng(seed).normal(size=(count, WIDTH))


class Oracle:
    """The same, row by row: for each owner a list of all its rows."""

    def __init__(self):
        self.seen = {}

    def see(self, owners, rows):
        """Owner, row and row before, by owner; None if there was none."""
        found = {}
        for owner, row in zip(owners, rows, strict=True):
            before = self.seen.setdefault(owner, [])
            found.setdefault(owner, []).append((owner, row, before[-1] if before else None))
            before.append(row)
        return [each for owner in sorted(found) for each in found[owner]]


@pytest.fixture(params=TABLES.values(), ids=TABLES)
def tables(request):
    """Tables, and what an oracle says about each."""
    last, oracle = LastRows(), Oracle()
    found = []
    for seed, owners in enumerate(request.param):
        rows = numbers(len(owners), seed)
        found.append((RowTable(np.array(owners, np.int64), rows.copy(), last), oracle.see(owners, rows), owners, rows))
    return found


def test_rows_are_sorted_by_owner_and_oldest_first(tables):
    for table, expected, owners, rows in tables:
        assert len(table) == len(owners)
        assert table.owners.tolist() == [owner for owner, _, _ in expected]
        assert np.array_equal(table.numbers, np.array([row for _, row, _ in expected]).reshape(-1, WIDTH))
        assert np.array_equal(table.numbers, rows[table.order])


def test_each_row_knows_the_one_before_it_also_across_tables(tables):
    for table, expected, _, _ in tables:
        assert table.is_first.tolist() == [before is None for _, _, before in expected]
        for column in Column:
            found = [0.0 if before is None else before[column] for _, _, before in expected]
            assert table.before(column).tolist() == found


def test_the_last_row_of_an_owner_is_saved_and_goes_on():
    last = LastRows()
    RowTable(np.array([3, 1, 3]), numbers(3, 0), last)
    assert last.row(3) == numbers(3, 0)[2].tolist()
    assert last.row(0) is None  # there is room for it, but nothing in it
    assert last.row(100) is None
    after = LastRows()
    after.set(3, last.row(3))
    table = RowTable(np.array([1, 3]), numbers(2, 1), after)
    assert table.is_first.tolist() == [True, False]
    assert table.before(SQUARES).tolist() == [0.0, numbers(3, 0)[2, SQUARES]]


NAMES = ["b", "a", "c"]


@pytest.fixture
def table():
    """Rows of the owners 0 to 3 in the order 0, 0, 1, 2, 2, 2, 3, after one row of owner 2."""
    last = LastRows()
    RowTable(np.array([2]), numbers(1, 9), last)
    return RowTable(np.array([2, 0, 3, 2, 0, 1, 2]), numbers(7, 0), last)


@pytest.fixture
def rows(table):
    """Those of the owners 0, 2 and 3, which are the layers a, c and b."""
    chosen = np.array([0, 1, 3, 4, 5, 6])
    is_baseline = np.array([True, False, False, True, False, False])
    return Rows(table, chosen, np.array([1, 1, 2, 2, 2, 0]), NAMES, is_baseline)


def test_a_selection_has_the_columns_of_its_rows(rows, table):
    assert len(rows) == 6
    chosen = [0, 1, 3, 4, 5, 6]
    for column in (SQUARES, DOT, UNIT):
        assert rows[column].tolist() == table.numbers[chosen, column].tolist()
        assert rows.before(column).tolist() == table.before(column)[chosen].tolist()
    assert np.array_equal(rows.numbers, table.numbers[chosen])
    assert rows.is_first.tolist() == [True, False, False, False, False, True]


def test_the_row_before_may_be_one_that_was_not_selected(table):
    rows = Rows(table, np.array([4]), np.array([2]), NAMES)
    assert rows.before(SQUARES).tolist() == [table.numbers[3, SQUARES]]
    assert rows.is_baseline.tolist() == [False]


def test_layers_on_their_own_are_the_same_rows(rows):
    parts = rows.by_layer()
    assert [part.names[part.places[0]] for part in parts] == ["a", "c", "b"]
    assert [part.is_baseline.tolist() for part in parts] == [[True, False], [False, True, False], [False]]
    assert all(len(set(part.places.tolist())) == 1 for part in parts)
    for column in Column:
        assert np.concatenate([part[column] for part in parts]).tolist() == rows[column].tolist()
        assert np.concatenate([part.before(column) for part in parts]).tolist() == rows.before(column).tolist()
    assert np.concatenate([part.is_first for part in parts]).tolist() == rows.is_first.tolist()


def test_rows_are_broken_by_what_is_not_finite_and_not_by_what_is_not_known(rows, table):
    table.numbers[:, NONFINITE] = [0.0, 2.0, 0.0, np.nan, np.nan, 0.0, 0.0]  # a sketch does not know how many
    table.numbers[:, SQUARES] = [1.0, 1.0, np.nan, 1.0, np.nan, np.inf, 1.0]
    assert table.is_broken.tolist() == [False, True, True, False, True, True, False]
    assert rows.is_broken.tolist() == [False, True, False, True, True, False]


def test_no_rows_have_no_layers(table):
    rows = Rows(table, np.zeros(0, np.int64), np.zeros(0, np.int64), NAMES)
    assert rows.by_layer() == []
    assert len(rows) == len(rows[SQUARES]) == len(rows.before(DOT)) == 0
