"""Norms of parameters: tags, samples on demand, and shares."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.lens import ParameterNorm


def small(name, logy=False):
    return (f"{name} Norm", logy, False, False, "NUMERICAL", None)


def share(tag):
    return (tag, False, True, False, "RELATIONS", None)


WEIGHT, BIAS = small("Weight"), small("Bias")


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [WEIGHT, BIAS, share("Weight Norm Comparison"), share("Bias Norm Comparison")]),
        ({"comparison_plot": False}, [WEIGHT, BIAS]),
        ({"parameters": "weight"}, [WEIGHT, share("Weight Norm Comparison")]),
        (
            {"parameters": ["in_proj_weight"], "log_scale": True},
            [small("In_Proj_Weight", logy=True), share("In_Proj_Weight Log Norm Comparison")],
        ),
        (
            {"parameters": ("weight_ih_l0",)},
            [small("Weight_Ih_L0"), share("Weight_Ih_L0 Norm Comparison")],
        ),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(ParameterNorm(**options)) == tags


def norm(tensor):
    return np.linalg.norm(tensor.detach().double().numpy())


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("method", ["mean", "min", "std"])
def test_samples_collected_by_hand_count_with_that_of_the_tick(inplace, method, watch, shown, close):
    model = nn.Sequential(nn.Linear(3, 2))
    lens = ParameterNorm(inplace, aggregation_method=method)
    inspector = watch(model, lens)
    samples = []
    for factor in (1.0, 2.0, 4.0):
        with torch.no_grad():
            model[0].weight *= factor
        samples.append(norm(model[0].weight))
        if factor < 4:
            lens.collect_data()
    inspector.tick_epoch()
    assert shown.values("Weight Norm") == {"0": {method: close(getattr(np, method)(samples))}}
    assert shown.ranges("Weight Norm") is None
    inspector.tick_epoch()
    assert shown.values("Weight Norm") == {"0": {method: close(getattr(np, method)(samples[-1:]))}}


def test_normalized_by_size_is_root_mean_square(watch, shown, close):
    model = nn.Sequential(nn.Linear(3, 12))
    inspector = watch(model, ParameterNorm(normalize_by_size=True))
    inspector.tick_epoch()
    assert shown.values("Weight Norm")["0"]["mean"] == close(norm(model[0].weight) / 6)


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1.0, 1e12])
def test_shares_add_up_to_one_at_every_scale(scale, watch, shown, close):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= scale
    inspector = watch(model, ParameterNorm())
    inspector.tick_epoch()
    shares = shown.values("Weight Norm Comparison")["Weight Norm Comparison"]
    first, second = norm(model[0].weight), norm(model[1].weight)
    assert list(shares.values()) == close([first / (first + second), second / (first + second)])
    assert sum(shares.values()) == pytest.approx(1, abs=1e-12)


def test_shares_of_zeros_are_zero(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    watch(model, ParameterNorm()).tick_epoch()
    assert shown.values("Weight Norm Comparison") == {"Weight Norm Comparison": {"0": 0.0, "1": 0.0}}


def test_complex_parameter_has_the_norm_of_its_absolute_values(watch, shown, close):
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
    watch(model, ParameterNorm(normalize_by_size=True)).tick_epoch()
    expected = np.linalg.norm(model.weight.detach().numpy()) / 12**0.5
    assert shown.values("Weight Norm")[""]["mean"] == close(expected)


def test_collecting_without_a_model_does_nothing():
    lens = ParameterNorm()
    lens.collect_data()
    assert [kept.value for kept in lens._preprocessors] == [{}, {}]


def test_inactive_ticks_take_no_sample(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2))
    lens = ParameterNorm(inplace=False)
    inspector = watch(model, lens, is_active_fn=2)
    lens.collect_data()
    assert [kept.value for kept in lens._preprocessors] == [{}, {}]
    inspector.tick_epoch()
    inspector.tick_epoch()
    assert {epoch for epoch, *_ in shown.calls} == {2}
