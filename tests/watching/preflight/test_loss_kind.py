"""Which loss a function computes, and what the best constant answer gets."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from monitorch.watching.preflight.loss_kind import (
    BCE,
    CROSS_ENTROPY,
    L1,
    LOGIT_BCE,
    MSE,
    NLL,
    SMOOTH,
    loss_input,
)

LOGITS, LABELS = torch.randn(12, 5), torch.arange(12) % 5
NUMBERS, BITS = torch.randn(12, 3), (torch.arange(36).reshape(12, 3) % 2).float()


def known(loss_fn, output, targets, inputs=None):
    loss = float(loss_fn(output, targets)) if loss_fn is not None else 1.5
    return loss_input(loss_fn, output, inputs, targets, loss)


def own_cross_entropy(output, target):
    return -output.log_softmax(-1)[torch.arange(len(target)), target].mean()


@pytest.mark.parametrize(
    ("loss_fn", "output", "target", "kind"),
    [
        (nn.CrossEntropyLoss(), LOGITS, LABELS, CROSS_ENTROPY),
        (nn.CrossEntropyLoss(torch.rand(5), label_smoothing=0.2), LOGITS, LABELS, CROSS_ENTROPY),
        (F.cross_entropy, LOGITS, LABELS, CROSS_ENTROPY),
        (own_cross_entropy, LOGITS, LABELS, CROSS_ENTROPY),
        (lambda output, target: F.cross_entropy(output, target, reduction="sum"), LOGITS, LABELS, CROSS_ENTROPY),
        (nn.NLLLoss(), LOGITS.log_softmax(1), LABELS, NLL),
        (lambda output, target: F.nll_loss(output, target), LOGITS.softmax(1), LABELS, NLL),
        (nn.MSELoss(reduction="sum"), NUMBERS, NUMBERS + 1, MSE),
        (lambda output, target: (output - target).square().mean(), NUMBERS, BITS, MSE),
        (lambda output, target: (output - target).abs().mean(), NUMBERS, BITS, L1),
        (nn.SmoothL1Loss(), NUMBERS, BITS, SMOOTH),
        (nn.BCEWithLogitsLoss(), NUMBERS, BITS, LOGIT_BCE),
        (lambda output, target: F.binary_cross_entropy(output.sigmoid(), target), NUMBERS, BITS, LOGIT_BCE),
        (nn.BCELoss(), NUMBERS.sigmoid(), BITS, BCE),
        (lambda output, target: F.cross_entropy(output, target) + 1, LOGITS, LABELS, None),
        (lambda output, target: output.mean(), NUMBERS, LABELS, None),
    ],
)
def test_a_loss_is_known_by_its_class_or_by_its_result(loss_fn, output, target, kind):
    assert known(loss_fn, output, target).kind == kind


@pytest.mark.parametrize(
    ("loss_fn", "output", "target", "trivial"),
    [
        (nn.CrossEntropyLoss(), LOGITS, LABELS, math.log(5)),
        (nn.BCEWithLogitsLoss(), NUMBERS, BITS, math.log(2)),
        (nn.BCEWithLogitsLoss(), NUMBERS, BITS * 0.9, None),
        (nn.MSELoss(), NUMBERS, NUMBERS * 3, np.var(3 * NUMBERS.double().numpy())),
        (nn.CrossEntropyLoss(), LOGITS[:, :1], LABELS * 0, None),
    ],
    ids=["classes", "bits", "shares", "numbers", "one class"],
)
def test_what_a_constant_answer_gets(loss_fn, output, target, trivial):
    found = known(loss_fn, output, target).trivial
    assert found == (None if trivial is None else pytest.approx(trivial, rel=1e-6))


def test_the_mean_is_without_weights_and_ignored_targets():
    target = LABELS.where(LABELS > 0, -100)
    found = known(nn.CrossEntropyLoss(torch.rand(5)), LOGITS, target)
    rows = LOGITS.double().numpy()
    logs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    expected = -np.mean([logs[row, label] for row, label in enumerate(target.tolist()) if label > 0])
    assert found.mean == pytest.approx(expected, rel=1e-6)


def test_labels_among_the_inputs_of_a_model_that_computes_its_loss():
    found = known(None, LOGITS, None, {"x": NUMBERS, "labels": LABELS})
    assert (found.kind, found.classes, found.mean) == (CROSS_ENTROPY, 5, 1.5)


@pytest.mark.parametrize(("output", "targets"), [(None, LABELS), (LOGITS, None), (LOGITS, "text")])
def test_nothing_is_known_without_output_and_target(output, targets):
    assert loss_input(nn.MSELoss(), output, None, targets, 1.0) is None


def test_shapes_that_do_not_fit_are_no_error():
    assert loss_input(torch.nn.MSELoss(), torch.ones(3), None, torch.ones(4), 1.0).mean is None


class Unhashable:
    __hash__ = None

    def __call__(self, output, target):
        return F.mse_loss(output, target)


def test_a_callable_that_cannot_be_hashed():
    assert known(Unhashable(), NUMBERS, BITS).kind == MSE
