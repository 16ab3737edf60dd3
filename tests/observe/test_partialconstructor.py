"""Functions that make monitors."""

import inspect

import pytest
import torch
from torch import nn

from monitorch.observe import (
    DifferenceMonitor,
    InputMonitor,
    Monitor,
    MultiStateMonitor,
    OutputMonitor,
    PassthroughReducer,
    StateMonitor,
)

X = torch.ones(1, 2)


def hooks_on(module):
    return len(module._forward_pre_hooks) + len(module._forward_hooks)


@pytest.mark.parametrize("kind", [InputMonitor, OutputMonitor, StateMonitor, DifferenceMonitor, MultiStateMonitor])
def test_partial_constructor_takes_the_options_of_the_class(kind):
    own = [name for name in inspect.signature(kind).parameters if name not in ("attr", "module")]
    assert list(inspect.signature(kind.partialconstructor).parameters) == own
    with pytest.raises(TypeError):
        kind.partialconstructor(PassthroughReducer(1.0), ["bias"], no_such_option=1)


def test_partial_constructor_of_the_base_is_abstract():
    with pytest.raises(NotImplementedError, match="subclass"):
        Monitor.partialconstructor(PassthroughReducer(1.0))


def test_monitors_of_one_partial_constructor_do_not_share(layer):
    reducer = PassthroughReducer(1.0, 2.0)
    construct = StateMonitor.partialconstructor(reducer, map_=lambda p: (p.detach(),))
    other = nn.Linear(3, 3)
    monitors = construct("weight", layer), construct("weight", other)
    layer(X)
    other(torch.ones(1, 3))
    assert [tuple(monitor.latest.shape) for monitor in monitors] == [(2, 2), (3, 3)]
    assert reducer.latest is None


def test_partial_constructor_puts_the_hook_where_it_belongs():
    model = nn.Sequential(nn.Linear(2, 2))
    state = StateMonitor.partialconstructor(PassthroughReducer(1.0), True)("0.bias", model)
    output = OutputMonitor.partialconstructor(PassthroughReducer(1.0))("0", model)
    assert (hooks_on(model), hooks_on(model[0])) == (1, 1)
    model(X)
    assert torch.equal(state.latest, model[0].bias)
    assert output.latest.shape == (1, 2)
