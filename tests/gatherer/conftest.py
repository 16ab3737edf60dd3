"""A preprocessor that keeps what gatherers hand over, a look at the hooks that are left, and a fresh compiler."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from monitorch.gatherer.house import House
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


def give_house(state):
    state.house = House(state, torch.device("cpu"))
    return state


@pytest.fixture
def housed():
    """The state of an inspector whose gatherers share taps; errors are told."""
    return give_house(InspectorState())


@pytest.fixture
def rows_of():
    """The layers of all rows that wait in the ledger."""
    return lambda state: [note.site.name for note in state.house.ledger.page(torch.device("cpu")).notes]


class Cracked(torch.Tensor):
    """A tensor that falls apart when it is looked at."""

    def numpy(self, **options):
        raise RuntimeError("it fell apart")


@pytest.fixture
def cracked():
    return lambda *shape: torch.ones(shape).as_subclass(Cracked)


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


@pytest.fixture
def fresh_compiler():
    """No graphs from before, none from a disk, and none that is compiled over and over."""
    torch.compiler.reset()
    counters.clear()
    with (
        torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
    torch.compiler.reset()
