"""Gradients of parameters, also of those that start or change later."""

import pytest
import torch
from torch import nn

from monitorch.gatherer import ParameterGradientGatherer


def backward(module, x=None):
    module.zero_grad()
    module(torch.ones(4, 3) if x is None else x).pow(2).sum().backward()


def test_hands_over_the_accumulated_gradient(keeper, state, linear):
    ParameterGradientGatherer("weight", linear, [keeper], "lin", state)
    x = torch.randn(4, 3)
    expected = []
    for _ in range(2):  # no zero_grad in between: the second sample is the running sum
        linear(x).pow(2).sum().backward()
        expected.append(linear.weight.grad.clone())
    assert [name for name, _ in keeper.calls] == ["lin", "lin"]
    for (_, gradient), truth in zip(keeper.calls, expected, strict=True):
        assert torch.equal(gradient, truth)
    torch.testing.assert_close(expected[1], 2 * expected[0])


@pytest.mark.parametrize("parameter", ["nothing", "bias"])
def test_a_missing_parameter_is_an_error(parameter, keeper, state):
    with pytest.raises(AttributeError, match=f"no parameter '{parameter}' of layer 'lin'"):
        ParameterGradientGatherer(parameter, nn.Linear(3, 2, bias=False), [keeper], "lin", state)


def test_a_frozen_parameter_is_an_error(keeper, state, linear):
    linear.weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match="'weight' of layer 'lin' is frozen"):
        ParameterGradientGatherer("weight", linear, [keeper], "lin", state)


def test_unfreezing_is_noticed(keeper, state, linear):
    linear.weight.requires_grad_(False)
    ParameterGradientGatherer("weight", linear, [keeper], "lin", state, follow=True)
    backward(linear)
    assert keeper.calls == []
    linear.weight.requires_grad_(True)
    backward(linear)
    assert torch.equal(keeper.calls[0][1], linear.weight.grad)


def test_freezing_and_unfreezing_again_gives_one_sample_per_backward(keeper, state, linear):
    ParameterGradientGatherer("weight", linear, [keeper], "lin", state, follow=True)
    for frozen in (False, True, False):
        linear.weight.requires_grad_(not frozen)
        backward(linear)
    assert len(keeper.calls) == 2


def test_a_replaced_parameter_is_followed_and_the_old_one_let_go(keeper, state, linear, count_hooks):
    gatherer = ParameterGradientGatherer("weight", linear, [keeper], "lin", state, follow=True)
    old = linear.weight
    linear.weight = nn.Parameter(torch.ones(2, 3))
    backward(linear)
    assert torch.equal(keeper.calls[0][1], linear.weight.grad)
    assert count_hooks(old) == 0
    gatherer.detach()
    assert count_hooks(linear, linear.weight) == 0


def test_a_lazy_parameter_is_watched_once_it_has_a_shape(keeper, state):
    lazy = nn.LazyLinear(2)
    ParameterGradientGatherer("weight", lazy, [keeper], "lazy", state, follow=True)
    backward(lazy)
    backward(lazy)
    assert [gradient.shape for _, gradient in keeper.calls] == [(2, 3), (2, 3)]
    assert torch.equal(keeper.calls[-1][1], lazy.weight.grad)


def test_a_lazy_parameter_without_follow_is_an_error(keeper, state):
    with pytest.raises(AttributeError, match="no parameter 'weight' of layer 'lazy'"):
        ParameterGradientGatherer("weight", nn.LazyLinear(2), [keeper], "lazy", state)


def test_loading_weights_and_changing_dtype_keep_the_hook(keeper, state, linear):
    ParameterGradientGatherer("weight", linear, [keeper], "lin", state)
    linear.load_state_dict(nn.Linear(3, 2).state_dict())
    backward(linear)
    linear.double()
    backward(linear, torch.ones(4, 3, dtype=torch.float64))
    assert [gradient.dtype for _, gradient in keeper.calls] == [torch.float32, torch.float64]


def test_an_unused_parameter_has_no_sample(keeper, state, linear):
    ParameterGradientGatherer("weight", linear, [keeper], "lin", state)
    linear.bias.sum().backward()
    assert keeper.calls == []


def test_a_gradient_that_was_consumed_during_backward_has_no_sample(keeper, state, linear):
    linear.weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    ParameterGradientGatherer("weight", linear, [keeper], "lin", state)
    backward(linear)
    assert keeper.calls == []
