"""Monitors of inputs and outputs."""

from functools import partial

import pytest
import torch
from torch import nn

from monitorch.observe import (
    InputMonitor,
    MultiStateMonitor,
    OutputMonitor,
    PassthroughReducer,
    StateMonitor,
)

X = torch.ones(1, 2)


def test_input_monitor():
    class Sum(nn.Module):
        def forward(self, a=0, b=0):
            return a + b

    module = Sum()
    first = InputMonitor(PassthroughReducer(1.0), module, map_=lambda args: (args[0],))
    module(torch.tensor(3.0), torch.tensor(4.0))
    module(a=torch.tensor(9.0))
    assert (first.latest.item(), first.reducer.count) == (3, 1)


def test_output_monitor_takes_tuples_apart():
    from monitorch.observe import ConditionalNearestTraceReducer

    module = nn.Identity()
    monitor = OutputMonitor(ConditionalNearestTraceReducer(1.0, 10.0, 2, 3), module)
    module((torch.tensor([1.0, 2.0]), torch.tensor([True, False])))
    assert monitor.latest.tolist() == [5, 0]
    module(None)
    assert monitor.reducer.count == 1


@pytest.mark.parametrize("pack", [lambda x: {"logits": [x]}, lambda x: (None, x), lambda x: [x]])
def test_values_without_numbers_inside_containers_are_not_recorded(pack):
    def first(value):
        while not isinstance(value, torch.Tensor):
            value = value["logits"] if isinstance(value, dict) else value[-1]
        return (value,)

    monitor = OutputMonitor(PassthroughReducer(1.0), module := nn.Identity(), map_=first)
    module(pack(torch.ones(2, device="meta")))
    assert monitor.latest is None
    module(pack(torch.ones(2)))
    assert monitor.latest.tolist() == [1, 1]


@pytest.mark.parametrize("prepend", [False, True])
@pytest.mark.parametrize(
    ("kind", "side"),
    [
        (InputMonitor, "before"),
        (OutputMonitor, "after"),
        (partial(StateMonitor, attr="bias"), "after"),
        (partial(StateMonitor, attr="bias", as_prehook=True), "before"),
        (partial(MultiStateMonitor, attr="", subattrs="bias", as_prehook=True), "before"),
    ],
    ids=["input", "output", "state", "state before", "several states before"],
)
def test_prepended_monitor_comes_before_hooks_that_are_there(layer, kind, side, prepend):
    order = []
    layer.register_forward_pre_hook(lambda *_: order.append(("before", "other")))
    layer.register_forward_hook(lambda *_: order.append(("after", "other")))
    monitor = kind(
        PassthroughReducer(1.0), module=layer, prepend=prepend, filter_=lambda *_: order.append((side, "monitor"))
    )
    layer(X)
    on_its_side = [who for when, who in order if when == side]
    assert on_its_side == (["monitor", "other"] if prepend else ["other", "monitor"])
    assert monitor.latest is None


def test_map_and_filter_may_be_modules(layer):
    head = nn.Linear(2, 1)
    monitor = OutputMonitor(PassthroughReducer(1.0), layer, map_=head)
    torch.testing.assert_close(head(layer(X)), monitor.latest)


def test_map_that_returns_a_bare_tensor_is_taken_at_its_word(layer):
    monitor = OutputMonitor(PassthroughReducer(1.0), layer, map_=lambda y: y.mean(0))
    layer(torch.ones(3, 2))
    assert monitor.latest.shape == (2,)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"logits": X}, "takes tensors and numbers, not dict. Give the monitor a map_"),
        ((X, X), "PassthroughReducer cannot take 2 tensors in one sample. Give the monitor a map_"),
    ],
)
def test_sample_that_no_reducer_can_take(sample, message):
    monitor = OutputMonitor(PassthroughReducer(1.0), module := nn.Identity())
    with pytest.raises(TypeError, match=message):
        module(sample)
    assert monitor.reducer.count == 0
