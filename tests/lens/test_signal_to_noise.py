"""Noise of gradients over a tick, and options; single steps are tested where they are measured."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import monitorch
from monitorch.errors import OptionError
from monitorch.lens import SignalToNoise
from monitorch.store import open_run

PARTS = 4


@pytest.fixture
def setting(new_net, make_batches):
    torch.manual_seed(0)
    model = new_net()
    return model, torch.optim.SGD(model.parameters(), lr=0.01), make_batches((8,) * 3 * PARTS)


def gradient(model, batch):
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    return np.concatenate([slope.double().numpy().ravel() for slope in torch.autograd.grad(loss, model.parameters())])


def train(model, optimizer, batches):
    """Steps of four micro-batches; returns the gradients of all of them, by step."""
    found, bare = [], copy.deepcopy(model)
    for start in range(0, len(batches), PARTS):
        optimizer.zero_grad()
        bare.load_state_dict(model.state_dict())
        found.append([gradient(bare, batch) for batch in batches[start : start + PARTS]])
        for inputs, targets in batches[start : start + PARTS]:
            (nn.functional.mse_loss(model(inputs), targets) / PARTS).backward()
        optimizer.step()
    return np.array(found)


def noise_scale(steps):
    """The mean variance of the gradient of a step over the mean square of the true one, from all pairs of parts."""
    variances = [np.var(parts, axis=0, ddof=1).sum() / len(parts) for parts in steps]
    pairs = [[parts[i] @ parts[j] for i in range(PARTS) for j in range(PARTS) if i != j] for parts in steps]
    return np.mean(variances) / np.mean(pairs)


@pytest.mark.parametrize(("options", "factor"), [({}, 1), ({"batch_size": 32}, 32)])
def test_noise_and_gradient_are_averaged_over_a_tick_and_then_divided(setting, options, factor, watch, shown):
    model, optimizer, batches = setting
    inspector = watch(model, SignalToNoise(optimizer, **options), optimizer=optimizer)
    for _ in range(2):
        expected = noise_scale(train(model, optimizer, batches))
        inspector.tick_epoch()
        (found,) = shown.values("Gradient Noise Scale").values()
        assert found == pytest.approx({"noise_scale": factor * expected}, rel=1e-4)
    inspector.tick_epoch()
    assert not shown.values("Gradient Noise Scale")


def test_noise_that_hides_the_gradient_is_infinite(watch, shown):
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch(model, SignalToNoise(optimizer), optimizer=optimizer)
    for sign in (1.0, -1.0):
        model(torch.full((1, 1), sign)).backward()
    optimizer.step()
    inspector.tick_epoch()
    assert shown.values("Gradient Noise Scale") == {"Gradient Noise Scale": {"noise_scale": math.inf}}


def test_noise_that_hides_the_gradient_is_nothing_that_went_wrong(tmp_path):
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"every": 1, "tick_every": 1, "run": "noisy", "folder": tmp_path, "stop_on": "warning"}
    with monitorch.watch(model, optimizer, lenses=[SignalToNoise(optimizer)], diagnose=False, **options) as watched:
        for _ in range(3):
            for sign in (1.0, -1.0):
                model(torch.full((1, 1), sign)).backward()
            optimizer.step()
    assert watched.events() == []
    with open_run(tmp_path / "noisy") as run:
        found = run.series("run", "Gradient Noise Scale/noise_scale", "run").values
        assert found.tolist() == [math.inf] * 3
        assert not run.series("run", "Gradient Noise Scale/nonfinite", "run").values.any()


def test_it_is_the_noise_scale_of_a_probe(watch, shown):
    torch.manual_seed(1)
    model, x, y = nn.Linear(4, 2), torch.randn(16, 4), torch.randn(16, 2)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    inspector = watch(model, SignalToNoise(optimizer, batch_size=16), optimizer=optimizer)
    report = inspector.probe(x, y, loss_fn=loss_fn)
    for half in (slice(0, 8), slice(8, 16)):
        loss_fn(model(x[half]), y[half]).backward()
    optimizer.step()
    inspector.tick_epoch()
    assert shown.values("Gradient Noise Scale")["Gradient Noise Scale"] == pytest.approx(
        {"noise_scale": report.noise_scale}, rel=1e-5
    )


def test_accumulation_is_bit_identical_and_does_not_copy_gradients(setting, watch):
    model, optimizer, batches = setting
    bare = copy.deepcopy(model)
    plain = torch.optim.SGD(bare.parameters(), lr=0.01)
    watch(model, SignalToNoise(optimizer), optimizer=optimizer)
    for one, own in ((model, optimizer), (bare, plain)):
        train(one, own, batches)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), bare.parameters(), strict=True))


@pytest.mark.parametrize(
    ("wrong", "options", "text"),
    [
        (None, {}, "an optimizer is needed, not None: pass the one that trains the model"),
        (torch.optim.SGD, {}, "is not a torch.optim.Optimizer object: pass the one that trains the model"),
        ([], {}, r"\[\] is not a torch.optim.Optimizer object"),
        (..., {"batch_size": 0}, "batch_size takes a whole number of at least 1, not 0"),
        (..., {"batch_size": 2.5}, "batch_size takes a whole number of at least 1, not 2.5"),
        (..., {"line_aggregation": "median"}, "'median' needs every sample: pass inplace=False"),
        (..., {"range_aggregation": "wide"}, "range_aggregation='wide' is unknown"),
    ],
)
def test_wrong_options_are_refused(wrong, options, text):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) if wrong is ... else wrong
    with pytest.raises(OptionError, match=text):
        SignalToNoise(optimizer, **options)


def test_tags(tags_of):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    tags = [tag for tag, *_ in tags_of(SignalToNoise(optimizer))]
    assert tags == ["Gradient Noise Scale", "Adam Gradient RMS"]
