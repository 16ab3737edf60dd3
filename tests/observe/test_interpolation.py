"""Values between samples, and samples from values between them: each formula, and that the two agree."""

import math

import pytest
import torch

from monitorch.observe import Module, RecordTensor, extrapolation, interpolation

P, Q, STEP = 2.0, 5.0, 4.0
INTERPOLATIONS = {
    "previous": ({}, lambda t: P),
    "next": ({}, lambda t: Q),
    "nearest": ({}, lambda t: Q if t / STEP > 0.5 else P),
    "linear": ({}, lambda t: P + (Q - P) / STEP * t),
    "expdecay": ({"time_constant": 3.0}, lambda t: P * math.exp(-t / 3)),
    "expratedecay": ({"rate_constant": 0.7}, lambda t: P * math.exp(-0.7 * t)),
}
X = 11.0
EXTRAPOLATIONS = {
    "previous": ({}, lambda t: (X, Q)),
    "next": ({}, lambda t: (P, X)),
    "neighbors": ({}, lambda t: (X, X)),
    "nearest": ({}, lambda t: (P, X) if t > STEP / 2 else (X, Q)),
    "linear_forward": ({}, lambda t: (P, P + (X - P) / t * STEP)),
    "linear_backward": ({}, lambda t: (Q - (Q - X) / (STEP - t) * STEP, Q)),
    "expdecay": ({"time_constant": 3.0}, lambda t: (X * math.exp(t / 3), X * math.exp((t - STEP) / 3))),
    "expratedecay": ({"rate_constant": 0.7}, lambda t: (X * math.exp(0.7 * t), X * math.exp(0.7 * (t - STEP)))),
}
TIMES = (0.5, 2.0, 2.5)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_interpolation(name, time):
    kwargs, expected = INTERPOLATIONS[name]
    interp = getattr(interpolation, f"interp_{name}")
    found = interp(torch.tensor(P), torch.tensor(Q), torch.tensor(time), STEP, **kwargs)
    assert found.item() == pytest.approx(expected(time))


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", EXTRAPOLATIONS)
def test_extrapolation(name, time):
    kwargs, expected = EXTRAPOLATIONS[name]
    extrap = getattr(extrapolation, f"extrap_{name}")
    found = extrap(torch.tensor(X), torch.tensor(time), torch.tensor(P), torch.tensor(Q), STEP, **kwargs)
    assert [value.item() for value in found] == pytest.approx(expected(time))


def test_adjusted_neighbours():
    sample, at, ends = torch.tensor(X), torch.tensor(1.0), (torch.tensor(P), torch.tensor(Q))
    older, newer = extrapolation.extrap_linear_forward(sample, at, *ends, STEP, adjust=torch.zeros_like)
    assert (older.item(), newer.item()) == (0, 44)
    older, newer = extrapolation.extrap_linear_backward(sample, at, *ends, STEP, adjust=torch.zeros_like)
    assert (older.item(), newer.item()) == pytest.approx((44 / 3, 0))


@pytest.mark.parametrize(
    ("pair", "kwargs"),
    [
        (("linear", "linear_forward"), {}),
        (("linear", "linear_backward"), {}),
        (("expdecay", "expdecay"), {"time_constant": 3.0}),
        (("nearest", "nearest"), {}),
        (("previous", "neighbors"), {}),
    ],
)
@pytest.mark.parametrize("time", [0.7, 1.0, 1.3])
def test_what_is_inserted_is_found_again(pair, kwargs, time):
    record = RecordTensor(owner := Module(), "x", 1.0, 4.0, None)
    for value in (1.0, 2.0, 3.0, 4.0):
        record.push(torch.tensor([value]))
    extrap, interp = getattr(extrapolation, f"extrap_{pair[1]}"), getattr(interpolation, f"interp_{pair[0]}")
    record.insert(torch.tensor([9.0]), time, extrap, offset=1, extrap_kwargs=kwargs)
    assert record.select(time, interp, interp_kwargs=kwargs).item() == pytest.approx(9.0)
    assert owner is record.owner
