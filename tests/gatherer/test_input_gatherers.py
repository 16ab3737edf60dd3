"""Errors with data are told once, and never reach the training loop."""

import pytest
import torch
from torch import nn

from monitorch.errors import MonitorchWarning, SkippedSample
from monitorch.gatherer.input_gatherers import InputGatherer, LossInputGatherer
from monitorch.preprocessor.loss_inputs import LossInputs


@pytest.fixture
def loss_fn():
    return nn.CrossEntropyLoss(ignore_index=1)


class KeptLosses(LossInputs):
    """Keeps what it is called with; raises ``error`` where one is set."""

    def __init__(self):
        super().__init__()
        self.calls, self.error = [], None

    def process_loss(self, named, ignore_index=None):
        self.calls.append((named, ignore_index))
        if self.error is not None:
            raise self.error


def test_each_input_is_passed_on_with_its_name(measured, keeper):
    gatherer = InputGatherer(measured.engine, [keeper], measured)
    model = nn.Linear(2, 1)
    measured.engine.inputs.take((torch.ones(3, 2),), {"mask": torch.zeros(3)})
    assert [name for name, _ in keeper.calls] == ["input", "input.mask"]
    gatherer.detach()
    measured.engine.inputs.take((torch.ones(3, 2),), {})
    assert len(keeper.calls) == 2
    assert not model._forward_pre_hooks


def test_an_error_with_an_input_is_told_once(measured, keeper):
    InputGatherer(measured.engine, [keeper], measured)
    keeper.error = ValueError("no such thing")
    with pytest.warns(MonitorchWarning, match=r"stops watching layer 'input': ValueError: no such thing \(shapes"):
        measured.engine.inputs.take((torch.ones(3, 2),), {})
    measured.engine.inputs.take((torch.ones(3, 2),), {})


def test_a_loss_is_passed_on_with_what_it_ignores(measured, loss_fn):
    losses = KeptLosses()
    gatherer = LossInputGatherer(measured.engine, nn.Linear(1, 1), loss_fn, [losses], measured)
    loss_fn(torch.ones(3, 2, requires_grad=True), target=torch.tensor([0, 1, 0]))
    [(named, ignore_index)] = losses.calls
    assert list(named) == ["output", "target"]
    assert ignore_index == 1
    gatherer.detach()
    assert not loss_fn._forward_pre_hooks


@pytest.mark.parametrize(("error", "calls"), [(SkippedSample("too many"), 2), (RuntimeError("oh no"), 1)])
def test_an_error_with_a_loss_is_told_once(measured, loss_fn, error, calls):
    losses = KeptLosses()
    losses.error = error
    LossInputGatherer(measured.engine, nn.Linear(1, 1), loss_fn, [losses], measured)
    with pytest.warns(MonitorchWarning, match=str(error)):
        loss_fn(torch.ones(3, 2), torch.tensor([0, 1, 0]))
    loss_fn(torch.ones(3, 2), torch.tensor([0, 1, 0]))
    assert len(losses.calls) == calls
