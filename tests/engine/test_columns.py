"""One declaration says which columns a row has, in what order, in which unit and how they are merged."""

import numpy as np
import pytest
import torch

from monitorch.engine import columns
from monitorch.engine.columns import DOT, FOLLOWS, LARGEST, SQUARES, UNIT, WIDTH, Column, Merge
from monitorch.engine.kernels import host, reference


@pytest.mark.parametrize("column", Column, ids=lambda column: column.name)
def test_every_column_is_declared_whole(column):
    assert isinstance(column.merge, Merge)
    assert column.power in (0, 1, 2)
    assert column.holds
    assert column.of
    assert getattr(columns, column.name) is column


def test_columns_are_numbered_in_the_order_of_their_declarations():
    assert [int(column) for column in Column] == list(range(WIDTH))
    assert len(Column) == WIDTH


def test_a_row_is_as_wide_as_there_are_columns():
    x = torch.ones(2, 3)
    assert reference.geometry(x, None, None).shape == reference.output(x, 1, 0.0).shape == (WIDTH,)
    assert len(host.geometry(x, None, False, None)) == len(host.output(x, 1, 0.0)) == WIDTH


def test_what_is_not_a_sum_is_known():
    others = {column: column.merge for column in Column if column.merge is not Merge.SUM}
    assert others == {UNIT: Merge.LARGEST, FOLLOWS: Merge.SMALLEST, LARGEST: Merge.LARGEST}


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_the_power_of_the_unit_is_that_of_the_declaration(scale):
    x = torch.linspace(-3, 5, 12, dtype=torch.float64).reshape(3, 4)
    usual, scaled = (reference.geometry(factor * x, factor * x, 0.0).numpy() for factor in (1.0, scale))
    assert usual[UNIT] != scaled[UNIT]
    for column in set(Column) - {UNIT, LARGEST}:
        found = scaled[column] * (scaled[UNIT] / scale) ** column.power
        assert found == pytest.approx(usual[column] * usual[UNIT] ** column.power, rel=1e-9), column.name
    assert scaled[LARGEST] == pytest.approx(usual[LARGEST] * scale)  # a value as it is, in no unit
    assert {column for column in Column if column.power} == {SQUARES, DOT, UNIT}


def test_parts_merged_by_the_declaration_are_the_whole():
    x = torch.randn(6, 5)  # float32 needs no unit
    whole, *parts = (reference.geometry(part, part, None).numpy() for part in (x, x[:2], x[2:]))
    reduce = {Merge.SUM: np.add, Merge.LARGEST: np.maximum, Merge.SMALLEST: np.minimum}
    merged = [reduce[column.merge](*(part[column] for part in parts)) for column in Column]
    assert merged == pytest.approx(whole.tolist(), rel=1e-12)
