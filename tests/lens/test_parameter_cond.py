"""Condition numbers of weights."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.lens import ParameterCond


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [("Weight Cond", False)]),
        ({"log_scale": True}, [("Weight Cond", True)]),
        ({"parameters": ("weight_hh_l0", "weight")}, [("Weight_Hh_L0 Cond", False), ("Weight Cond", False)]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(ParameterCond(**options)) == [(tag, logy, False, False, "NUMERICAL", None) for tag, logy in tags]


@pytest.mark.parametrize("inplace", [True, False])
def test_is_the_largest_over_the_smallest_singular_value(inplace, watch, shown, close):
    model = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(2, 3, 2), nn.LayerNorm(3), nn.Embedding(5, 2))
    inspector = watch(model, ParameterCond(inplace))
    inspector.tick_epoch()
    arrays = {name: model[int(name)].weight.detach().double().numpy() for name in "013"}
    expected = {name: {"mean": close(np.linalg.cond(array.reshape(len(array), -1)))} for name, array in arrays.items()}
    assert shown.values("Weight Cond") == expected  # a layer norm's weight is a vector
    assert shown.ranges("Weight Cond") is None


def test_known_matrix_and_samples_by_hand(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    lens = ParameterCond(aggregation_method="max")
    inspector = watch(model, lens)
    for diagonal in ((4.0, 2.0), (9.0, 1.0), (3.0, 3.0)):
        with torch.no_grad():
            model[0].weight.copy_(torch.diag(torch.tensor(diagonal)))
        lens.collect_data()
    inspector.tick_epoch()
    assert shown.values("Weight Cond") == {"0": {"max": 9.0}}


@pytest.mark.parametrize("weight", [[[1.0, 0.0], [0.0, 0.0]], [[1.0, float("nan")], [0.0, 1.0]]])
def test_singular_or_broken_weight_counts_as_non_finite(weight, watch, shown):
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(weight))
    lens = ParameterCond()
    watch(model, lens).tick_epoch()
    assert np.isnan(shown.values("Weight Cond")["0"]["mean"])
    assert [record.nonfinite for record in lens.records(1)] == [1]
