"""Ways to have a model watched with every lens there is."""

import pytest
import torch
from torch import nn

import monitorch
from monitorch import PyTorchInspector
from monitorch.lens import (
    Attribute,
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterCond,
    ParameterFacts,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
    SignalToNoise,
    UpdateRatio,
)


class Net(nn.Module):
    """Has a weight of its own, a layer that returns its input, one that is random, and one that acts in place."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.enter, self.act, self.same = nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Identity()
        self.noise, self.head = nn.Dropout(0.5), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.noise(self.same(self.act(self.enter(x * self.weight)))))


class Setting:
    """A model and all that trains it; ``watch`` is the way to watch it."""

    def __init__(self, way, model=None):
        self.way, self.model = way, Net() if model is None else model
        self.optimizer, self.loss_fn = torch.optim.SGD(self.model.parameters(), lr=0.1), nn.MSELoss()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.x = torch.linspace(-1, 1, 6).reshape(2, 3)

    def lenses(self):
        outputs = OutputNorm(include=nn.Linear), OutputActivation(), OutputGradientGeometry()
        parameters = [ParameterCond(), ParameterGradientActivation(), ParameterGradientGeometry(), ParameterNorm()]
        updates = ParameterUpdateGeometry(self.optimizer), UpdateRatio(self.optimizer)
        steps = SignalToNoise(self.optimizer), ParameterFacts(self.optimizer)
        return [LossMetrics(loss_fn=self.loss_fn), *outputs, *parameters, *updates, *steps, Attribute(["enter.weight"])]

    def watch(self, **options):
        common = {"optimizer": self.optimizer, "grad_scaler": self.scaler, "visualizer": "dummy", "on_error": "raise"}
        common |= {"every": 1} | options
        if self.way == "watch":
            return monitorch.watch(self.model, lenses=self.lenses(), **common)
        return PyTorchInspector(self.lenses(), module=self.model, **common)

    def forward(self, model=None):
        made = (self.model if model is None else model)(self.x)
        return self.loss_fn(made, torch.zeros_like(made))

    def step(self, loss=None):
        self.optimizer.zero_grad()
        self.scaler.scale(self.forward() if loss is None else loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def inspector_of(watcher):
    return getattr(watcher, "inspector", watcher)


@pytest.fixture
def seen():
    """All that was counted and recorded so far."""

    def look(watcher):
        inspector = inspector_of(watcher)
        inspector.state.engine.settle()
        state, steps = inspector.state, inspector._steps
        counts = state.step, state.observed, state.gaps, steps.run_statistics.samples
        kept = [repr(part.value) for lens in inspector.lenses for part in lens._preprocessors]
        return counts, kept

    return look


@pytest.fixture
def leave():
    """Stop watching."""
    return lambda watcher: watcher.close() if hasattr(watcher, "close") else watcher.detach()


@pytest.fixture
def new_setting():
    return Setting


@pytest.fixture(params=["inspector", "watch"])
def setting(request):
    return Setting(request.param)
