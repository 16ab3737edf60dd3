"""Spreads of several tensors at once, compared with NumPy in float64."""

import warnings

import numpy as np
import pytest
import torch

from monitorch.numerical.spread import device_deviations, norms_of_each, relative_spreads, squares_by_row

stream = np.random.default_rng(5)
CASES = {
    "tables": stream.normal(size=(3, 16, 8)),
    "images": stream.normal(size=(2, 4, 3, 5, 6)) + 2,
    "far from zero": stream.normal(size=(2, 9, 5)) + 300,
    "long": stream.normal(size=(1, 9000, 2)),
    "wide": stream.normal(size=(1, 3, 9000)),
    "one of them zero": np.stack([np.zeros((4, 4)), stream.normal(size=(4, 4))]),
    "huge": stream.normal(size=(2, 4, 4)) * 1e30,
    "tiny": stream.normal(size=(2, 4, 4)) * 1e-30,
}


def expected(x, axis):
    scale = np.sqrt((x**2).mean(axis=tuple(range(1, x.ndim))))
    return [own.std(axis=axis - 1).mean() / size if size else 0.0 for own, size in zip(x, scale.tolist(), strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_spreads_are_those_of_numpy(name, dtype):
    x = torch.tensor(CASES[name], dtype=dtype)
    for axis in range(1, x.dim()):
        assert relative_spreads(x, axis) == pytest.approx(expected(x.double().numpy(), axis), rel=1e-4)


@pytest.mark.parametrize("name", ["tables", "images", "far from zero", "long"])
def test_other_devices_have_the_same_definition(name):
    x = torch.tensor(CASES[name])
    found = device_deviations(x, 1)
    assert found.tolist() == pytest.approx([own.std(axis=0).mean() for own in CASES[name]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_widened_first(dtype):
    x = torch.tensor(CASES["tables"]).to(dtype)
    assert relative_spreads(x, 1) == pytest.approx(expected(x.double().numpy(), 1), rel=1e-5)


def test_numbers_that_are_not_finite_stay_so_and_leave_the_others_alone():
    x = torch.tensor(CASES["tables"])
    x[1, 2, 3], x[2, 2, 3] = torch.nan, torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = relative_spreads(x, 1)
    assert found[0] == pytest.approx(expected(CASES["tables"], 1)[0])
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1.0, 1e30, 1e200])
def test_norms_neither_overflow_nor_vanish(scale):
    x = stream.normal(size=(3, 4, 5))
    assert norms_of_each(x * scale) == pytest.approx(np.linalg.norm(x.reshape(3, -1), axis=1) * scale)


def test_squares_by_row_without_vecdot(monkeypatch):
    rows = stream.standard_normal((5, 7), dtype=np.float32)
    expected_squares = (rows.astype(np.float64) ** 2).sum(axis=1)
    assert np.allclose(squares_by_row(rows), expected_squares)
    monkeypatch.delattr(np, "vecdot", raising=False)
    assert np.allclose(squares_by_row(rows, np.empty(5)), expected_squares)
