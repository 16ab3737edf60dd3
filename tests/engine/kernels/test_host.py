import math
import threading

import numpy as np
import pytest
import torch

from monitorch.engine.columns import NOTHING_MORE, ON_REQUEST, SQUARES, WIDTH, Column
from monitorch.engine.kernels import host, host_pieces, reference
from monitorch.engine.kernels.reference import SKETCH
from tests.marks import slow

# what float32 sums over a few pieces may lose
PRECISION = 3e-6


@pytest.fixture(params=[host_pieces.PIECE, 40], ids="pieces of {}".format)
def piece(request, monkeypatch):
    monkeypatch.setattr(host_pieces, "PIECE", request.param)


def same(first, second):
    return torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0)) and torch.equal(first.isnan(), second.isnan())


def like(x):
    """A copy in memory of its own, in the layout of ``x`` where that is dense."""
    return torch.empty_like(x).copy_(x)


@pytest.mark.parametrize("channel_dim", [None, 1, slow(-1), 2])
@pytest.mark.usefixtures("piece")
def test_output(cases, channel_dim, exact, assert_row):
    for name, (x, _) in cases().items():
        if channel_dim == 2 and x.dim() < 4:
            continue
        row = host.output(x, channel_dim, 0.3)
        eps = None if channel_dim is None else 0.3
        assert_row(row, exact(x, None, eps, channel_dim, batch=True), PRECISION, name)


@pytest.mark.parametrize(("eps", "follows"), [(None, True), (0.3, False), slow(None, False), slow(0.3, True)])
@pytest.mark.usefixtures("piece")
def test_geometry(cases, eps, follows, exact, assert_row):
    for name, (x, past) in cases().items():
        wanted = exact(x, past if follows else None, eps)
        for previous in like(past), past.clone(memory_format=torch.contiguous_format):
            assert_row(host.geometry(x, previous, follows, eps), wanted, PRECISION, name)
            assert same(previous, x), name
        assert_row(host.geometry(x, None, follows, eps), exact(x, None, eps), PRECISION, name)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.usefixtures("piece")
def test_update(cases, follows, exact, assert_row):
    for name, (x, y) in cases().items():
        if x.dtype == torch.int64:
            continue
        wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        way, past = x.to(wide) - y.to(wide), y.flip(0).to(wide)
        wanted = exact(way, past if follows else None)
        for copy in like, torch.Tensor.contiguous:
            before, previous = copy(y.clone()), copy(past.clone())
            assert_row(host.update(x, before, previous, follows), wanted, PRECISION, name)
            assert same(before, y), name
            assert same(previous, way), name
        assert_row(host.update(x, like(y), None, follows), exact(way), PRECISION, name)


@pytest.mark.parametrize("x", [torch.tensor(-2.0), torch.tensor([0.0, -2.0, 0.1]), torch.tensor([True, False])])
@pytest.mark.usefixtures("piece")
def test_rows_of_scalars_and_vectors(x, exact, assert_row):
    previous = x.clone()
    assert_row(host.geometry(x, previous, True, 0.5), exact(x, x, 0.5), PRECISION)
    changed = ~x if x.dtype == torch.bool else 3 * x
    assert_row(host.geometry(changed, previous, True, 0.5), exact(changed, x, 0.5), PRECISION)
    assert torch.equal(previous, changed)


def test_sparse_gradients(exact, assert_row):
    dense, past = torch.tensor([[0.0, 3.0], [0.0, 0.0]]), torch.ones(2, 2)
    previous = past.clone()
    assert_row(host.geometry(dense.to_sparse(), previous, True, 0.1), exact(dense, past, 0.1), PRECISION)
    assert torch.equal(previous, dense)


def test_lazy_negation_and_graph(exact, assert_row):
    x = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert_row(host.output(x, 1, 0.1), exact(x, None, 0.1, 1, batch=True), PRECISION)
    weight = torch.nn.Parameter(torch.randn(4, 5))
    before, previous = torch.randn(2, 4, 5)
    wanted = exact(weight - before, previous)
    assert_row(host.update(weight, before, previous, True), wanted, PRECISION)
    assert not previous.requires_grad


@pytest.mark.parametrize(
    "shape", [(3, 7, 30, 40), (1, 300, 300), (130, 520), (70_000, 1), (2, 70_000), (3, 5, 7, 9, 2)]
)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.usefixtures("piece")
def test_many_pieces(shape, channels_last, exact, assert_row):
    torch.manual_seed(0)
    x, y = torch.randn(2, *shape).relu() - 0.001
    x[-1] = 0
    if channels_last and len(shape) == 4:
        x, y = (t.to(memory_format=torch.channels_last) for t in (x, y))
    for channel_dim in range(1, len(shape)):
        row = host.output(x, channel_dim, 0.5)
        assert_row(row, exact(x, None, 0.5, channel_dim, batch=True), 1e-5, channel_dim)
    wanted = exact(x, y, 0.5)
    assert_row(host.geometry(x, y, True, 0.5), wanted, 1e-5)
    assert torch.equal(x, y)


@pytest.mark.parametrize("eps", [0.1, 0.3, 1e-3, 1e-50, 1e39, 3.4028234663852886e38, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_eps_is_not_rounded(eps, dtype, exact, assert_row):
    """Neighbours of eps fall on the right side, as in float64."""
    near = torch.tensor([eps, -eps, 0.0, torch.finfo(dtype).max], dtype=torch.float64).to(dtype)
    x = torch.cat([near, torch.nextafter(near.float(), torch.tensor(0.0)).to(dtype)]).reshape(2, 4)
    assert_row(host.output(x, 1, eps), exact(x, None, eps, 1, batch=True), PRECISION)
    assert_row(host.geometry(x, None, False, eps), exact(x, None, eps), PRECISION)


def test_row_is_of_floats():
    x, previous, state = torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2, SKETCH)
    rows = host.output(x, 1, 0.1), host.geometry(x, previous, True, 0.1), host.update(x, x.clone(), None, False)
    for row in (*rows, host.sketch(x, state, True)):
        assert isinstance(row, tuple)
        assert [type(number) for number in row] == [float] * WIDTH


@pytest.mark.parametrize("make", [torch.randn, torch.zeros, lambda *shape: torch.full(shape, 1e30)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_columns_on_request_the_others_stay(make, dtype):
    x, past, before = (make(300, 400).to(dtype) for _ in range(3))
    for measure in (
        lambda **options: host.output(x, 1, 0.1, **options),
        lambda **options: host.output(x, None, 0.1, **options),
        lambda **options: host.geometry(x, past.clone(), True, 0.0, **options),
        lambda **options: host.geometry(x, None, False, None, **options),
        lambda **options: host.update(x, before, past.to(torch.float32, copy=True), True, **options),
        lambda **options: host.sketch(x, torch.zeros(2, SKETCH), False, **options),
    ):
        wanted, row = measure(), measure(wanted=NOTHING_MORE)
        others = [column for column in Column if column.of != ON_REQUEST]
        assert [row[column] for column in others] == [wanted[column] for column in others]


def test_threads_do_not_share_buffers(exact, assert_row):
    tensors = [torch.randn(50, 60).bfloat16() for _ in range(4)]
    rows = {}

    def measure(i):
        rows[i] = [host.geometry(tensors[i], tensors[i].clone(), True, 0.5) for _ in range(20)]

    threads = [threading.Thread(target=measure, args=(i,)) for i in range(len(tensors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(tensors):
        for row in rows[i]:
            assert_row(row, exact(x, x, 0.5), PRECISION)


def test_sketch_is_that_of_the_reference(cases):
    for name, pair in cases().items():
        rows, states = assert_same_sketches(pair)
        scale = np.sqrt(np.abs(rows[0][:, 0]).prod()) + 1e-300
        assert np.allclose(rows[0][:, [0, 1]] / scale, rows[1][:, [0, 1]] / scale, atol=1e-5, equal_nan=True), name
        assert np.array_equal(rows[0][:, 2:], rows[1][:, 2:]), name
        assert not states[:, 1].any(), name


@pytest.mark.parametrize("blocks", [1, 3, 16])
@pytest.mark.parametrize("size", [1, SKETCH - 1, SKETCH, 5 * SKETCH, 40 * SKETCH + 77])
def test_sketch_of_many_blocks(blocks, size, monkeypatch):
    monkeypatch.setattr(host_pieces, "PIECE", blocks * SKETCH)
    rows, states = assert_same_sketches(torch.randn(2, size))
    assert np.allclose(*rows, rtol=1e-5, atol=1e-6 * size)
    assert torch.allclose(states[0], states[1], atol=1e-4)


def assert_same_sketches(pair):
    """Rows and states of host and reference after a tensor and the one that follows it."""
    states = torch.zeros(2, 2, SKETCH)
    rows = [
        np.array([list(kernel(x, state, follows)) for x, follows in zip(pair, (False, True), strict=True)])
        for kernel, state in zip((host.sketch, reference.sketch), states, strict=True)
    ]
    return [np.where(np.isfinite(numbers), numbers, np.nan) for numbers in rows], states


def test_lengths_of_many_tensors_are_the_rows_of_each():
    torch.manual_seed(0)
    odd = torch.full((3, 4), 1e30), torch.full((5,), 1e-30), torch.zeros(2, 2), torch.tensor([1.0, math.nan])
    tensors = [torch.randn(3, 4), torch.randn(5, 2).T, torch.randn(20_000), torch.ones(()), torch.zeros(0), *odd]
    tensors += [torch.randn(6).to(dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)]
    rows = host.lengths(tensors)
    for row, x in zip(rows, tensors, strict=True):
        np.testing.assert_allclose(row, host.geometry(x, None, False, None, NOTHING_MORE), rtol=1e-6)


@pytest.mark.parametrize("blocks", [1, 16])
def test_sketched_updates_are_those_of_the_reference(blocks, cases, monkeypatch):
    monkeypatch.setattr(host_pieces, "PIECE", blocks * SKETCH)
    for name, (x, y) in cases().items():
        if x.numel():
            assert_same_updates(x, y, name)


@pytest.mark.parametrize("size", [SKETCH, 40 * SKETCH + 77])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sketched_updates_of_many_blocks(size, dtype):
    torch.manual_seed(0)
    assert_same_updates(*torch.randn(2, size).to(dtype), "")


def assert_same_updates(x, y, name):
    """Two steps, to ``y`` and back, with both kernels."""
    states = torch.zeros(2, 2, SKETCH, dtype=torch.float64)
    for step, (before, after) in enumerate([(x, y), (y, x)]):
        rows = []
        for kernels, state in zip((host, reference), states, strict=True):
            kernels.keep_sketch(before, state)
            rows.append([float(number) for number in kernels.sketched_update(after, state, step > 0)])
        found, wanted = np.where(np.isfinite(rows), rows, np.nan)
        scale = abs(wanted[SQUARES]) or 1.0
        np.testing.assert_allclose(found[:2] / scale, wanted[:2] / scale, rtol=0, atol=1e-9, err_msg=name)
        np.testing.assert_array_equal(found[2:], wanted[2:], err_msg=name)
