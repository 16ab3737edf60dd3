import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from monitorch.engine.parameters import find_parameter, locate_parameter
from monitorch.preprocessor import ParameterNorm


@pytest.fixture
def nested():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1)))


def test_a_plain_parameter_is_itself():
    layer = nn.Linear(2, 3)
    assert find_parameter(layer, "weight") is layer.weight
    assert find_parameter(layer, "bias") is layer.bias


@pytest.mark.parametrize("name", ["0.weight", "1.0.bias"])
def test_dotted_names_reach_into_submodules(nested, name):
    assert find_parameter(nested, name) is dict(nested.named_parameters())[name]


@pytest.mark.parametrize("name", ["weight", "0.nothing", "7.weight", "1.7.weight", "0.weight.data", "", "."])
def test_what_does_not_exist_is_none(nested, name):
    assert find_parameter(nested, name) is None


@pytest.mark.parametrize("name", ["in_features", "forward", "training", "_parameters"])
def test_what_is_no_tensor_is_none(name):
    assert find_parameter(nn.Linear(2, 3), name) is None


def test_a_missing_bias_is_none():
    assert find_parameter(nn.Linear(2, 3, bias=False), "bias") is None


def test_buffers_and_tensor_attributes_count():
    norm = nn.BatchNorm1d(3)
    norm.extra = torch.ones(2)
    assert find_parameter(norm, "running_mean") is norm.running_mean
    assert find_parameter(norm, "extra") is norm.extra


def test_a_lazy_parameter_is_located_but_has_no_value_yet():
    layer = nn.LazyLinear(3)
    assert find_parameter(layer, "weight") is None
    assert locate_parameter(layer, "weight") is layer.weight
    layer(torch.ones(1, 2))
    assert find_parameter(layer, "weight").shape == (3, 2)


def test_weight_norm_is_followed_by_its_direction():
    layer = parametrizations.weight_norm(nn.Linear(2, 3))
    assert find_parameter(layer, "weight") is layer.parametrizations.weight.original1


def test_orthogonal_is_followed_by_its_trained_factor():
    layer = parametrizations.orthogonal(nn.Linear(3, 3))
    assert find_parameter(layer, "weight") is layer.parametrizations.weight.original


def test_looking_at_spectral_norm_does_not_advance_its_iteration():
    layer = parametrizations.spectral_norm(nn.Linear(4, 3)).train()
    nn.init.normal_(layer.parametrizations.weight.original)  # away from where the iteration has settled
    vectors = [buffer.clone() for buffer in layer.buffers()]
    assert len(vectors) == 2
    ParameterNorm(["weight"], False, True).process_module("x", layer)
    assert find_parameter(layer, "weight") is layer.parametrizations.weight.original
    assert all(torch.equal(old, new) for old, new in zip(vectors, layer.buffers(), strict=True))
    _ = layer.weight
    assert not all(torch.equal(old, new) for old, new in zip(vectors, layer.buffers(), strict=True))


def test_a_pruned_weight_is_followed_by_its_original():
    layer = nn.Linear(4, 3)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    assert find_parameter(layer, "weight") is layer.weight_orig
    prune.remove(layer, "weight")
    assert find_parameter(layer, "weight") is layer.weight


def test_the_older_weight_norm_is_followed_by_its_direction():
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = nn.utils.weight_norm(nn.Linear(2, 3))
    assert find_parameter(layer, "weight") is layer.weight_v


def test_the_older_spectral_norm_is_followed_by_its_original():
    layer = nn.utils.spectral_norm(nn.Linear(2, 3))
    assert find_parameter(layer, "weight") is layer.weight_orig
