"""Activation checkpointing repeats forward passes; repetitions are not samples."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from monitorch import PyTorchInspector
from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer
from monitorch.gatherer.recomputation import RecomputationFilter, inside_backward
from monitorch.lens import OutputActivation as OutputActivationLens
from monitorch.preprocessor import OutputNorm


@pytest.fixture(params=[True, False], ids=["reentrant", "not reentrant"])
def block(request):
    """A layer under checkpointing, as a function."""
    layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def run(x):
        return checkpoint(layers, x, use_reentrant=request.param)

    run.layers = layers
    return run


def train(block, steps=2):
    for _ in range(steps):
        block(torch.ones(4, 3, requires_grad=True)).pow(2).sum().backward()


@pytest.mark.parametrize("evaluation_from_grad", [None, True])
def test_forward_lenses_see_one_sample_per_step(block, state, evaluation_from_grad):
    norms = OutputNorm(False, False, False, evaluation_from_grad)
    gatherer = FeedForwardGatherer(block.layers[1], [norms], "tanh", state)
    train(block)
    gatherer.detach()
    expected = block.layers(torch.ones(4, 3)).double().norm(dim=1).mean().item()
    assert norms.value["tanh"] == pytest.approx([expected] * 2, rel=1e-6)


def test_output_gradient_has_one_sample_per_step(block, state, keeper):
    gatherer = BackwardGatherer(block.layers[0], [keeper], "lin", state)
    train(block)
    gatherer.detach()
    hidden = block.layers[0](torch.ones(4, 3))
    [expected] = torch.autograd.grad(block.layers[1](hidden).pow(2).sum(), hidden)
    assert len(keeper.calls) == 2
    for *_, (gradient,) in keeper.calls:
        torch.testing.assert_close(gradient, expected)


def test_weights_stay_bit_identical_under_checkpointing(block, state, keeper):
    train(block, steps=1)
    bare = block.layers[0].weight.grad.clone()
    block.layers.zero_grad()
    FeedForwardGatherer(block.layers[0], [keeper], "lin", state)
    BackwardGatherer(block.layers[0], [keeper], "lin", state)
    train(block, steps=1)
    assert torch.equal(block.layers[0].weight.grad, bare)


class Repeats(torch.autograd.Function):
    """Runs a function without gradients, and once more inside backward."""

    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        function()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.function()
        return gradient, None


def test_the_repetition_counts_of_a_pass_that_ran_without_gradients():
    passes, judged = RecomputationFilter(None), []

    def judge():
        judged.append((inside_backward(), passes.counts()))

    for _ in range(2):
        judge()  # a plain pass of the same layer, which is not repeated
        x = 2 * Repeats.apply(torch.ones(1, requires_grad=True), judge)
        x.register_hook(lambda _: judge())  # as checkpointing repeats a pass that had gradients
        x.sum().backward()
    assert judged == [(False, True), (False, True), (True, False), (True, True)] * 2
    assert not inside_backward()


def test_an_evaluation_pass_is_not_one_to_be_repeated(state):
    passes, judged = RecomputationFilter(state), []
    state.pass_has_grad = False
    with torch.no_grad():
        assert passes.counts()
    state.pass_has_grad = True
    Repeats.apply(torch.ones(1, requires_grad=True), lambda: None).register_hook(lambda _: None)
    y = Repeats.apply(torch.ones(1, requires_grad=True), lambda: inside_backward() and judged.append(passes.counts()))
    y.sum().backward()
    assert judged == [False]


@pytest.mark.parametrize("shared_first", [True, False])
def test_a_layer_shared_by_a_checkpointed_and_a_plain_block_shows_both_calls(shared_first):
    act, first, second = nn.ReLU(), nn.Linear(3, 5), nn.Linear(5, 5)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.first, self.second = act, first, second

        def forward(self, x):
            if shared_first:
                return act(second(checkpoint(lambda x: act(first(x)), x, use_reentrant=True)))
            return checkpoint(lambda x: act(second(x)), act(first(x)), use_reentrant=True)

    model, lens = Model(), OutputActivationLens(inplace=False)
    inspector = PyTorchInspector([lens], module=model, visualizer="dummy", on_error="raise")
    x = torch.randn(4, 3, requires_grad=True)
    model(x).sum().backward()
    with torch.no_grad():
        hidden = first(x).relu()
        expected = [(values > 0).double().mean().item() for values in (hidden, second(hidden).relu())]
    assert sorted(lens._preprocessors[0].value["act"][0]) == pytest.approx(sorted(expected))
    inspector.detach()
