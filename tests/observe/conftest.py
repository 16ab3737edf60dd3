"""Modules whose state changes in the ways that states change; every kind of monitor, and of reducer."""

import pytest
import torch
from torch import nn

from monitorch.observe import (
    CAReducer,
    CumulativeTraceReducer,
    DifferenceMonitor,
    EMAReducer,
    EventReducer,
    InputMonitor,
    MultiStateMonitor,
    NearestTraceReducer,
    OutputMonitor,
    PassthroughReducer,
    ScaledCumulativeTraceReducer,
    ScaledNearestTraceReducer,
    StateMonitor,
)


class Rebinding(nn.Module):
    """Adds its input to a state that is a new tensor each time."""

    def __init__(self, start=0.0):
        super().__init__()
        self.register_buffer("st", torch.tensor([start]))

    def forward(self, x):
        self.st = self.st + x
        return self.st


class Writing(Rebinding):
    """Adds its input to the one tensor that is its state."""

    def forward(self, x):
        with torch.no_grad():
            self.st.add_(x)
        return x


class Setting(nn.Module):
    """Has the state it was called with."""

    def __init__(self, start=None):
        super().__init__()
        self.st = start

    def forward(self, state):
        self.st = state


@pytest.fixture
def rebinding():
    return Rebinding()


@pytest.fixture
def writing():
    return Writing()


@pytest.fixture
def new_setting():
    return Setting


MONITORS = {
    "input": lambda reducer, *module: InputMonitor(reducer, *module),
    "output": lambda reducer, *module: OutputMonitor(reducer, *module),
    "state": lambda reducer, *module: StateMonitor(reducer, "bias", *module),
    "several states": lambda reducer, *module: MultiStateMonitor(reducer, "", ["bias"], *module),
    "difference": lambda reducer, *module: DifferenceMonitor(reducer, "bias", *module),
}


@pytest.fixture(params=MONITORS)
def build_monitor(request):
    """Make a monitor of a linear layer; once for every kind."""
    return MONITORS[request.param]


@pytest.fixture
def layer():
    return nn.Linear(2, 2)


def above(x):
    return x > 0.5


REDUCERS = {
    "passthrough": lambda **options: PassthroughReducer(1.0, **options),
    "EMA": lambda **options: EMAReducer(1.0, 0.25, **options),
    "CA": lambda **options: CAReducer(1.0, **options),
    "event": lambda **options: EventReducer(1.0, above, **options),
    "nearest": lambda **options: NearestTraceReducer(1.0, 10.0, 2, 1, **options),
    "cumulative": lambda **options: CumulativeTraceReducer(1.0, 10.0, 2, 1, **options),
    "scaled nearest": lambda **options: ScaledNearestTraceReducer(1.0, 10.0, 2, 3, above, **options),
    "scaled cumulative": lambda **options: ScaledCumulativeTraceReducer(1.0, 10.0, 2, 3, above, **options),
}


@pytest.fixture(params=REDUCERS)
def build_reducer(request):
    """Make a reducer; once for every kind."""
    return REDUCERS[request.param]


@pytest.fixture(params=[name for name in REDUCERS if name != "passthrough"])
def running_reducer(request):
    """A reducer whose state is computed from many samples."""
    return REDUCERS[request.param]()
