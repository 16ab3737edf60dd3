"""Monitors of inputs and outputs."""

import pytest
import torch
from torch import nn

from monitorch.observe import (
    InputMonitor,
    OutputMonitor,
    PassthroughReducer,
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
