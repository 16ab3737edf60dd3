"""A preprocessor that keeps what gatherers hand over, and a look at the hooks that are left."""

import pytest
from torch import nn

from monitorch.inspector.inspector_state import InspectorState
from monitorch.preprocessor import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractModulePreprocessor,
    AbstractTensorPreprocessor,
)


class Keeper(
    AbstractForwardPreprocessor, AbstractBackwardPreprocessor, AbstractModulePreprocessor, AbstractTensorPreprocessor
):
    """Keeps everything in order; raises ``error`` instead where one is set."""

    needs_grad_input = False

    def __init__(self):
        self.calls, self.remembered, self.gaps = [], [], []
        self.error = None

    value = property(lambda self: {})

    def _take(self, *data):
        if self.error is not None:
            raise self.error
        self.calls.append(data)

    process_fw = process_bw = process_module = _take

    def process_tensor(self, name, tensor):
        self._take(name, tensor.detach().clone())

    def remember(self, name, tensor):
        self.remembered.append(tensor.detach().clone())

    def interrupt(self, name):
        self.gaps.append(name)


class FullKeeper(Keeper):
    """One that also wants the gradients of a module's inputs."""

    needs_grad_input = True


@pytest.fixture
def keeper():
    return Keeper()


@pytest.fixture
def full_keeper():
    return FullKeeper()


@pytest.fixture
def state():
    return InspectorState()


@pytest.fixture
def strict_state():
    return InspectorState(on_error="raise")


@pytest.fixture
def count_hooks():
    def count(*things):
        hooks = [getattr(thing, name) for thing in things for name in dir(thing) if name.endswith("_hooks")]
        return sum(len(found) for found in hooks if isinstance(found, dict))

    return count


@pytest.fixture
def linear():
    return nn.Linear(3, 2)
