"""A parameter around the steps of an optimizer."""

import torch

from monitorch.gatherer import OptimizerStepParameterGatherer


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
