"""Where gatherers find the taps they share."""

import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.engine.buffers import Note
from monitorch.gatherer import FeedForwardGatherer, OptimizerStepParameterGatherer, ParameterGradientGatherer
from monitorch.preprocessor import GradientActivation, GradientGeometry, OutputNorm, ParameterDifferenceGeometry


@pytest.fixture
def optimizer(linear):
    return torch.optim.SGD(linear.parameters(), lr=1.0)


def everything(linear, optimizer, state):
    """A gatherer of each kind."""
    updates = ParameterDifferenceGeometry(False, False, True)
    return [
        FeedForwardGatherer(linear, [OutputNorm(False, True, False, None)], "lin", state),
        ParameterGradientGatherer("weight", linear, [GradientGeometry(False, False, True)], "lin", state, follow=True),
        OptimizerStepParameterGatherer(linear, optimizer, "weight", [updates], "lin", state),
    ]


def test_a_module_and_an_optimizer_have_one_tap_each(linear, optimizer, measured):
    house = measured.engine
    assert house.output(linear, "lin") is house.output(linear, "again")
    assert house.output(linear, "lin") is not house.output(nn.Linear(1, 1), "other")
    assert house.updates(optimizer) is house.updates(optimizer)


def test_hooks_nobody_needs_are_gone_after_a_refresh(linear, optimizer, measured, count_hooks):
    gatherers = everything(linear, optimizer, measured)
    things = (linear, linear.weight, optimizer)
    before = count_hooks(*things)
    measured.engine.refresh()
    assert count_hooks(*things) == before > 0
    for gatherer in gatherers:
        gatherer.detach()
    measured.engine.refresh()
    assert count_hooks(*things) == 0


def test_closing_removes_all_hooks_though_gatherers_stay(linear, optimizer, measured, count_hooks):
    everything(linear, optimizer, measured)
    measured.engine.close()
    assert count_hooks(linear, linear.weight, optimizer) == 0


@pytest.mark.parametrize("correlation", [True, False])
def test_says_whether_consecutive_tensors_are_compared(correlation, linear, optimizer, measured):
    everything(linear, optimizer, measured)
    geometry = GradientGeometry(correlation, False, True)
    ParameterGradientGatherer("bias", linear, [geometry], "lin", measured, follow=True)
    assert measured.engine.compares is correlation


def test_an_error_that_sites_have_together_is_told_once_and_ends_all_of_them(linear, measured):
    preprocessors = [GradientGeometry(False, False, True), GradientActivation(True, True)]
    for name, preprocessor in zip(("weight", "bias"), preprocessors, strict=True):
        ParameterGradientGatherer(name, linear, [preprocessor], name, measured, follow=True)
    notes = [Note(site, 0, 0) for site in measured.engine.gradients.sites]

    def verb(notes, data):
        raise MemoryError("the device is full")

    with pytest.warns(MonitorchWarning, match="MemoryError: the device is full") as told:
        measured.engine.measure(notes, verb, torch.ones(2))
    assert len(told) == 1
    assert all(site.failed for site in measured.engine.gradients.sites)


def test_gatherers_without_a_house_hook_by_themselves(linear, state, count_hooks):
    norms = OutputNorm(False, True, False, None)
    gatherer = FeedForwardGatherer(linear, [norms], "lin", state)
    linear(torch.ones(1, 3))
    assert norms.value["lin"].count == 1
    gatherer.detach()
    assert count_hooks(linear) == 0
