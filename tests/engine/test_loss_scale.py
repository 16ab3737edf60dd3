"""Scales are read without waiting, and follow the scaler from step to step."""

import pytest
import torch
from torch import nn

from monitorch.engine.loss_scale import LossScale, StepScales, Unscaling


@pytest.fixture
def optimizer():
    return torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)


def tell(optimizer, scale, found_inf):
    """What a scaler does before it calls an optimizer that unscales by itself."""
    optimizer.grad_scale = None if scale is None else torch.tensor(scale)
    optimizer.found_inf = torch.tensor(found_inf)


def test_the_unit_follows_the_scaler(optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    scale = LossScale(scaler)
    assert scale.unit() == 1
    for unit in (1 / 8, 1 / 16):
        scaler.scale(torch.ones(1))
        assert scale.unit() == unit
        optimizer.param_groups[0]["params"][0].grad = torch.ones(1, 2)
        scaler.step(optimizer)
        scaler.update()
    scaler.update(4.0)
    assert scale.unit() == 1 / 4


def test_a_scaler_that_is_switched_off_has_no_scale():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=False)
    scaler.scale(torch.ones(1))
    assert LossScale(scaler).unit() == 1


def test_an_optimizer_that_is_told_nothing_needs_nothing(optimizer):
    assert StepScales().of(optimizer) == Unscaling()
    assert Unscaling().of_scaled is None
    assert Unscaling().of_unscaled is None


def test_a_step_knows_whether_it_and_the_one_before_are_done(optimizer):
    scales, seen = StepScales(), []
    for found_inf in (0.0, 1.0, 0.0):
        tell(optimizer, 4.0, found_inf)
        once, again = scales.of(optimizer), scales.of(optimizer)
        assert once == again
        seen.append((once.unit.item(), once.works.item(), None if once.worked is None else once.worked.item()))
    assert seen == [(0.25, 1, None), (0.25, 0, 1), (0.25, 1, 0)]


@pytest.mark.parametrize(
    ("scale", "found_inf", "of_scaled", "of_unscaled"),
    [(4.0, 0.0, 0.25, 1), (4.0, 1.0, 0, 0), (None, 0.0, 1, 1), (None, 1.0, 0, 0)],
    ids=["scaled", "scaled, skipped", "unscaled before", "unscaled before, skipped"],
)
def test_what_rows_are_multiplied_by(optimizer, scale, found_inf, of_scaled, of_unscaled):
    tell(optimizer, scale, found_inf)
    unscaling = StepScales().of(optimizer)
    assert unscaling.of_scaled.unit == of_scaled
    assert unscaling.of_unscaled.unit == of_unscaled
