"""The rule sets of others, on records made by hand and on recorded programs."""

import numpy as np
import pytest
from torch import nn

from bench.diagnosis.case import vectors
from bench.diagnosis.cases import CASES
from bench.diagnosis.rules import RULES, Recording, autotrainer, findings, forward_order, record, sagemaker

STEPS, LAYERS = 48, 3


def recording(**changes):
    """Healthy numbers, but for these."""
    flat, wide, falling = np.ones(STEPS), np.ones((STEPS, LAYERS)), np.linspace(2, 0.1, STEPS)
    numbers = {
        "loss": falling,
        "accuracy": np.linspace(0.1, 0.95, STEPS),
        "valid": np.linspace(2, 0.1, 12),
        "lr": 0.01 * flat,
        "input": 0.5 * flat,
        "classes": 2 * flat,
        **{name: wide * value for name, value in HEALTHY_LAYERS.items()},
        **{name: np.zeros((STEPS, 2)) for name in ("dead_values", "dead_units", "beyond_5", "tanh_flat")},
        "sigmoid_flat": np.zeros((STEPS, 2)),
        **{name: value * flat for name, value in HEALTHY_OUTPUTS.items()},
    }
    for name, change in changes.items():
        change(numbers[name])
    return Recording(["0", "2", "4"], ["1", "3"], [nn.ReLU, nn.Tanh], STEPS // 12, numbers)


HEALTHY_LAYERS = {
    "grad_norm": 1.0,
    "grad_mean": 0.01,
    "grad_zero": 0.1,
    "grad_range": 0.1,
    "norm": 5.0,
    "variance": 0.1,
    "moved": 0.01,
    "unchanged": 0.0,
}
HEALTHY_OUTPUTS = {
    "out_min": -3.0,
    "out_max": 3.0,
    "out_mean": 1.0,
    "out_sum": 3.0,
    "target_min": -1.0,
    "target_max": 1.0,
}


def put(value, *place):
    """Write a value into an array."""

    def change(array):
        array[place or slice(None)] = value

    return change


def said(rules, **changes):
    return [(one["symptom"], one["layer"], one["detected_at"]) for one in findings(recording(**changes), RULES[rules])]


@pytest.mark.parametrize("rules", RULES)
def test_healthy_numbers_alarm_nobody(rules):
    assert said(rules) == []


BAD = {"accuracy": put(0.1)}


@pytest.mark.parametrize(
    ("rules", "changes", "verdict"),
    [
        ("AUTOTRAINER", BAD | {"grad_norm": put(1e-5, slice(None), 0)}, ("vanishing_gradient", None, 3)),
        ("AUTOTRAINER", BAD | {"grad_norm": put(80, slice(None), 0)}, ("exploding_signal", None, 3)),
        ("AUTOTRAINER", BAD | {"grad_zero": put(0.8, slice(None), 1)}, ("dead_units|no_gradient|underflow", "2", 3)),
        ("AUTOTRAINER", BAD, ("no_progress", None, 47)),
        ("DeepDiagnosis", {"grad_norm": put(np.nan, 5, 1)}, ("nonfinite", "2", 5)),
        ("DeepDiagnosis", {"dead_values": put(0.7, -1, 0)}, ("dead_units", "1", 47)),
        ("DeepDiagnosis", {"beyond_5": put(0.6, slice(None), 1)}, ("saturated_activation", "3", 19)),
        ("DeepDiagnosis", {"variance": put(20, 0, 2)}, ("symmetric_units|exploding_signal", "4", 0)),
        ("SageMaker Debugger", {"dead_units": put(0.6, 7, 0)}, ("dead_units", "1", 7)),
        ("SageMaker Debugger", {"tanh_flat": put(0.6, 7, 1)}, ("saturated_activation", "3", 7)),
        ("SageMaker Debugger", {"moved": put(60, 4, 1)}, ("step_too_large", "2", 4)),
        ("SageMaker Debugger", {"unchanged": put(1, slice(5, 8), 2)}, ("no_update|no_progress", "4", 7)),
        ("SageMaker Debugger", {"classes": put(11, 3)}, ("unrepresentative_batches", None, 3)),
        ("neurolens", {"loss": put(25, 20)}, ("step_too_large|loss_spike", None, 20)),
        ("neurolens", {"loss": put(2.0)}, ("no_progress", None, 47)),
        ("neurolens", {"grad_norm": put(101, 2, 0)}, ("exploding_signal|step_too_large", "0", 2)),
        ("neurolens", {"moved": put(0.5, 2, 0)}, ("step_too_large", "0", 2)),
        ("neurolens", {"valid": put(0.5, 11)}, ("overfitting|no_label_signal", None, 47)),
    ],
)
def test_verdicts_of_published_rules(rules, changes, verdict):
    assert verdict in said(rules, **changes)


def test_without_an_accuracy_one_of_them_is_blind():
    blind = recording(accuracy=put(np.nan), grad_norm=put(1e-6, slice(None), 0))
    assert list(autotrainer(blind)) == []


def test_rules_left_out_alarm_on_healthy_noise():
    noisy = recording(loss=put(2.5, 20))
    assert list(sagemaker(noisy)) == []
    assert any("no_progress" in symptom for _, symptom, _ in sagemaker(noisy, all_rules=True))


def test_recording_has_a_number_for_every_step_and_layer():
    program = vectors(0, (20, 8, 8, 10), steps=24)
    seen = record(program)
    assert (seen.layers, seen.acts) == (["0", "2", "4"], ["1", "3"])
    assert seen.grad_norm.shape == (24, 3)
    assert seen.dead_units.shape == (24, 2)
    assert np.isfinite(seen.loss).all()
    assert len(seen.valid) == 12
    assert (seen.moved > 0).all()
    with pytest.raises(AttributeError):
        seen.nonsense  # noqa: B018


def test_recording_changes_nothing():
    plain, recorded = (CASES["rebuilt-late"].build(0) for _ in range(2))
    plain.steps = recorded.steps = 95
    for _ in plain.run():
        pass
    record(recorded)
    assert plain.evaluate() == recorded.evaluate()


def test_dead_layer_is_found_in_a_real_program():
    program = CASES["dead"].build(0)
    program.steps = 24
    found = findings(record(program), RULES["SageMaker Debugger"])
    assert ("dead_units", "3") in [(one["symptom"], one["layer"]) for one in found]


def test_order_is_that_of_the_calls():
    program = CASES["transformer-dead"].build(0)
    order = forward_order(program)
    assert order[0] == "embedding"
    assert order.index("blocks.0.ffn.2") < order.index("blocks.1.norm1") < order.index("head")
    assert program.model.training
