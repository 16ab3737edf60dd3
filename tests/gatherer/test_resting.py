"""Gatherers with hooks of their own: off in idle steps, and what they see between them is what there is."""

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer, ParameterGradientGatherer
from monitorch.lens import OutputNorm
from monitorch.preprocessor import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractTensorPreprocessor,
)

EVERY, STEPS = 4, 12


class Keeper(AbstractForwardPreprocessor, AbstractBackwardPreprocessor, AbstractTensorPreprocessor):
    """Keeps the norm of what it gets; a gap is None."""

    needs_input = needs_grad_input = compares = False

    def __init__(self):
        self.kept = []

    def process_fw(self, name, module, layer_input, layer_output):
        self.kept.append(layer_output.norm().item())

    def process_bw(self, name, module, grad_input, grad_output):
        self.kept.append(grad_output[0].norm().item())

    def process_tensor(self, name, tensor):
        self.kept.append(tensor.norm().item())

    def interrupt(self, name):
        self.kept.append(None)

    @property
    def value(self):
        return {}

    def reset(self):
        """Keep all."""


class EveryStep(Keeper):
    every_step = True


GATHERERS = {
    "output": lambda layer, keeper, state: FeedForwardGatherer(layer, [keeper], "layer", state),
    "gradient of output": lambda layer, keeper, state: BackwardGatherer(layer, [keeper], "layer", state),
    "gradient": lambda layer, keeper, state: ParameterGradientGatherer("weight", layer, [keeper], "layer", state),
    "gradient, followed": lambda layer, keeper, state: ParameterGradientGatherer(
        "weight", layer, [keeper], "layer", state, follow=True
    ),
}


SEES = [("output", 0), ("gradient of output", 1), ("gradient", 2), ("gradient, followed", 2)]


class Net(nn.Module):
    """Keeps the output of its first layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x):
        self.hidden = self.layer(x)
        self.hidden.retain_grad()
        return self.last(self.hidden)


def hooks_on(layer):
    return sum(map(len, (layer._forward_hooks, layer._forward_pre_hooks))) + len(
        layer.weight._post_accumulate_grad_hooks or ()
    )


@pytest.fixture
def train():
    """Train with a gatherer; returns what it should have seen in each step, and its hooks before each step."""

    def run(gather, keeper, every=EVERY):
        torch.manual_seed(0)
        model, there, hooks = Net(), [], []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"optimizer": optimizer, "every": every, "visualizer": "dummy", "on_error": "raise"}
        inspector = PyTorchInspector([OutputNorm(include=nn.Tanh)], module=model, **options)
        gatherer = gather(model.layer, keeper, inspector.state)
        for _ in range(STEPS):
            hooks.append(hooks_on(model.layer))
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            there.append([x.norm().item() for x in (model.hidden, model.hidden.grad, model.layer.weight.grad)])
            optimizer.step()
        gatherer.detach()
        assert hooks_on(model.layer) == 0
        assert gatherer not in inspector.state.engine.module_taps
        return there, hooks

    return run


@pytest.mark.parametrize(("name", "column"), SEES)
def test_in_idle_steps_hooks_are_off_and_the_others_are_seen(name, column, train):
    keeper = Keeper()
    there, hooks = train(GATHERERS[name], keeper)
    observed = [EVERY - 1, 2 * EVERY - 1, 3 * EVERY - 1]
    assert [number for number in keeper.kept if number is not None] == [there[step][column] for step in observed]
    assert [bool(count) for count in hooks[1:]] == [step in observed for step in range(1, STEPS)]


@pytest.mark.parametrize("name", GATHERERS)
def test_each_gap_is_told_once(name, train):
    keeper = Keeper()
    train(GATHERERS[name], keeper)
    assert [number is None for number in keeper.kept] == [True, False, True, False, True, False, True]


@pytest.mark.parametrize(("name", "column"), SEES)
def test_whoever_wants_every_step_is_not_sent_to_rest(name, column, train):
    keeper = EveryStep()
    there, hooks = train(GATHERERS[name], keeper)
    assert keeper.kept == [numbers[column] for numbers in there]
    assert all(hooks)


def test_where_every_step_is_observed_nothing_rests(train):
    keeper = Keeper()
    there, hooks = train(GATHERERS["output"], keeper, every=1)
    assert keeper.kept == [numbers[0] for numbers in there]
    assert all(hooks)
