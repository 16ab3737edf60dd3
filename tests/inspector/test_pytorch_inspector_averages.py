"""With several processes a gradient before clipping is the average of all of them."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from monitorch import PyTorchInspector
from monitorch.lens import ParameterGradientGeometry

STEPS = 3


def batch(rank, step):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(model, x):
    return model(x).square().mean()


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(rank, folder):
    """What this rank shows of each step; all gradients are clipped to nearly nothing."""
    model = build()
    wrapped, optimizer = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)
    known = {"optimizer": optimizer, "gradient": "before_clip", "visualizer": "dummy", "on_error": "raise"}
    inspector = PyTorchInspector([ParameterGradientGeometry(parameters="weight")], module=wrapped, **known)
    shown = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped, batch(rank, step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        inspector.tick_epoch()
        tag = "Weight Gradient Norm"
        shown.append({r.layer: r.value for r in inspector.records() if (r.tag, r.statistic) == (tag, "mean")})
    return shown


@pytest.mark.xdist_group("processes")
def test_it_is_taken_after_the_processes_have_averaged_it(run_ranks):
    shown = run_ranks(train)[0]
    model = build().double()
    for step in range(STEPS):
        model.zero_grad()
        sum(loss_of(model, batch(rank, step).double()) / 2 for rank in range(2)).backward()
        expected = {place: model[int(place)].weight.grad.norm().item() for place in ("0", "2")}
        assert shown[step] == pytest.approx(expected, rel=1e-4)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
