import math
from itertools import product

import numpy as np
import pytest
import torch

from monitorch.engine.columns import DOT, FOLLOWS, LARGEST, NONFINITE, SIZE, SQUARES, UNIT, Column
from monitorch.engine.kernels import reference
from monitorch.engine.kernels.reference import SIGNS, SKETCH
from tests.marks import slow, some_fast

PRECISION = 1e-12


@pytest.mark.parametrize("channel_dim", [None, 1, -1])
def test_output(cases, channel_dim, exact, assert_row):
    for name, (x, _) in cases().items():
        eps = None if channel_dim is None else 0.3
        row = reference.output(x, channel_dim, 0.3)
        assert_row(row.tolist(), exact(x, None, eps, channel_dim, batch=True), PRECISION, name)


@pytest.mark.parametrize("eps", [None, 0.0, 0.3])
@pytest.mark.parametrize("follows", [False, True])
def test_geometry(cases, eps, follows, exact, assert_row):
    for name, (x, previous) in cases().items():
        previous = previous if follows else None
        assert_row(reference.geometry(x, previous, eps).tolist(), exact(x, previous, eps), PRECISION, name)


@pytest.mark.parametrize("x", [torch.tensor(-2.0), torch.tensor([0.0, -2.0, 0.1]), torch.tensor([True, False])])
def test_rows_of_scalars_and_vectors(x, exact, assert_row):
    assert_row(reference.geometry(x, x, 0.5).tolist(), exact(x, x, 0.5), PRECISION)


def test_sparse_and_conjugate_and_graph(exact, assert_row):
    dense = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
    assert_row(reference.geometry(dense.to_sparse(), dense, 0.1).tolist(), exact(dense, dense, 0.1), PRECISION)
    z = torch.randn(3, 4, dtype=torch.complex64)
    assert_row(reference.geometry(z.conj(), z, 0.1).tolist(), exact(z.conj(), z, 0.1), PRECISION)
    assert not reference.output(torch.ones(2, 3, requires_grad=True), 1, 0.1).requires_grad


def test_what_a_dead_channel_is():
    x = torch.tensor([[[0.0, 1.0], [0.1, -0.1]], [[0.0, 0.0], [0.0, 0.0]]])
    active, dead, channels = reference.output(x, 1, 0.1)[6:9].tolist()
    # 0.1 in float32 is a little more than in float64
    assert (active, dead, channels) == (3, 0, 2)
    assert reference.output(x, 1, 0.11)[6:9].tolist() == [1, 1, 2]
    assert reference.output(x, -1, 0.11)[6:9].tolist() == [1, 1, 2]


def by_hand(numbers):
    sketch = [0.0] * SKETCH
    for i, number in enumerate(numbers):
        block, place = divmod(i, SKETCH)
        h = block * 2654435761 % 2**32
        h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
        h ^= h >> 13
        sign = SIGNS[(h % 65536 // 2 * 2 + place) % 65536].item() * (-1) ** (h >> 16)
        sketch[(place + (h >> 21) * 2) % SKETCH] += number * sign
    return np.array(sketch)


@pytest.mark.parametrize("size", [1, 100, SKETCH, 3 * SKETCH + 5])
def test_sketch_by_hand(size, exact, assert_row):
    x, y = torch.randn(2, size)
    state = torch.zeros(2, SKETCH)
    assert_row(reference.sketch(x, state, False).tolist(), exact(x), PRECISION)
    assert np.allclose(state[0], by_hand(x.tolist()), atol=1e-6)
    row = reference.sketch(y, state, True)
    assert row[1].item() == pytest.approx(by_hand(x.tolist()) @ by_hand(y.tolist()), abs=1e-4 * size**0.5)
    assert row[3] == 1
    assert np.allclose(state[0], by_hand(y.tolist()), atol=1e-6)
    assert not state[1].any()


def test_sketch_of_huge_float64_is_in_units():
    x = torch.randn(50, dtype=torch.float64) * 1e200
    state = torch.zeros(2, SKETCH)
    reference.sketch(x, state, False)
    row = reference.sketch(x, state, True)
    assert row[1].item() == pytest.approx(row[0].item(), rel=1e-6)


def test_sketch_goes_by_memory():
    x = torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last)
    states = torch.zeros(2, 2, SKETCH)
    reference.sketch(x, states[0], False)
    reference.sketch(x.permute(0, 2, 3, 1).contiguous(), states[1], False)
    assert torch.equal(*states)


def test_sketch_of_nothing():
    state = torch.ones(2, SKETCH)
    assert reference.sketch(torch.empty(0, 3), state, True).tolist() == [float(column == UNIT) for column in Column]


def one_column(rows, column, width=768):
    x = torch.zeros(rows, width)
    x[:, column] = torch.randn(rows)
    return x


def one_row(rows):
    x = torch.zeros(rows, 768)
    x[torch.randint(rows, ())] = torch.randn(768)
    return x


INPUTS = {
    "random": lambda: torch.randn(100, 768),
    "far from zero": lambda: torch.randn(100, 768) + 1,
    "sparse": lambda: torch.randn(100, 768) * (torch.rand(100, 768) < 0.01),
    "a few large": lambda: torch.randn(100, 768) ** 9,
    "one row": lambda: one_row(100),
    "one column": lambda: one_column(400, 5),
    "one column, odd width": lambda: one_column(400, 5, 767),
}


@pytest.mark.parametrize(
    ("name", "alike"),
    some_fast(
        product(INPUTS, (0.0, 0.9)), lambda *case: case in (("random", 0.9), ("sparse", 0.0), ("one column", 0.0))
    ),
)
def test_estimate_is_unbiased_and_close(name, alike):
    """Cosines of many pairs: errors are 0 on average, and no larger than the buckets allow."""
    make = INPUTS[name]
    torch.manual_seed(0)
    errors = []
    for _ in range(60):
        x = make()
        y = alike * x + math.sqrt(1 - alike**2) * make()
        state = torch.zeros(2, SKETCH)
        length = reference.sketch(x, state, False)[0].sqrt()
        row = reference.sketch(y, state, True)
        errors.append(((row[1] - (x.double() * y.double()).sum()) / (length * row[0].sqrt())).item())
    # elements of one column, if it stays on an even place, are added to every other bucket only
    bound = math.sqrt(2 / (SKETCH / 2 if name == "one column" else SKETCH))
    assert np.std(errors) < 1.2 * bound
    # signs are drawn once: what they share over all pairs stays within the bound, too
    assert abs(np.mean(errors)) < bound


SPREAD = 3 * math.sqrt(2 / SKETCH)


# many blocks come with many that meet the same signs in the same buckets: these must not all add up
@pytest.mark.parametrize(("rows", "allowed"), [(1, SPREAD), (100, SPREAD), (2000, SPREAD), slow(21_875, 0.02)])
def test_length_of_a_constant_from_its_sketch(rows, allowed):
    x = torch.ones(rows, 768)
    state = torch.zeros(2, SKETCH)
    reference.sketch(x, state, False)
    assert reference.sketch(x, state, True)[1].item() == pytest.approx(x.numel(), rel=allowed)


def moved(x, way, state, follows=False):
    """The row of a step along a way."""
    reference.keep_sketch(x, state)
    return reference.sketched_update(x + way, state, follows)


@pytest.mark.parametrize("size", [1, 100, SKETCH, 3 * SKETCH + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sketched_update_by_hand(size, dtype):
    x, first, second = torch.randn(3, size, dtype=dtype)
    state = torch.zeros(2, SKETCH, dtype=torch.float64)
    rows = [moved(x, first, state), moved(x, second, state, follows=True)]
    sketches = [by_hand((x + way).double().numpy() - x.double().numpy()) for way in (first, second)]
    lengths = [(row[SQUARES].sqrt() * row[UNIT]).item() for row in rows]
    assert lengths == pytest.approx([np.linalg.norm(sketch) for sketch in sketches], rel=1e-9)
    assert (rows[1][DOT] * rows[0][UNIT] * rows[1][UNIT]).item() == pytest.approx(np.dot(*sketches), abs=1e-9 * size)
    assert [row[FOLLOWS] for row in rows] == [0, 1]
    assert rows[1][SIZE] == size
    assert rows[1][[NONFINITE, LARGEST]].isnan().all()  # nobody knows


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_sketched_updates_of_float64_are_in_units(scale):
    x = torch.zeros(5000, dtype=torch.float64)
    state, way = torch.zeros(2, SKETCH, dtype=torch.float64), torch.randn(5000, dtype=torch.float64)
    rows = [moved(x, scale * way, state), moved(x, scale * way, state, follows=True)]
    assert (rows[1][DOT] / rows[1][SQUARES]).item() == pytest.approx(1.0, rel=1e-9)
    length = rows[1][SQUARES].sqrt() * (rows[1][UNIT] / scale)
    assert length.item() == pytest.approx(np.linalg.norm(way), rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_no_update_is_exactly_zero(dtype):
    x, state = (1e3 * torch.randn(300, 200)).to(dtype), torch.zeros(2, SKETCH, dtype=torch.float64)
    assert moved(x, torch.zeros_like(x), state)[SQUARES] == 0
