"""What a forward pass hands over."""

import torch
from torch import nn

from monitorch.gatherer import FeedForwardGatherer


def test_hands_over_the_very_input_and_output(keeper, state, linear):
    FeedForwardGatherer(linear, [keeper], "lin", state)
    x = torch.ones(4, 3)
    y = linear(x)
    [(name, module, layer_input, layer_output)] = keeper.calls
    assert (name, module) == ("lin", linear)
    assert layer_input is x
    assert layer_output is y


def test_keyword_only_calls_hand_over_the_first_keyword(keeper, state):
    loss_fn = nn.MSELoss()
    FeedForwardGatherer(loss_fn, [keeper], "loss", state)
    prediction, target = torch.tensor([1.0]), torch.tensor([3.0])
    loss = loss_fn(input=prediction, target=target)
    [(_, _, layer_input, layer_output)] = keeper.calls
    assert layer_input is prediction
    assert layer_output is loss


def test_every_preprocessor_is_served(keeper, full_keeper, state, linear):
    FeedForwardGatherer(linear, [keeper, full_keeper], "lin", state)
    linear(torch.ones(1, 3))
    assert len(keeper.calls) == len(full_keeper.calls) == 1


def test_output_of_the_module_is_not_replaced(keeper, state, linear):
    x = torch.ones(4, 3)
    bare = linear(x)
    FeedForwardGatherer(linear, [keeper], "lin", state)
    assert torch.equal(linear(x), bare)


def test_state_is_asked_at_every_pass(keeper, linear):
    class TrainingOnly:
        on_error = "raise"
        is_active = property(lambda self: linear.training)

    FeedForwardGatherer(linear, [keeper], "lin", TrainingOnly())
    linear(torch.ones(1, 3))
    linear.eval()(torch.ones(1, 3))
    linear.train()(torch.ones(1, 3))
    assert len(keeper.calls) == 2
    assert keeper.gaps == ["lin"]


def test_tensors_without_numbers_are_not_handed_over(keeper, state):
    module = nn.Identity()
    FeedForwardGatherer(module, [keeper], "same", state)
    module((torch.ones(1), {"x": torch.ones(1, device="meta")}))
    module(torch.ones(1))
    assert len(keeper.calls) == 1
