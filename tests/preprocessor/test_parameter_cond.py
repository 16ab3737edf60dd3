import math

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.preprocessor import ParameterCond


def measured(module, attrs=("weight",), inplace=False):
    preprocessor = ParameterCond(attrs, inplace)
    preprocessor.process_module("layer", module)
    return preprocessor.value.get("layer", {})


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (4, 3, 2, 2), (1, 4), (4, 1)])
def test_condition_of_matrices_flattened_from_the_second_dimension(module_with, shape, dtype):
    weight = torch.randn(shape, dtype=torch.float64).to(dtype)
    expected = np.linalg.cond(weight.double().numpy().reshape(shape[0], -1))
    assert measured(module_with(weight=weight)) == {"weight": [pytest.approx(expected, rel=1e-6)]}


def test_complex_matrices(module_with):
    weight = torch.randn(3, 4, dtype=torch.complex64)
    expected = np.linalg.cond(weight.numpy().astype(np.complex128))
    assert measured(module_with(weight=weight))["weight"] == [pytest.approx(expected)]


@pytest.mark.parametrize("singular", [torch.diag(torch.tensor([2.0, 1.0, 0.0])), torch.zeros(2, 3)])
def test_singular_matrices_are_infinitely_bad(module_with, singular):
    assert measured(module_with(weight=singular))["weight"] == [math.inf]
    assert np.linalg.cond(singular.numpy()) == math.inf
    moments = measured(module_with(weight=singular), inplace=True)["weight"]
    assert (moments.count, moments.nonfinite) == (0, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_number_makes_the_sample_bad(module_with, bad):
    weight = torch.eye(3)
    weight[0, 1] = bad
    assert [math.isnan(sample) for sample in measured(module_with(weight=weight))["weight"]] == [True]


@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (3, 0)])
def test_vectors_and_empty_tensors_have_no_condition(module_with, shape):
    assert measured(module_with(weight=torch.ones(shape))) == {}


def test_a_layer_norm_is_passed_over():
    assert measured(nn.LayerNorm(4)) == {}


def test_one_name_may_be_given_as_a_string():
    assert list(measured(nn.Linear(2, 2), "weight")) == ["weight"]
