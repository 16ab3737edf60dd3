"""What CUDA graphs have compared with something too old is told from what follows the row before."""

from types import SimpleNamespace

import pytest
import torch

from monitorch.engine.buffers import Note, cut
from monitorch.engine.columns import FOLLOWS, UNIT, WIDTH


@pytest.mark.parametrize(
    ("lines", "follows"),
    [
        ([(1, 0), (1, 0), (1, 0)], [0, 1, 1]),
        ([(1, 0), (1, 1), (1, 1)], [0, 0, 1]),
        ([(1, 0), (2, 0), (1, 0), (1, 0)], [0, 0, 0, 1]),
        ([None, None], [1, 1]),
        ([], []),
    ],
    ids=["one line", "a gap", "another shape in between", "not in a graph", "nothing"],
)
def test_rows_are_compared_along_a_line(lines, follows):
    site, rows = SimpleNamespace(line=None), torch.ones(len(lines), WIDTH)
    cut([Note(site, 3, step, line=line) for step, line in enumerate(lines)], rows)
    assert rows[:, FOLLOWS].tolist() == follows


def test_a_graph_that_has_not_run_breaks_no_line():
    site, rows = SimpleNamespace(line=(1, 0)), torch.ones(3, WIDTH)
    rows[1, UNIT] = 0
    cut([Note(site, 3, 0, line=line) for line in ((1, 0), (2, 0), (1, 0))], rows)
    assert rows[:, FOLLOWS].tolist() == [1, 1, 1]
