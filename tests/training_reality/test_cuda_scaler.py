"""On a GPU a step under a GradScaler with a fused optimizer never waits for the device, skipped or not."""

import pytest
import torch

from monitorch import PyTorchInspector
from monitorch.lens import OutputGradientGeometry, ParameterGradientGeometry, ParameterUpdateGeometry, UpdateRatio
from tests.training_reality import models

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


@pytest.mark.parametrize("gradient", ["at_step", "before_clip"])
def test_steps_do_not_wait(gradient):
    model = models.mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    lenses = [OutputGradientGeometry(), ParameterGradientGeometry(), ParameterUpdateGeometry(optimizer)]
    lenses.append(UpdateRatio(optimizer, parameters="weight"))
    known = {"optimizer": optimizer, "grad_scaler": scaler, "gradient": gradient}
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise", **known)
    x, worst = torch.randn(8, models.WIDTH, device="cuda"), torch.full((), torch.inf, device="cuda")
    for step in range(8):
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")  # the first ones build kernels
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if step == 5:
            model[0].weight.grad[0, 0].copy_(worst)
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.set_sync_debug_mode("default")
    inspector.tick_epoch()
    shown = {(record.tag, record.layer, record.statistic): record for record in inspector.records()}
    assert shown["Logged", "Logged", "skipped steps mean"].value == 1
    for tag in ("Weight Gradient Norm", "Weight Update Norm", "Weight Update Ratio"):
        assert shown[tag, "0", "mean"].nonfinite == 0
        assert shown[tag, "0", "min"].value > 0
