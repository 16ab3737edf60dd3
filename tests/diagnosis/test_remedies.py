"""What is worked out from a run before something is recommended."""

import math

import numpy as np
import pytest

from monitorch.diagnosis import remedies, signals
from monitorch.diagnosis.history import Parameter
from monitorch.diagnosis.run import RunView

NAN = math.nan


def view(told):
    return RunView(told.history)


class TestGains:
    def test_they_are_those_of_the_first_weights(self, story):
        weight = np.random.default_rng(0).normal(size=(8, 8)) / math.sqrt(8)  # as Xavier has it
        norm = np.linalg.norm(weight)
        told = story().weights(signals.WEIGHT, [norm, 9.0], [2 * norm, 9.0], [0.0, 9.0], steps=[0, 5])
        found = remedies.gains(view(told))
        rms = math.sqrt((weight**2).mean())
        assert list(found) == ["fc0", "fc1", "fc2"]
        assert list(found.values()) == pytest.approx([rms * math.sqrt(8), 2 * rms * math.sqrt(8), 0.0])
        assert list(remedies.gains(view(told), at_first=False).values()) == pytest.approx([9 / math.sqrt(8)] * 3)

    def test_kernels_have_as_many_inputs_as_an_output_reads(self, story):
        told = story({"conv": "Conv2d"})
        told.facts.parameters["conv.weight"] = Parameter("conv", (16, 4, 3, 3), "float32")
        told.weights(signals.WEIGHT, 10.0, steps=[0])
        rms = 10.0 / math.sqrt(16 * 4 * 9)
        assert remedies.gains(view(told)) == {"conv": pytest.approx(rms * math.sqrt(4 * 9))}

    def test_embeddings_and_parameters_outside_of_layers_have_none(self, story):
        told = story({"words": "Embedding"})
        told.facts.parameters["words.weight"] = Parameter("words", (100, 8), "float32")
        told.facts.parameters["position"] = Parameter("", (10, 8), "float32")
        told.weights(signals.WEIGHT, 10.0, 10.0, steps=[0])
        assert remedies.gains(view(told)) == {}

    def test_a_weight_without_elements_has_none(self, story):
        told = story()
        told.facts.parameters["fc0.weight"] = Parameter("fc0", (3, 0), "float32")
        told.add(signals.WEIGHT, steps=[0], fc0__weight=0.0, fc1__weight=1.0)
        assert list(remedies.gains(view(told))) == ["fc1"]

    def test_nothing_is_known_of_the_first_weights_if_the_start_was_not_watched(self, story):
        told = story(since=100).weights(signals.WEIGHT, 1.0, 1.0, 1.0, steps=[100])
        assert remedies.gains(view(told)) == {}
        assert remedies.gains(view(story())) == {}


@pytest.mark.parametrize(
    ("activation", "layer"),
    [("act0", "fc0"), ("act1", "fc1"), ("fc1", "fc1"), ("unknown", "fc2")],  # calls are named like their layer
)
def test_the_layer_that_feeds_an_activation(story, activation, layer):
    assert remedies.feeding(view(story()), activation) == [layer]


def test_a_norm_between_them_feeds_it_too(story):
    told = story({"fc0": "Linear", "norm": "BatchNorm1d", "act0": "ReLU", "fc1": "Linear"})
    told.facts.parameters["norm.bias"] = Parameter("norm", (8,), "float32")
    assert remedies.feeding(view(told), "act0") == ["fc0", "norm"]


def test_activations_are_between_layers_and_have_no_parameters(story):
    layers = {"in": "ReLU", "fc0": "Linear", "drop": "Dropout", "odd": "Odd", "pool": "MaxPool2d", "fc1": "Linear"}
    assert remedies.hidden_activations(view(story({**layers, "out": "Sigmoid"}))) == {"odd": "Odd"}


@pytest.mark.parametrize(
    ("rates", "update", "lower", "higher"),
    [
        ([0.1] * 20, 0.5, 0.02, 10.0),
        ([0.1] * 20, 5.0, 0.008, 10.0),
        ([0.1] * 20, 1e6, 1e-3, 10.0),
        ([0.1] * 20, 1e-6, 0.1, 10000.0),
        ([0.1] * 20, NAN, 0.1, 10.0),
        ([0.1] * 20, 1e-12, 0.1, 1e6),
        ([0.1] * 5 + [1e-5] * 15, 1e-6, 0.1, 10000.0),  # back to what it was
        ([0.1] * 5 + [20.0] * 15, 0.5, 0.005, 10.0),
        (np.geomspace(0.1, 0.05, 20), 0.5, 0.02, 10.0),  # a schedule is no jump
        ([0.0] * 5 + [0.1] * 15, 0.5, 0.02, 10.0),
        ([NAN] * 20, 0.5, 0.02, 10.0),
    ],
)
def test_by_what_to_multiply_learning_rates(story, rates, update, lower, higher):
    told = story().weights(signals.RATE, rates, None, None)
    factors = [
        change(view(told), update, "Try.").arguments["factor"] for change in (remedies.lower_rate, remedies.raise_rate)
    ]
    assert factors == [lower, higher]


def test_a_rate_that_fell_stays_low_if_steps_are_large(story):
    told = story().weights(signals.RATE, [0.1] * 5 + [1e-5] * 15, None, None)
    assert remedies.lower_rate(view(told), 5.0, "Try.").arguments == {"factor": 0.008}


@pytest.mark.parametrize(("ratio", "expected"), [(0.01, False), (0.05, True), (NAN, False)])
def test_whether_steps_were_large(story, ratio, expected):
    told = story().weights(signals.UPDATE_RATIO, *[[ratio] * 10 + [1.0] * 10] * 3)
    assert remedies.were_large(view(told), 10) is expected
    assert remedies.were_large(view(story()), 10) is False


def test_steps_of_one_layer_may_be_large_alone(story):
    told = view(story().weights(signals.UPDATE_RATIO, 0.001, 0.05, 0.001))
    assert [remedies.were_large(told, 10, layers) for layers in ((), ["fc0"], ["fc1"], ["act1"])] == [
        False,
        False,
        True,
        False,
    ]
