"""A visualizer that keeps all it is shown, and a small training loop."""

from itertools import groupby
from operator import itemgetter

import pytest
import torch
from torch import nn

from monitorch.lens import (
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterCond,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)
from monitorch.visualizer import AbstractVisualizer
from tests.inspector.fake_time import FakeDevice


class Shown(AbstractVisualizer):
    """Keeps every call; ``resets`` counts those of ``reset_fig``."""

    def __init__(self):
        self.tags, self.layers, self.calls, self.resets = {}, [], [], 0

    def register_tags(self, main_tag, tag_attr):
        self.tags[main_tag] = tag_attr

    def introduce_layers(self, layers):
        self.layers = layers

    def plot_numerical_values(self, epoch, main_tag, values_dict, ranges_dict):
        self.calls.append((epoch, main_tag, values_dict))

    def plot_probabilities(self, epoch, main_tag, values_dict):
        self.calls.append((epoch, main_tag, values_dict))

    plot_relations = plot_probabilities

    def reset_fig(self):
        self.resets += 1

    def labels(self):
        return [epoch for epoch, _ in groupby(self.calls, key=itemgetter(0))]

    def layers_of(self, tag):
        return {layer for _, seen, values in self.calls if seen == tag for layer in values}

    def line(self, tag, layer, name="mean"):
        """One line over time."""
        return {epoch: v[layer][name] for epoch, seen, v in self.calls if seen == tag and name in v.get(layer, ())}


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def new_shown():
    return Shown


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


@pytest.fixture
def train():
    """Some steps of plain training; returns the last loss."""

    def run(model, optimizer=None, loss_fn=None, steps=2):
        for step in range(steps):
            model.zero_grad()
            prediction = model(torch.linspace(-1, 1, 12).reshape(4, 3) * (step + 1))
            loss = prediction.pow(2).mean() if loss_fn is None else loss_fn(prediction, torch.zeros_like(prediction))
            loss.backward()
            if optimizer is not None:
                optimizer.step()
        return loss.item()

    return run


@pytest.fixture
def count_hooks():
    """Hooks of any kind on modules (and all inside), tensors and optimizers."""

    def count(*things):
        modules = [part for thing in things if isinstance(thing, nn.Module) for part in thing.modules()]
        parts = {id(part): part for part in (*things, *modules, *(p for m in modules for p in m.parameters()))}
        hooks = [getattr(part, name) for part in parts.values() for name in dir(part) if name.endswith("_hooks")]
        return sum(len(found) for found in hooks if isinstance(found, dict))

    return count


@pytest.fixture
def all_lenses():
    """One lens of each kind."""

    def make(optimizer, loss_fn):
        plain = (OutputActivation, OutputGradientGeometry, OutputNorm, ParameterCond, ParameterGradientActivation)
        others = (ParameterGradientGeometry, ParameterNorm)
        return [LossMetrics(loss_fn=loss_fn), ParameterUpdateGeometry(optimizer), *(lens() for lens in plain + others)]

    return make


@pytest.fixture
def device(monkeypatch):
    """A CUDA device that is none."""
    fake = FakeDevice()
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the current stream")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.capturing)
    return fake
