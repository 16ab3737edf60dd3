"""Hooks of gatherers stay behind when their module is copied, and out of exported programs."""

import copy
import pickle

import pytest
import torch
from torch import nn

from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer, ParameterGradientGatherer
from monitorch.gatherer.channel_layout import ChannelLayout

DUPLICATES = {"deepcopy": copy.deepcopy, "pickle": lambda module: pickle.loads(pickle.dumps(module))}


@pytest.fixture(params=["outputs", "output gradients", "input gradients", "parameter gradients", "channels"])
def gather(request, keeper, full_keeper, state):
    """Put a gatherer that hooks by itself on a module."""

    def build(module):
        if request.param == "outputs":
            return FeedForwardGatherer(module, [keeper], "layer", state)
        if request.param == "parameter gradients":
            return ParameterGradientGatherer("weight", module, [keeper], "layer", state, follow=True)
        if request.param == "channels":
            layout = ChannelLayout()
            layout.watch(module)
            return layout
        return BackwardGatherer(module, [full_keeper if "input" in request.param else keeper], "layer", state)

    return build


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
def test_a_copy_works_and_is_not_gathered_from(duplicate, gather, linear, keeper, full_keeper):
    gatherer = gather(linear)
    twin = duplicate(linear)
    twin(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert keeper.calls == full_keeper.calls == []
    assert twin.weight.grad is not None
    gatherer.detach()


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_has_no_trace_of_the_hook(strict, gather, keeper, full_keeper, request):
    if strict and "input gradients" in request.node.name:
        pytest.skip("torch itself does not trace full backward hooks")
    model, inputs = nn.Sequential(nn.Linear(3, 2)), (torch.ones(1, 3),)
    bare = str(torch.export.export(model, inputs, strict=strict).graph)
    gatherer = gather(model[0])
    program = str(torch.export.export(model, inputs, strict=strict).graph)
    assert program == bare or "input gradients" in request.node.name  # torch adds a view for such a hook
    assert keeper.calls == full_keeper.calls == []
    gatherer.detach()
