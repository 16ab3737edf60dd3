"""Tensors that are hard to measure, and the row of each from NumPy in float64."""

import math

import numpy as np
import pytest
import torch

SHAPE = 4, 6, 5, 3
DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.int64

LAYOUTS = {
    "contiguous": lambda make: make(SHAPE),
    "channels_last": lambda make: make(SHAPE).to(memory_format=torch.channels_last),
    "transposed": lambda make: make(SHAPE[::-1]).permute(3, 2, 1, 0),
    "rows inside": lambda make: make((6, 5, 4, 3)).permute(2, 0, 1, 3),
    "sliced": lambda make: make((4, 12, 5, 3))[:, ::2],
    "offset": lambda make: make((5, 6, 5, 3))[1:],
    "expanded": lambda make: make((4, 1, 5, 3)).expand(SHAPE),
    "empty": lambda make: make((0, 6, 5, 3)),
    "no elements": lambda make: make((4, 0, 3)),
}


def _with(number):
    def change(x):
        x.view(-1)[3:5] = number
        return x

    return change


def _dead(x):
    x[:, :2] = 0
    return x.clamp(min=0)


VALUES = {
    "plain": lambda x: x,
    "dead": _dead,
    "zero": torch.zeros_like,
    "negative": lambda x: -x.abs(),
    "ones": torch.ones_like,
    "nan": _with(math.nan),
    "inf": _with(math.inf),
    "minus inf": _with(-math.inf),
    "only nan": lambda x: torch.full_like(x, math.nan),
    "huge": lambda x: x * 1e30,
    "tiny": lambda x: x * 1e-30,
    "vanishing": lambda x: x * 1e-15,
    "largest": lambda x: x.sign() * 3.3e38,
    "smallest": lambda x: x.sign() * 1.2e-38,
    "mixed": lambda x: x * 10 ** (20 * torch.rand_like(x) - 10),
    "far apart": lambda x: _with(1e25)(x * 1e-25),
}
BEYOND = {"huge": lambda x: x * 1e200, "tiny": lambda x: x * 1e-200}


def _maker(dtype, change):
    def make(shape):
        x = torch.randn(shape, dtype=torch.float64)
        if not dtype.is_complex:
            return (change(x) if x.numel() else x).to(dtype)
        return torch.complex(*(change(part) if part.numel() else part for part in (x, torch.randn_like(x)))).to(dtype)

    return make


def _by_pace(dtype):
    """Long and short floats and complex numbers stand for the others, which are slow tests."""
    quick = dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
    return pytest.param(dtype, marks=[] if quick else [pytest.mark.slow])


@pytest.fixture(params=map(_by_pace, DTYPES), ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=LAYOUTS)
def cases(request, dtype):
    """Pairs of tensors of one dtype and layout, by the kind of their numbers."""

    def build():
        torch.manual_seed(0)
        names = VALUES if dtype != torch.int64 else ("dead", "zero", "negative", "ones")
        changes = {name: VALUES[name] for name in names} | (BEYOND if dtype == torch.float64 else {})
        makers = {name: _maker(dtype, change) for name, change in changes.items()}
        return {name: [LAYOUTS[request.param](make) for _ in range(2)] for name, make in makers.items()}

    return build


def _numbers(x):
    x = x.detach()
    x = x if x.layout == torch.strided else x.to_dense()
    return x.resolve_neg().to(torch.complex128 if x.is_complex() else torch.float64).resolve_conj().numpy()


def _parts(x):
    """Real numbers of a tensor in its unit, and the unit."""
    numbers = _numbers(x)
    parts = np.stack([numbers.real, numbers.imag], axis=-1) if x.is_complex() else numbers[..., None]
    unit = np.abs(parts[np.isfinite(parts)]).max(initial=0.0) if x.dtype == torch.float64 else 1.0
    return parts / (unit or 1.0), unit or 1.0


def exact_row(x, previous=None, eps=None, channel_dim=0, batch=False):
    """The row a kernel should give, and how far its dot product may be off in relation to the precision."""
    row = [0.0, 0.0, 1.0, float(previous is not None), *[0.0] * 8]
    if x.numel() == 0:
        return row, 0.0
    with np.errstate(all="ignore"):
        numbers, (parts, unit) = _numbers(x), _parts(x)
        magnitudes = np.abs(numbers)
        row[0], row[2] = (parts**2).sum(), unit
        slack = 0.0
        if previous is not None:
            past = _parts(previous)[0]
            row[1] = (parts * past).sum()
            slack = math.sqrt(row[0]) * math.sqrt((past**2).sum())
        if batch:
            row[4] = sum(math.sqrt((sample**2).sum()) * unit for sample in parts)
            row[5] = len(x)
        if eps is not None:
            active = np.moveaxis(np.atleast_1d(magnitudes), channel_dim, 0) > eps
            row[6] = np.count_nonzero(active)
            row[7] = sum(not channel.any() for channel in active)
            row[8] = len(active)
        finite = magnitudes[np.isfinite(magnitudes)]
        row[9:] = x.numel(), x.numel() - finite.size, finite.max(initial=0.0)
    return row, slack


@pytest.fixture(scope="session")
def assert_row():
    """Compare a row with the exact one, by the wanted precision."""

    def check(row, wanted, precision, what=None):
        exact, slack = wanted
        row, exact = ([x if math.isfinite(x) else math.nan for x in numbers] for numbers in (row, exact))
        assert row[2:4] + row[5:11] == exact[2:4] + exact[5:11], what
        for column in (0, 4, 11):
            assert row[column] == pytest.approx(exact[column], rel=precision, abs=0, nan_ok=True), (what, column)
        allowed = precision * slack if math.isfinite(slack) else 0
        assert row[1] == pytest.approx(exact[1], rel=precision, abs=allowed, nan_ok=True), what

    return check


@pytest.fixture(scope="session")
def exact():
    return exact_row
