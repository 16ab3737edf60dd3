"""Monitors of attributes."""

import pytest
import torch
from torch import nn

from monitorch.observe import (
    MultiStateMonitor,
    PassthroughReducer,
    StateMonitor,
)

X = torch.ones(1, 2)


@pytest.mark.parametrize(("as_prehook", "expected"), [(False, 5), (True, 0)])
def test_state_monitor(rebinding, as_prehook, expected):
    monitor = StateMonitor(PassthroughReducer(1.0), "st", rebinding, as_prehook)
    rebinding(5.0)
    assert monitor.latest.tolist() == [expected]


def test_state_monitor_sees_the_gradient_of_the_step_before(layer):
    monitor = StateMonitor(PassthroughReducer(1.0), "weight.grad", layer, as_prehook=True)
    layer(X).sum().backward()
    assert monitor.latest is None
    layer(X)
    assert torch.equal(monitor.latest, layer.weight.grad)


def test_multi_state_monitor(layer):
    ratio = MultiStateMonitor(
        PassthroughReducer(1.0),
        "",
        ("weight", "weight.grad"),
        layer,
        True,
        map_=lambda wg: (wg[1].norm() / wg[0].norm(),),
    )
    layer(X).sum().backward()
    assert ratio.latest is None
    layer(X)
    assert ratio.latest.item() == pytest.approx((layer.weight.grad.norm() / layer.weight.norm()).item())


def test_multi_state_below_an_attribute():
    model = nn.Sequential(nn.Linear(2, 2))
    monitor = MultiStateMonitor(PassthroughReducer(1.0), "0", "bias", model)
    model(X)
    assert torch.equal(monitor.latest, model[0].bias)
