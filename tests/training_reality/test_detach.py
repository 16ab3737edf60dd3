"""An inspector may leave at any moment, also between a forward pass and its backward pass."""

import copy

import pytest
import torch

from monitorch import PyTorchInspector
from monitorch.lens import OutputActivation, OutputGradientGeometry, OutputNorm, ParameterGradientGeometry
from tests.training_reality import loops, models

MODELS = {
    "plain": models.mlp,
    "in place": lambda: models.mlp(inplace=True),
    "called twice": models.CalledTwice,
    "checkpointed, reentrant": lambda: models.Checkpointed(True),
    "checkpointed, non-reentrant": lambda: models.Checkpointed(False),
}


def leave(inspector):
    inspector.detach()


def take_lenses_out(inspector):
    inspector.lenses.clear()
    inspector.tick_epoch()


@pytest.mark.parametrize("leave", [leave, take_lenses_out])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_backward_goes_on_without_the_inspector(model, leave):
    watched = model()
    bare = copy.deepcopy(watched)
    lenses = [OutputNorm(), OutputActivation(), OutputGradientGeometry(), ParameterGradientGeometry()]
    optimizer = torch.optim.SGD(watched.parameters(), lr=0.1)
    options = {"module": watched, "optimizer": optimizer, "gradient": "before_clip", "visualizer": "dummy"}
    inspector = PyTorchInspector(lenses, on_error="raise", **options)
    losses = [loops.batch_loss(0)(one, torch.float32) for one in (watched, bare)]
    leave(inspector)
    for loss in losses:
        loss.backward()
    for mine, other in zip(watched.parameters(), bare.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, other.grad)
    optimizer.step()
    assert inspector.records() == [] or leave is take_lenses_out
