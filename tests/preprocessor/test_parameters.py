"""Norms and condition numbers of parameters."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.numerical import RunningMeanVar
from monitorch.preprocessor import ParameterCond, ParameterNorm


def norms_of(module, attrs=("weight", "bias"), normalize=False, inplace=False):
    preprocessor = ParameterNorm(attrs, normalize, inplace)
    preprocessor.process_module("layer", module)
    return preprocessor.value


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 3, 3), (5,), ()])
def test_norm_of_any_parameter(module_with, shape, normalize, dtype):
    weight = torch.randn(shape, dtype=torch.float64).to(dtype)
    size = math.sqrt(weight.numel()) if normalize else 1
    expected = np.linalg.norm(weight.double().numpy().ravel()) / size
    result = norms_of(module_with(weight=weight), ["weight"], normalize)
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
    result = norms_of(module)
    assert list(result.get("layer", {})) == found


def test_frozen_parameters_are_measured_too():
    assert list(norms_of(nn.Linear(2, 2).requires_grad_(False))["layer"]) == ["weight", "bias"]


def test_one_name_may_be_given_as_a_string():
    preprocessor = ParameterNorm("weight", False, True)
    assert preprocessor.attrs_ == ["weight"]
    assert ParameterNorm(iter(["weight", "bias"]), False, True).attrs_ == ["weight", "bias"]


@pytest.mark.parametrize("normalize", [True, False])
def test_complex_parameters(module_with, normalize):
    weight = torch.randn(3, 4, dtype=torch.complex64)
    expected = np.linalg.norm(weight.numpy()) / (math.sqrt(12) if normalize else 1)
    result = norms_of(module_with(weight=weight), ["weight"], normalize)
    assert result["layer"]["weight"] == [pytest.approx(expected, rel=1e-6)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_parameters_are_counted(module_with, bad):
    moments = norms_of(module_with(weight=torch.tensor([bad, 1.0])), ["weight"], inplace=True)["layer"]["weight"]
    assert (moments.count, moments.nonfinite) == (0, 1)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_extreme_parameters(module_with, scale):
    weight = torch.tensor([3.0, 4.0], dtype=torch.float64) * scale
    assert norms_of(module_with(weight=weight), ["weight"])["layer"]["weight"] == [pytest.approx(5 * scale, abs=0.0)]


def test_series_hold_the_modules_that_have_the_parameter():
    preprocessor = ParameterNorm(["weight", "bias"], False, False)
    preprocessor.process_module("with", nn.Linear(2, 2))
    preprocessor.process_module("without", nn.Linear(2, 2, bias=False))
    assert list(preprocessor.series("weight")) == ["with", "without"]
    assert list(preprocessor.series("bias")) == ["with"]


def conditions(module, attrs=("weight",), inplace=False):
    preprocessor = ParameterCond(attrs, inplace)
    preprocessor.process_module("layer", module)
    return preprocessor.value.get("layer", {})


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (4, 3, 2, 2), (1, 4), (4, 1)])
def test_condition_of_matrices_flattened_from_the_second_dimension(module_with, shape, dtype):
    weight = torch.randn(shape, dtype=torch.float64).to(dtype)
    expected = np.linalg.cond(weight.double().numpy().reshape(shape[0], -1))
    assert conditions(module_with(weight=weight)) == {"weight": [pytest.approx(expected, rel=1e-6)]}


def test_complex_matrices(module_with):
    weight = torch.randn(3, 4, dtype=torch.complex64)
    expected = np.linalg.cond(weight.numpy().astype(np.complex128))
    assert conditions(module_with(weight=weight))["weight"] == [pytest.approx(expected)]


@pytest.mark.parametrize("singular", [torch.diag(torch.tensor([2.0, 1.0, 0.0])), torch.zeros(2, 3)])
def test_singular_matrices_are_infinitely_bad(module_with, singular):
    assert conditions(module_with(weight=singular))["weight"] == [math.inf]
    assert np.linalg.cond(singular.numpy()) == math.inf
    moments = conditions(module_with(weight=singular), inplace=True)["weight"]
    assert (moments.count, moments.nonfinite) == (0, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_number_makes_the_sample_bad(module_with, bad):
    weight = torch.eye(3)
    weight[0, 1] = bad
    assert [math.isnan(sample) for sample in conditions(module_with(weight=weight))["weight"]] == [True]


@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (3, 0)])
def test_vectors_and_empty_tensors_have_no_condition(module_with, shape):
    assert conditions(module_with(weight=torch.ones(shape))) == {}


def test_a_matrix_without_numbers_is_passed_over(module_with):
    assert conditions(module_with(weight=torch.ones(2, 3, device="meta"))) == {}


def test_a_layer_norm_is_passed_over():
    assert conditions(nn.LayerNorm(4)) == {}


def test_one_name_of_a_matrix_may_be_given_as_a_string():
    assert list(conditions(nn.Linear(2, 2), "weight")) == ["weight"]
