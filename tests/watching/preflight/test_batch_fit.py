"""Training on one batch: the same as training, with what was seen on the way."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from monitorch.inspector.model_copy import copied
from monitorch.watching.preflight.batch_fit import BatchFit, alike, fit_batch

from .models import LowRank, layers

X, Y = torch.randn(8, 5), torch.randn(8, 2)


def fit(model, optimizers, steps=6, **options):
    with copied(model, F.mse_loss) as twin:
        return fit_batch(twin, (X, Y), optimizers, steps, **options)


def trained(model, optimizer, steps=6, rates=None):
    """The losses, and the relative changes of weights, of a plain loop."""
    losses, changes = [], {name: [] for name, own in model.named_parameters() if own.dim() > 1}
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(F.mse_loss(model(X), Y))
        losses[-1].backward()
        before = {name: own.detach().numpy().astype(float) for name, own in copy.deepcopy(model).named_parameters()}
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[step]
        optimizer.step()
        for name, own in model.named_parameters():
            if name in changes:
                change = own.detach().numpy().astype(float) - before[name]
                changes[name].append(np.linalg.norm(change) / np.linalg.norm(before[name]))
    losses.append(F.mse_loss(model(X), Y))
    return [loss.item() for loss in losses], changes


def test_losses_and_updates_are_those_of_a_plain_loop():
    model = layers(5, 6, 2)
    found = fit(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    losses, changes = trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert found.losses == losses
    for name, own in changes.items():
        assert found.updates[name] == pytest.approx(np.median(own[:5]), rel=1e-4)


def test_without_an_optimizer_adam_trains():
    model = layers(5, 6, 2)
    assert fit(model, []).losses == trained(model, torch.optim.Adam(model.parameters(), lr=1e-3))[0]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_rate_that_waits_for_a_warm_up_rises(as_tensor):
    model = layers(5, 6, 2)
    rate = torch.tensor(0.3) if as_tensor else 0.3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
    rates = [0.3 * (step + 1) / 6 for step in range(6)]
    found = fit(model, [optimizer])
    assert float(optimizer.param_groups[0]["lr"]) == 0.0
    assert found.losses == pytest.approx(trained(model, torch.optim.Adam(model.parameters()), rates=rates)[0], rel=1e-4)


def test_rates_can_be_multiplied():
    model = layers(5, 6, 2)
    found = fit(model, [torch.optim.SGD(model.parameters(), lr=0.01)], factor=10.0)
    assert found.losses == trained(model, torch.optim.SGD(model.parameters(), lr=0.1))[0]


def test_a_gradient_that_is_zero_only_at_first_counts():
    model = nn.Sequential(LowRank(5), nn.Linear(5, 2))
    found = fit(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    assert found.with_gradient == {"0.a", "0.b", "1.weight", "1.bias"}


def test_nothing_to_train():
    assert fit(layers(5, 2).requires_grad_(False), []) is None


@pytest.mark.parametrize(
    ("losses", "fall", "rise", "late"),
    [([2.0, 1.0, 4.0], 0.5, 2.0, 4.0), ([-1.0, -4.0, -2.0, -2.5], 3.0, -0.25, -2.5), ([0.0, 0.0], 0.0, 0.0, 0.0)],
)
def test_falls_and_rises_are_relative_to_the_first_loss(losses, fall, rise, late):
    found = BatchFit(losses)
    assert (found.fall, found.rise, found.late, found.is_finite) == (fall, rise, late, True)


def attention(value):
    rows = torch.randn(1, 6).expand(18, 6).clone()
    rows[6:12] = value
    return rows


@pytest.mark.parametrize(
    ("module", "name", "values", "is_alike"),
    [
        (nn.Linear(3, 4), "weight", torch.randn(1, 3).expand(4, 3), True),
        (nn.Linear(3, 4), "weight", torch.randn(4, 3), False),
        (nn.Linear(3, 4), "weight", torch.zeros(4, 3), True),
        (nn.Linear(3, 4), "bias", torch.zeros(4), False),
        (nn.Linear(3, 1), "weight", torch.randn(1, 3), False),
        (nn.Conv2d(2, 4, 3), "weight", torch.randn(1, 2, 3, 3).expand(4, 2, 3, 3), True),
        (nn.ConvTranspose2d(2, 4, 3), "weight", torch.randn(2, 1, 3, 3).expand(2, 4, 3, 3), True),
        (nn.ConvTranspose2d(2, 4, 3), "weight", torch.randn(1, 4, 3, 3).expand(2, 4, 3, 3), False),
        (nn.LSTM(3, 5), "weight_ih_l0", torch.randn(4, 1, 3).expand(4, 5, 3).reshape(20, 3), True),
        (nn.LSTM(3, 5), "weight_ih_l0", torch.randn(20, 3), False),
        (nn.GRUCell(3, 5), "weight_hh", torch.ones(15, 5), True),
        (nn.LSTM(3, 5, proj_size=2), "weight_hr_l0", torch.ones(2, 5), False),
        (nn.MultiheadAttention(6, 2), "in_proj_weight", attention(1.0), True),
        (nn.MultiheadAttention(6, 2), "in_proj_weight", attention(torch.randn(6, 6)), False),
        (nn.Embedding(4, 3), "weight", torch.ones(4, 3), False),
    ],
)
def test_weights_that_are_alike_for_all_units(module, name, values, is_alike):
    assert alike(nn.Sequential(module), {f"0.{name}": values}) == ({f"0.{name}"} if is_alike else set())


def test_differences_by_rounding_do_not_count():
    noise = 1e-9 * torch.randn(4, 3)
    assert alike(nn.Linear(3, 4), {"weight": noise}) == set()
    assert alike(nn.Linear(3, 4), {"weight": noise}, rounding=1.0) == {"weight"}
