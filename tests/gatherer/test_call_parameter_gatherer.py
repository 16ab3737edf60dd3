"""A parameter on demand."""

import torch
from torch import nn

from monitorch.gatherer import CallParameterGatherer


def test_hands_over_the_parameter_as_it_is_now(keeper, state, linear):
    gatherer = CallParameterGatherer(linear, "weight", [keeper], "lin", state)
    before = linear.weight.detach().clone()
    gatherer()
    with torch.no_grad():
        linear.weight.add_(1)
    gatherer("any", "arguments")
    assert torch.equal(keeper.calls[0][1], before)
    assert torch.equal(keeper.calls[1][1], before + 1)


def test_a_replaced_parameter_is_found_by_its_name(keeper, state, linear):
    gatherer = CallParameterGatherer(linear, "weight", [keeper], "lin", state)
    linear.weight = nn.Parameter(torch.full((2, 3), 7.0))
    gatherer()
    assert torch.equal(keeper.calls[0][1], torch.full((2, 3), 7.0))


def test_a_parameter_without_a_shape_is_passed_over_until_it_has_one(keeper, state):
    lazy = nn.LazyLinear(2)
    gatherer = CallParameterGatherer(lazy, "weight", [keeper], "lazy", state)
    gatherer()
    assert keeper.calls == []
    lazy(torch.ones(1, 3))
    gatherer()
    assert keeper.calls[0][1].shape == (2, 3)
