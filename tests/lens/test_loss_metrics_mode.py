"""Which losses are those of training."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from monitorch.lens import LossMetrics


@pytest.mark.parametrize(
    ("rule", "model_training", "grad", "name"),
    [
        (None, True, True, "train_loss"),
        (None, True, False, "val_loss"),
        (None, False, True, "val_loss"),
        (None, False, False, "val_loss"),
        (True, False, True, "train_loss"),
        (True, True, False, "val_loss"),
        (False, False, False, "train_loss"),
    ],
)
def test_mode_of_the_model_counts_where_both_are_asked(rule, model_training, grad, name, watch, shown):
    model, loss_fn = nn.Linear(2, 1), nn.MSELoss()
    inspector = watch(model, LossMetrics(loss_fn=loss_fn, evaluation_from_grad=rule))
    model.train(model_training)
    with torch.set_grad_enabled(grad):
        loss_fn(model(torch.ones(3, 2)), torch.zeros(3, 1))
    inspector.tick_epoch()
    assert list(shown.values("Loss")["Loss"]) == [f"{name} mean"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_loss_inside_a_checkpoint_is_one_of_training_only(reentrant, watch, shown):
    model, loss_fn = nn.Linear(2, 1), nn.MSELoss()
    inspector = watch(model, LossMetrics(loss_fn=loss_fn))
    output = model(torch.ones(3, 2))
    checkpoint(lambda output: loss_fn(output, torch.zeros(3, 1)), output, use_reentrant=reentrant).backward()
    inspector.tick_epoch()
    expected = output.detach().double().square().mean().item()
    assert shown.values("Loss")["Loss"] == {"train_loss mean": pytest.approx(expected)}
