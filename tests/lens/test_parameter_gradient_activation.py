"""Which neurons receive gradients: tags, dead rows, and what is not dead."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.errors import OptionError
from monitorch.lens import ParameterGradientActivation

WORST = ("Warning Gradient Activations", False, True, True, "PROBABILITY", None)


def small(name):
    return (f"{name} Gradient Activation", False, False, True, "PROBABILITY", None)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [small("Weight"), small("Bias"), WORST]),
        ({"warning_plot": False}, [small("Weight"), small("Bias")]),
        ({"parameters": "weight_ih_l0"}, [small("Weight_Ih_L0"), WORST]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(ParameterGradientActivation(**options)) == tags


@pytest.fixture
def rates(watch, shown):
    """Hand gradients to a weight, one each step; returns what is shown of it."""

    def run(*gradients, **options):
        lens = ParameterGradientActivation(parameters="weight", **options)
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros_like(torch.as_tensor(gradients[0])))
        inspector = watch(model, lens)
        for gradient in gradients:
            model.weight.grad = None
            model.weight.backward(torch.as_tensor(gradient))
        inspector.tick_epoch()
        return shown.values("Weight Gradient Activation")[""], lens

    return run


@pytest.mark.parametrize(
    ("gradient", "activation", "death"),
    [
        ([[1.0, 2.0], [0.0, 3.0], [0.0, 0.0], [0.0, 1e-9]], 4 / 8, 1 / 4),
        ([1.0, 0.0, 0.0, -2.0], 1 / 2, 1 / 2),
        ([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]], 1 / 8, 1 / 2),
    ],
)
def test_rows_are_the_neurons(gradient, activation, death, rates):
    shown, _ = rates(gradient)
    assert shown == {"activation_rate": activation, "death_rate": death}


def test_gradients_may_be_as_small_as_floats_get_and_what_is_zero_can_be_chosen(rates):
    gradient = [[1e-10, 2e-10], [0.0, 3e-40]]
    assert rates(gradient)[0] == {"activation_rate": 3 / 4, "death_rate": 0.0}
    assert rates(gradient, eps=1.5e-10)[0] == {"activation_rate": 1 / 4, "death_rate": 1 / 2}


@pytest.mark.parametrize("eps", [-1e-8, float("nan"), "small", None, True])
def test_what_is_zero_is_a_number(eps):
    with pytest.raises(OptionError, match="eps takes a number of at least 0, not"):
        ParameterGradientActivation(eps=eps)


def test_rates_are_aggregated_over_the_steps_of_a_tick(rates):
    gradients = [[[1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]]
    assert rates(*gradients)[0] == {"activation_rate": 0.75, "death_rate": 0.25}
    options = {"inplace": False, "activation_aggregation": "median", "death_aggregation": "max"}
    assert rates(*gradients, gradients[0], **options)[0] == {"activation_rate": 0.5, "death_rate": 0.5}


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_gradient_is_not_taken_for_a_dead_one(poison, rates):
    shown, lens = rates([[1.0, poison], [1.0, 1.0]])
    assert np.isnan([*shown.values()]).all()
    assert [record.nonfinite for record in lens.records(1) if record.layer == ""] == [1, 1]
    shown, _ = rates([[1.0, poison], [1.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]])
    assert shown == {"activation_rate": 0.5, "death_rate": 0.5}


def test_worst_is_taken_over_all_parameters(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    inspector = watch(model, ParameterGradientActivation())
    model[0].weight.backward(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    model[1].bias.backward(torch.tensor([1.0, 0.0]))
    inspector.tick_epoch()
    tag = "Warning Gradient Activations"
    assert shown.values(tag) == {tag: {"worst activation_rate": 0.5, "worst death_rate": 0.5}}
    assert list(shown.values("Weight Gradient Activation")) == ["0"]
    assert list(shown.values("Bias Gradient Activation")) == ["1"]


@pytest.mark.parametrize("layer", [nn.Embedding(4, 3), nn.Embedding(4, 3, sparse=True), nn.EmbeddingBag(4, 3)])
@pytest.mark.parametrize("parameters", ["weight", "all"])
def test_rows_of_an_embedding_that_no_batch_uses_are_not_dead(layer, parameters, watch, shown):
    layer.weight.grad = None
    model = nn.Sequential(layer, nn.Linear(3, 1))
    inspector = watch(model, ParameterGradientActivation(parameters=parameters))
    rows = torch.tensor([[2, 0, 2]])
    (layer(rows) * torch.tensor([1.0, 0.0, 2.0])).sum().backward()
    inspector.tick_epoch()
    kind, name = ("Weight", "0") if parameters == "weight" else ("Parameter", "0.weight")
    assert shown.values(f"{kind} Gradient Activation")[name] == pytest.approx(
        {"activation_rate": 2 / 3, "rows_used": 1 / 2}
    )
    tag = "Warning Gradient Activations"
    # the only layer that has a gradient has no neurons to be dead, which is no number that is not finite
    assert shown.values(tag) == {tag: {"worst activation_rate": pytest.approx(2 / 3)}}


def test_an_embedding_none_of_whose_rows_is_used_has_none_active(watch, shown):
    model = nn.Sequential(nn.Embedding(4, 3))
    inspector = watch(model, ParameterGradientActivation(parameters="weight"))
    model[0].weight.backward(torch.zeros(4, 3))
    inspector.tick_epoch()
    assert shown.values("Weight Gradient Activation")["0"] == {"activation_rate": 0.0, "rows_used": 0.0}
