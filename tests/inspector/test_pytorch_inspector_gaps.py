"""Times when nothing is recorded, and what comes right after them."""

import math

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.lens import (
    LossMetrics,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientGeometry,
    ParameterUpdateGeometry,
)


class Knob(nn.Module):
    """One weight whose gradient is whatever it is called with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, slope):
        return self.weight * slope


def moves(optimizer, knob, *sizes, after=lambda: None):
    """Steps of plain gradient descent that move the weight by these sizes."""
    for size in sizes:
        optimizer.zero_grad()
        knob(float(size)).backward()
        optimizer.step()
        after()


@pytest.fixture
def knob():
    return Knob()


@pytest.fixture
def optimizer(knob):
    return torch.optim.SGD(knob.parameters(), lr=1.0)


def test_inactive_ticks_record_nothing_that_is_pushed(shown):
    lens = LossMetrics(metrics=["acc"])
    inspector = PyTorchInspector([lens], visualizer=shown, is_active_fn=2)
    for loss in (100.0, 1.0, 200.0, 3.0):
        inspector.push_loss(loss, train=True)
        inspector.push_metric("acc", loss)
        inspector.log(seen=loss)
        inspector.tick_epoch()
    assert shown.line("Loss", "Loss", "train_loss mean") == {2: 1.0, 4: 3.0}
    assert shown.line("Metrics", "Metrics", "acc mean") == {2: 1.0, 4: 3.0}
    assert shown.line("Logged", "Logged", "seen mean") == {2: 1.0, 4: 3.0}


def test_inactive_ticks_record_nothing_from_hooks(model, train, shown):
    inspector = PyTorchInspector([OutputNorm()], module=model, visualizer=shown, is_active_fn=3)
    for _ in inspector.range(7):
        train(model)
    assert list(shown.line("Output Norm", "1")) == [3, 6]
    assert shown.labels() == [3, 6]


def test_loss_after_an_inactive_tick_is_not_that_of_an_earlier_one():
    lens = LossMetrics()
    inspector = PyTorchInspector([lens], visualizer="dummy", is_active_fn=2)
    with pytest.raises(KeyError, match="there are no numbers yet"):
        lens.loss(train=True)
    seen = []
    for loss in (5.0, 6.0, 7.0):
        inspector.push_loss(loss, train=True)
        inspector.tick_epoch()
        seen.append(lens.loss(train=True))
    assert (math.isnan(seen[0]), seen[1], math.isnan(seen[2])) == (True, 6.0, True)


@pytest.mark.parametrize(
    ("lens", "tag", "layer"),
    [
        (ParameterGradientGeometry(parameters="weight"), "Weight Gradient Correlation", ""),
        (OutputGradientGeometry(), "Output Gradient Correlation", ""),
    ],
)
def test_correlation_has_no_sample_across_a_gap(lens, tag, layer, knob, optimizer, shown):
    inspector = PyTorchInspector([lens], module=knob, visualizer=shown, is_active_fn=lambda n: n != 2)
    for sign in (1, 1, -1):
        for _ in range(2):
            knob.zero_grad()
            (sign * knob(float(sign))).backward(torch.full((1,), float(sign)))
        inspector.tick_epoch()
    # the run's first sample is 0; the first one after the gap is missing: across it the sign changed
    assert shown.line(tag, layer) == {1: 0.5, 3: 1.0}


def test_each_optimizer_step_is_one_update_also_after_a_gap(knob, optimizer, shown):
    lens = ParameterUpdateGeometry(optimizer, parameters="weight")
    inspector = PyTorchInspector([lens], module=knob, visualizer=shown, is_active_fn=lambda n: n != 2)
    for sizes in ((1, 2, 6), (100, 100), (4, 8), (5,)):
        moves(optimizer, knob, *sizes)
        inspector.tick_epoch()
    assert shown.line("Weight Update Norm", "") == {1: 3.0, 3: 6.0, 4: 5.0}
    assert shown.line("Weight Update Correlation", "") == {1: pytest.approx(2 / 3), 3: 1.0, 4: 1.0}


def test_manual_updates_are_one_less_than_the_calls(knob, optimizer, shown):
    lens = ParameterUpdateGeometry(None, parameters="weight")
    inspector = PyTorchInspector([lens], module=knob, visualizer=shown, is_active_fn=lambda n: n != 3)
    for sizes in ((1, 2, 6), (3, 5), (100, 100), (4, 8)):
        moves(optimizer, knob, *sizes, after=lens.inspect_update)
        inspector.tick_epoch()
    assert shown.line("Weight Update Norm", "") == {1: 4.0, 2: 4.0, 4: 8.0}


def test_update_lens_goes_on_with_its_optimizer_after_attaching_again(knob, optimizer, shown):
    lens = ParameterUpdateGeometry(optimizer, parameters="weight")
    inspector = PyTorchInspector([lens], module=knob, visualizer=shown)
    moves(optimizer, knob, 1)
    inspector.tick_epoch()
    inspector.detach()
    moves(optimizer, knob, 50)
    inspector.attach(knob)
    moves(optimizer, knob, 2, 4)
    inspector.tick_epoch()
    assert lens.optimizer is optimizer
    assert [values[""]["mean"] for _, tag, values in shown.calls if tag == "Weight Update Norm"] == [1.0, 3.0]


def test_paused_block_records_nothing_and_ends_with_an_error_too(model, train, shown):
    inspector = PyTorchInspector([OutputNorm(), LossMetrics()], module=model, visualizer=shown)
    with inspector.paused():
        train(model)
        inspector.push_loss(100.0, train=True)
        with pytest.raises(ZeroDivisionError), inspector.paused():
            _ = 1 / 0
        assert not inspector.state.is_active
    assert inspector.state.is_active
    inspector.tick_epoch()
    assert shown.layers_of("Output Norm") == shown.layers_of("Loss") == set()


def test_closure_over_the_model_records_only_while_it_trains(model, train, shown):
    lens = OutputNorm(record_eval=True)
    inspector = PyTorchInspector(
        [lens], module=model, visualizer=shown, is_active_fn=lambda n: model.training, depth=-1
    )
    train(model, steps=1)
    expected = model[:2](torch.linspace(-1, 1, 12).reshape(4, 3)).double().norm(dim=1).mean().item()
    model.eval()
    model(torch.ones(4, 3) * 1000)
    model.train()
    inspector.tick_epoch()
    assert shown.line("Output Norm", "1")[1] == pytest.approx(expected, rel=1e-6)
