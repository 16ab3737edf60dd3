"""Gradients in units of what Adam keeps of their squares, whatever the variant of Adam, against NumPy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, RAdam, SparseAdam

from monitorch import PyTorchInspector
from monitorch.engine import second_moments
from monitorch.engine.second_moments import SecondMoment, divided
from monitorch.lens import SignalToNoise

BETA = 0.9


def rms(gradients, *, eps=1e-8, amsgrad=False):
    """One number for each step."""
    second, divisor, found = 0.0, 0.0, []
    for step, gradient in enumerate(gradients, start=1):
        second = BETA * second + (1 - BETA) * gradient**2
        divisor = np.maximum(divisor, second) if amsgrad else second
        corrected = np.maximum(divisor / (1 - BETA**step), eps**2)
        found.append(np.sqrt(np.mean(gradient**2 / corrected)))
    return found


class Fixed(nn.Module):
    """A model whose gradients are what it is called with."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 5, dtype=dtype))

    def forward(self, x):
        return (self.weight * x).sum()


def shown(optimizer, model, gradients, **options):
    """What is shown of each step."""
    lens = SignalToNoise(optimizer, inplace=False)
    inspector = PyTorchInspector([lens], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    for gradient in gradients:
        optimizer.zero_grad()
        model(torch.as_tensor(gradient, dtype=model.weight.dtype)).backward()
        optimizer.step(**options)
    found = [list(kept) for kept in lens._preprocessors[0].value.values()]
    inspector.detach()
    return found[0] if found else []


@pytest.fixture
def gradients():
    """Some that jump by a factor of 100, with an element that is always 0."""
    found = np.random.default_rng(0).normal(size=(6, 3, 5)) * np.array([1, 1, 1, 100, 1, 1])[:, None, None]
    found[:, 0, 0] = 0
    return found.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adam, {}),
        (Adam, {"foreach": True}),
        (Adam, {"fused": True}),
        (Adam, {"amsgrad": True}),
        (Adam, {"amsgrad": True, "fused": True}),
        (Adam, {"lr": torch.tensor(0.01)}),
        (Adam, {"maximize": True}),
        (AdamW, {"weight_decay": 0.1, "foreach": True}),
        (AdamW, {"fused": True}),
        (AdamW, {"eps": 1.0}),
        (NAdam, {}),
        (RAdam, {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kind_of_adam_is_measured_with_its_moment_after_the_step(kind, options, dtype, gradients):
    model = Fixed(dtype)
    optimizer = kind(model.parameters(), betas=(0.5, BETA), **{"lr": 0.01} | options)
    known = {name: options[name] for name in ("eps", "amsgrad") if name in options}
    assert shown(optimizer, model, gradients) == pytest.approx(rms(gradients, **known), rel=1e-5)


def test_moments_in_bfloat16_are_divided_in_single_precision(gradients):
    model = Fixed(torch.bfloat16)
    found = shown(Adam(model.parameters(), betas=(0.5, BETA), eps=1e-8), model, gradients)
    assert found == pytest.approx(rms(gradients), rel=3e-2)


def test_a_sparse_gradient_counts_where_it_is_zero_too():
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = SparseAdam(model.parameters(), betas=(0.5, BETA))
    lens = SignalToNoise(optimizer)
    inspector = PyTorchInspector([lens], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    model(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert lens._preprocessors[0].value["weight"].mean == pytest.approx(0.5, rel=1e-5)  # a quarter is 1, the rest 0
    inspector.detach()


@pytest.mark.parametrize("kind", [SGD, Adamax])
def test_an_optimizer_without_second_moments_shows_nothing(kind, gradients):
    model = Fixed()
    assert shown(kind(model.parameters(), lr=0.01), model, gradients) == []


@pytest.mark.parametrize("beta", [0.999, 0.0, torch.tensor(0.999)])
@pytest.mark.parametrize("step", [1.0, 7, torch.tensor(3.0)])
def test_steps_that_are_counted_on_a_device_give_the_same(beta, step, monkeypatch):
    gradient, second = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0])
    moment = SecondMoment(gradient, second, beta, step, eps=0.5)
    (on_host,) = divided([moment])
    corrected = 4 / (1 - float(beta) ** float(step))
    assert on_host.tolist() == pytest.approx([1 / np.sqrt(corrected), 4.0], rel=1e-6)
    monkeypatch.setattr(second_moments, "_on_host", lambda step: False)
    (on_device,) = divided([moment._replace(step=torch.tensor(float(step)))])
    assert on_device.tolist() == pytest.approx(on_host.tolist(), rel=1e-6)


def test_large_models_are_divided_in_parts(monkeypatch):
    monkeypatch.setattr(second_moments, "AT_ONCE", 1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = Adam(model.parameters())
    lens = SignalToNoise(optimizer)
    inspector = PyTorchInspector([lens], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    found = lens._preprocessors[0].value
    assert {name: kept.count for name, kept in found.items()} == dict.fromkeys(
        ("0.weight", "0.bias", "1.weight", "1.bias"), 1
    )
    inspector.detach()


def test_a_step_that_a_fused_optimizer_skips_has_no_sample():
    model = Fixed()
    optimizer = Adam(model.parameters(), lr=0.01, betas=(0.5, BETA), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    lens = SignalToNoise(optimizer, inplace=False)
    inspector = PyTorchInspector(
        [lens], module=model, optimizer=optimizer, grad_scaler=scaler, visualizer="dummy", on_error="raise"
    )
    sizes = [1.0, torch.inf, 3.0]
    for size in sizes:
        optimizer.zero_grad()
        scaler.scale(model(torch.full((3, 5), size))).backward()
        scaler.step(optimizer)
        scaler.update()
    expected = rms([np.full((3, 5), size) for size in (1.0, 3.0)])
    assert list(lens._preprocessors[0].value["weight"]) == pytest.approx(expected, rel=1e-5)
    assert inspector.first_not_finite is None
