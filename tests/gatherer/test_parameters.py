"""Parameters, as they are and around steps, and their gradients."""

import pytest
import torch
from torch import nn

from monitorch.gatherer import (
    CallParameterGatherer,
    EpochModuleGatherer,
    OptimizerStepParameterGatherer,
    ParameterGradientGatherer,
)


def test_hands_over_the_module_at_each_call(keeper, state, linear):
    gatherer = EpochModuleGatherer(linear, [keeper], "lin", state)
    gatherer()
    gatherer()
    assert keeper.calls == [("lin", linear)] * 2


def test_puts_no_hook_and_lets_go_of_the_module(keeper, state, linear, count_hooks):
    gatherer = EpochModuleGatherer(linear, [keeper], "lin", state)
    assert count_hooks(linear, linear.weight) == 0
    gatherer.detach()
    assert linear not in vars(gatherer).values()


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


def train(linear, optimizer, steps):
    """Weights before and after each step."""
    pairs = []
    for _ in range(steps):
        linear(torch.ones(4, 3)).pow(2).sum().backward()
        before = linear.weight.detach().clone()
        optimizer.step()
        pairs.append((before, linear.weight.detach().clone()))
    return pairs


def test_shows_the_parameter_before_and_hands_it_over_after_each_step(keeper, state, linear):
    optimizer = torch.optim.Adam(linear.parameters())
    OptimizerStepParameterGatherer(linear, optimizer, "weight", [keeper], "lin", state)
    pairs = train(linear, optimizer, 3)
    for (before, after), remembered, (_, tensor) in zip(pairs, keeper.remembered, keeper.calls, strict=True):
        assert torch.equal(remembered, before)
        assert torch.equal(tensor, after)


def test_can_be_called_by_hand(keeper, state, linear):
    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
    gatherer = OptimizerStepParameterGatherer(linear, optimizer, "bias", [keeper], "lin", state)
    gatherer()
    assert torch.equal(keeper.calls[0][1], linear.bias.detach())


def test_nothing_is_remembered_while_inactive(keeper, state, linear):
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    OptimizerStepParameterGatherer(linear, optimizer, "weight", [keeper], "lin", state)
    state.paused = True
    train(linear, optimizer, 2)
    assert (keeper.remembered, keeper.calls, keeper.gaps) == ([], [], ["lin"])
    state.paused = False
    [(before, after)] = train(linear, optimizer, 1)
    assert torch.equal(keeper.remembered[0], before)
    assert torch.equal(keeper.calls[0][1], after)


def test_another_optimizer_is_not_listened_to(keeper, state, linear):
    optimizer, other = (torch.optim.SGD(linear.parameters(), lr=0.1) for _ in range(2))
    OptimizerStepParameterGatherer(linear, optimizer, "weight", [keeper], "lin", state)
    train(linear, other, 2)
    assert keeper.calls == []


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
