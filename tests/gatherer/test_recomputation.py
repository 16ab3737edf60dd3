"""Activation checkpointing repeats forward passes; repetitions are not samples."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer
from monitorch.gatherer.recomputation import RecomputationFilter, inside_backward
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


def test_filter_judges_passes_inside_backward_by_the_pass_before():
    passes, judged = RecomputationFilter(), []

    def judge(gradient):
        assert inside_backward()
        judged.append(passes.counts())

    def backward():
        x = torch.ones(1, requires_grad=True)
        x.register_hook(judge)
        x.sum().backward()

    assert passes.counts()
    backward()
    with torch.no_grad():
        assert passes.counts()
    backward()
    assert judged == [False, True]
    assert not inside_backward()
