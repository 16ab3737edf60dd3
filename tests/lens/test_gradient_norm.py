"""The norm of the gradient of the whole model."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.engine import buffers
from monitorch.lens import GradientNorm


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LSTM(4, 2, batch_first=True))


def norm_of(model):
    """All gradients as one vector."""
    found = [parameter.grad.double().numpy().ravel() for parameter in model.parameters() if parameter.grad is not None]
    return np.linalg.norm(np.concatenate(found))


def lines(shown):
    return shown.values("Gradient Norm").get("Gradient Norm", {})


def backward(model, parts=1):
    model.zero_grad()
    for _ in range(parts):
        model(torch.randn(2, 5, 3))[0].square().sum().backward()


@pytest.mark.parametrize(("gradient", "place"), [("at_step", 1), ("before_clip", 0)])
def test_it_is_what_clipping_returns_and_what_is_left_of_it(gradient, place, model, watch, shown, close):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch(model, GradientNorm(), optimizer=optimizer, gradient=gradient)
    norms = []
    for parts in (1, 3, 2):
        backward(model, parts)
        before = float(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        norms.append((before, norm_of(model))[place])
        optimizer.step()
    inspector.tick_epoch()
    assert lines(shown) == {"gradient_norm mean": close(np.mean(norms))}
    bands = {("gradient_norm min", "gradient_norm max"): close((min(norms), max(norms)))}
    assert shown.ranges("Gradient Norm") == {"Gradient Norm": bands}
    if place:
        assert norms == pytest.approx([0.01] * 3)


def test_without_an_optimizer_each_backward_counts(model, watch, shown, close):
    inspector, norms = watch(model, GradientNorm()), []
    for _ in range(3):
        backward(model)
        norms.append(norm_of(model))
    inspector.tick_epoch()
    assert lines(shown) == {"gradient_norm mean": close(np.mean(norms))}


def test_tied_and_frozen_parameters(watch, shown, close):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    model[2].weight = model[0].weight
    model[3].requires_grad_(False)
    inspector = watch(model, GradientNorm())
    model(torch.randn(4, 3)).sum().backward()
    inspector.tick_epoch()
    assert lines(shown) == {"gradient_norm mean": close(norm_of(model))}


def test_parameters_that_no_optimizer_has_are_left_out_however_many_passes_a_step_has(model, watch, shown, close):
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    inspector, norms = watch(model, GradientNorm(), optimizer=optimizer), []
    for parts in (1, 3, 2):
        optimizer.zero_grad()  # so that gradients of the other layers pile up
        for _ in range(parts):
            model(torch.randn(2, 5, 3))[0].square().sum().backward()
        norms.append(norm_of(model[0]))
        optimizer.step()
    inspector.tick_epoch()
    assert lines(shown) == {"gradient_norm mean": close(np.mean(norms))}


def test_a_step_whose_rows_come_in_parts_is_one_sample(model, watch, shown, close, monkeypatch):
    monkeypatch.setattr(buffers, "CAPACITY", 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inspector, norms = watch(model, GradientNorm(), optimizer=optimizer), []
    for _ in range(5):
        backward(model)
        norms.append(norm_of(model))
        optimizer.step()
    inspector.tick_epoch()
    assert lines(shown) == {"gradient_norm mean": close(np.mean(norms))}
    bands = {("gradient_norm min", "gradient_norm max"): close((min(norms), max(norms)))}
    assert shown.ranges("Gradient Norm") == {"Gradient Norm": bands}


def test_a_gradient_that_is_not_finite_is_counted_and_the_other_steps_are_shown(model, watch, close):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inspector = watch(model, GradientNorm(inplace=False), optimizer=optimizer)
    backward(model)
    expected = norm_of(model)
    optimizer.step()
    next(model.parameters()).grad[0, 0] = torch.inf
    optimizer.step()
    inspector.tick_epoch()
    (mean, *_) = inspector.records()
    assert (mean.value, mean.nonfinite) == (close(expected), 1)


def test_every_step_of_a_tick_is_kept_if_asked_for(model, watch, shown, close):
    inspector = watch(model, GradientNorm(inplace=False, line_aggregation="median", range_aggregation=None))
    norms = []
    for _ in range(4):
        backward(model)
        norms.append(norm_of(model))
    inspector.tick_epoch()
    assert lines(shown) == {"gradient_norm median": close(np.median(norms))}
