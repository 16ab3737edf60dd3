"""Spectral norms and ranks of weights."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.lens import SpectralNorm


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, {"Weight Spectral Norm": False, "Weight Stable Rank": False}),
        (
            {"largest_svd": 8, "log_scale": True},
            {"Weight Spectral Norm": True, "Weight Stable Rank": False, "Weight Effective Rank": False},
        ),
        ({"parameters": "all"}, {"Parameter Spectral Norm": False, "Parameter Stable Rank": False}),
    ],
)
def test_tags(options, tags, tags_of):
    found = tags_of(SpectralNorm(**options))
    assert found == [(tag, logy, False, True, "NUMERICAL", None) for tag, logy in tags.items()]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"iterations": 0}, "iterations takes a whole number of at least 1, not 0"),
        ({"iterations": 2.0}, "iterations takes a whole number of at least 1, not 2.0"),
        ({"iterations": True}, "iterations takes a whole number of at least 1, not True"),
        ({"largest_svd": -1}, "largest_svd takes a whole number of at least 0, not -1"),
        ({"largest_svd": None}, "largest_svd takes a whole number of at least 0, not None"),
        ({"parameters": []}, r"parameters=\[\] must be names"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        SpectralNorm(**options)


def test_layers_in_model_order_without_vectors(watch, shown):
    model = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(2, 3, 2), nn.LayerNorm(3), nn.Embedding(5, 2))
    watch(model, SpectralNorm(iterations=300, largest_svd=8)).tick_epoch()
    arrays = {name: model[int(name)].weight.detach().double().numpy() for name in "013"}
    norms = {name: np.linalg.norm(array.reshape(len(array), -1), 2) for name, array in arrays.items()}
    assert shown.values("Weight Spectral Norm") == {name: {"mean": pytest.approx(norm)} for name, norm in norms.items()}
    ranks = {name: np.linalg.norm(array) ** 2 / norms[name] ** 2 for name, array in arrays.items()}
    found = shown.values("Weight Stable Rank")
    assert found == {name: {"mean": pytest.approx(rank, rel=1e-5)} for name, rank in ranks.items()}
    effective = shown.values("Weight Effective Rank")
    assert all(found[name]["mean"] <= effective[name]["mean"] <= min(len(arrays[name]), 8) for name in ranks)


def test_a_layer_that_collapses_is_seen(watch, shown):
    model = nn.Sequential(nn.Linear(16, 16))
    inspector = watch(model, SpectralNorm())
    inspector.tick_epoch()
    before = shown.values("Weight Stable Rank")["0"]["mean"]
    with torch.no_grad():
        model[0].weight.copy_(torch.outer(torch.arange(16.0), torch.ones(16)))
    inspector.tick_epoch()
    assert before > 3
    assert shown.values("Weight Stable Rank")["0"]["mean"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, 1e30), (torch.float32, 1e-30), (torch.float64, 1e200), (torch.float64, 1e-200)],
)
def test_weights_of_any_scale_have_right_numbers(dtype, scale, watch, shown):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5, dtype=dtype))
    singular = np.linalg.svd(model[0].weight.detach().double().numpy(), compute_uv=False)
    with torch.no_grad():
        model[0].weight.mul_(scale)
    watch(model, SpectralNorm(iterations=100)).tick_epoch()
    assert shown.values("Weight Spectral Norm")["0"] == {"mean": pytest.approx(singular[0] * scale, rel=1e-5)}
    rank = (singular**2).sum() / singular[0] ** 2
    assert shown.values("Weight Stable Rank")["0"] == {"mean": pytest.approx(rank, rel=1e-5)}


def test_matrices_that_are_too_large_are_told_once():
    model = nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 9), nn.Linear(9, 3))
    inspector = PyTorchInspector([SpectralNorm(largest_svd=4)], module=model, visualizer="dummy")
    with pytest.warns(MonitorchWarning) as told:
        inspector.tick_epoch()
    inspector.tick_epoch()
    [warning] = told
    assert "SpectralNorm leaves out a sample of layer '0': effective ranks are computed up" in str(warning.message)
    layers = {
        tag: [r.layer for r in inspector.records() if r.tag == tag] for tag in {r.tag for r in inspector.records()}
    }
    assert layers["Weight Effective Rank"] == ["2"]
    assert layers["Weight Spectral Norm"] == ["0", "1", "2"]
