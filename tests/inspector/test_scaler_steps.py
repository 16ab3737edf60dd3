"""The stand-in for a scaler's step: it tells of skipped steps, and leaves nothing behind."""

import copy
import pickle

import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.engine.optimizers import OptimizerSteps
from monitorch.inspector.scaler_steps import ScalerSteps


@pytest.fixture
def model():
    return nn.Linear(2, 1)


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def scaler():
    return torch.amp.GradScaler("cpu", init_scale=4.0)


def stand_in(scaler, optimizer, told):
    return ScalerSteps(scaler, [OptimizerSteps(optimizer, None)], told.append, None)


def step(scaler, optimizer, gradient):
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.full_like(parameter, gradient)
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)
    scaler.update()


def test_only_skipped_steps_of_known_optimizers_are_told(scaler, optimizer):
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    skipped = []
    steps = stand_in(scaler, optimizer, skipped)
    for stepped, gradient in ((optimizer, 1.0), (optimizer, torch.inf), (other, torch.nan), (optimizer, torch.nan)):
        step(scaler, stepped, gradient)
    assert skipped == [optimizer, optimizer]
    steps.remove()
    step(scaler, optimizer, torch.inf)
    assert len(skipped) == 2


def test_a_scaler_that_is_switched_off_skips_nothing(optimizer):
    skipped, scaler = [], torch.amp.GradScaler("cpu", enabled=False)
    stand_in(scaler, optimizer, skipped)
    step(scaler, optimizer, torch.inf)
    assert skipped == []


def test_what_the_step_returns_and_raises_comes_through(scaler, optimizer):
    stand_in(scaler, optimizer, [])
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: None)
    scaler.scale(torch.ones(1))
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(optimizer)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first in first out", "last in first out"])
def test_two_of_them_leave_in_any_order(scaler, optimizer, order):
    told, before = ([], []), set(vars(scaler))
    both = [stand_in(scaler, optimizer, own) for own in told]
    step(scaler, optimizer, torch.inf)
    both[order[0]].remove()
    step(scaler, optimizer, torch.inf)
    both[order[1]].remove()
    step(scaler, optimizer, torch.inf)
    assert [len(told[place]) for place in order] == [1, 2]
    assert set(vars(scaler)) == before


def test_a_lone_one_leaves_no_trace(scaler, optimizer):
    before = dict(vars(scaler))
    stand_in(scaler, optimizer, []).remove()
    assert vars(scaler) == before


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))], ids=["deepcopy", "pickle"]
)
def test_copies_of_the_scaler_step_by_themselves(scaler, optimizer, copied):
    told = []
    stand_in(scaler, optimizer, told)
    twin = copied(scaler)
    assert twin.step.__self__ is twin
    step(twin, optimizer, torch.inf)
    assert told == []


def test_an_error_of_ours_is_told_and_the_step_comes_through(scaler, optimizer):
    def fail(_):
        raise ValueError("ours")

    ScalerSteps(scaler, [OptimizerSteps(optimizer, None)], fail, None)
    with pytest.warns(MonitorchWarning, match="skipped failed: ValueError: ours"):
        step(scaler, optimizer, torch.inf)
