import math

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.numerical import RunningMeanVar
from monitorch.preprocessor import ParameterNorm


def measured(module, attrs=("weight", "bias"), normalize=False, inplace=False):
    preprocessor = ParameterNorm(attrs, normalize, inplace)
    preprocessor.process_module("layer", module)
    return preprocessor.value


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 3, 3), (5,), ()])
def test_norm_of_any_parameter(module_with, shape, normalize, dtype):
    weight = torch.randn(shape, dtype=torch.float64).to(dtype)
    size = math.sqrt(weight.numel()) if normalize else 1
    expected = np.linalg.norm(weight.double().numpy().ravel()) / size
    result = measured(module_with(weight=weight), ["weight"], normalize)
    assert result == {"layer": {"weight": [pytest.approx(expected, rel=1e-6)]}}


def test_each_look_is_one_sample():
    layer, preprocessor = nn.Linear(2, 2), ParameterNorm(["weight", "bias"], False, True)
    for scale in (1.0, 3.0):
        nn.init.constant_(layer.weight, scale)
        nn.init.constant_(layer.bias, 0.0)
        preprocessor.process_module("layer", layer)
    kept = preprocessor.value["layer"]
    assert kept["weight"] == RunningMeanVar(2, 4.0, 4.0, 2.0, 6.0)
    assert kept["bias"].max_ == 0.0


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (nn.Linear(2, 2), ["weight", "bias"]),
        (nn.Linear(2, 2, bias=False), ["weight"]),
        (nn.LazyLinear(2, bias=False), []),
        (nn.ReLU(), []),
        (nn.BatchNorm1d(2, affine=False), []),
    ],
)
def test_parameters_a_module_lacks_are_passed_over(module, found):
    result = measured(module)
    assert list(result.get("layer", {})) == found


def test_frozen_parameters_are_measured_too():
    assert list(measured(nn.Linear(2, 2).requires_grad_(False))["layer"]) == ["weight", "bias"]


def test_one_name_may_be_given_as_a_string():
    preprocessor = ParameterNorm("weight", False, True)
    assert preprocessor.attrs_ == ["weight"]
    assert ParameterNorm(iter(["weight", "bias"]), False, True).attrs_ == ["weight", "bias"]


@pytest.mark.parametrize("normalize", [True, False])
def test_complex_parameters(module_with, normalize):
    weight = torch.randn(3, 4, dtype=torch.complex64)
    expected = np.linalg.norm(weight.numpy()) / (math.sqrt(12) if normalize else 1)
    result = measured(module_with(weight=weight), ["weight"], normalize)
    assert result["layer"]["weight"] == [pytest.approx(expected, rel=1e-6)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_parameters_are_counted(module_with, bad):
    moments = measured(module_with(weight=torch.tensor([bad, 1.0])), ["weight"], inplace=True)["layer"]["weight"]
    assert (moments.count, moments.nonfinite) == (0, 1)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_extreme_parameters(module_with, scale):
    weight = torch.tensor([3.0, 4.0], dtype=torch.float64) * scale
    assert measured(module_with(weight=weight), ["weight"])["layer"]["weight"] == [pytest.approx(5 * scale, abs=0.0)]


def test_series_hold_the_modules_that_have_the_parameter():
    preprocessor = ParameterNorm(["weight", "bias"], False, False)
    preprocessor.process_module("with", nn.Linear(2, 2))
    preprocessor.process_module("without", nn.Linear(2, 2, bias=False))
    assert list(preprocessor.series("weight")) == ["with", "without"]
    assert list(preprocessor.series("bias")) == ["with"]
