"""The time between two steps of an optimizer: which steps are observed, and whether all of their passes were."""

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.engine.step_interval import StepInterval
from monitorch.lens import ParameterGradientGeometry


def watch(*optimizers, lenses=(), **options):
    """A model that is watched, and what intervals of its last optimizer have told: observed, whole."""
    model = nn.Linear(2, 1)
    made = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    given = {"optimizer": [made[number] for number in optimizers]} if optimizers else {}
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise", **given, **options)
    told = []
    interval = StepInterval(
        inspector.state.engine, made[-1], lambda observed: told.append((observed, interval.is_whole))
    )
    return inspector, model, made, told


def train(model, optimizer, passes=1):
    for _ in range(passes):
        model(torch.ones(1, 2)).backward()
    optimizer.step()


@pytest.mark.parametrize(("every", "expected"), [(1, [True] * 4), (2, [False, True, False, True])])
def test_steps_of_the_optimizer_that_counts_are_whole(every, expected):
    inspector, model, (_, optimizer), told = watch(1, every=every)
    for _ in range(4):
        train(model, optimizer, passes=3)
    assert [observed for observed, _ in told if observed] == [True] * sum(expected)
    assert all(is_whole for observed, is_whole in told if observed)
    inspector.detach()


def test_a_step_that_others_are_only_compared_with_is_not_observed():
    inspector, model, (_, optimizer), told = watch(1, every=3, lenses=[ParameterGradientGeometry()])
    for _ in range(6):
        train(model, optimizer)
    assert [observed for observed, _ in told].count(True) == 2
    inspector.detach()


def test_steps_of_another_optimizer_are_whole_if_all_their_passes_were_observed():
    inspector, model, (first, second), told = watch(0, 1, every=lambda step: step > 2)
    for _ in range(4):
        train(model, first)
        train(model, first)
        second.step()
    assert told == [(True, False), (True, True), (True, True), (True, True)]
    inspector.detach()


def test_one_that_has_left_is_told_nothing():
    inspector, model, (_, optimizer), told = watch(1)
    interval = StepInterval(inspector.state.engine, optimizer, told.append)
    interval.remove()
    interval.remove()
    train(model, optimizer)
    assert told == [(True, True)]
    inspector.detach()
