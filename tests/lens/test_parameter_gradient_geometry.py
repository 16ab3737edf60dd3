"""Gradients of parameters: tags, directions, and gradients of unusual kinds."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.lens import ParameterGradientGeometry


def norm(name, logy=False):
    return (f"{name} Gradient Norm", logy, False, True, "NUMERICAL", None)


def correlation(name):
    return (f"{name} Gradient Correlation", False, False, True, "NUMERICAL", (1, -1))


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [norm("Weight"), correlation("Weight"), norm("Bias"), correlation("Bias")]),
        ({"compute_correlation": False}, [norm("Weight"), norm("Bias")]),
        ({"parameters": "bias", "log_scale": True}, [norm("Bias", logy=True), correlation("Bias")]),
        ({"parameters": ["weight_ih_l0"]}, [norm("Weight_Ih_L0"), correlation("Weight_Ih_L0")]),
        ({"parameters": ["in_proj_weight"]}, [norm("In_Proj_Weight"), correlation("In_Proj_Weight")]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(ParameterGradientGeometry(**options)) == tags


@pytest.fixture
def weights(watch, shown):
    """A linear layer whose weight gradient is handed in, and what is shown of it after a tick."""

    def run(*ticks, **options):
        model = nn.Sequential(nn.Linear(2, 2, bias=False))
        inspector = watch(model, ParameterGradientGeometry(parameters="weight", **options))
        for gradients in ticks:
            for gradient in gradients:
                model.zero_grad()
                model[0].weight.backward(torch.as_tensor(gradient))
            inspector.tick_epoch()
        return (
            shown.values("Weight Gradient Norm")["0"],
            shown.values("Weight Gradient Correlation")["0"],
            shown.ranges("Weight Gradient Correlation")["0"],
        )

    return run


EAST, WEST, NORTH = [[3.0, 0.0], [0.0, 4.0]], [[-3.0, 0.0], [0.0, -4.0]], [[0.0, 2.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("ticks", "mean_norm", "mean_correlation"),
    [
        ([[EAST]], 5.0, 0.0),
        ([[EAST, EAST]], 5.0, 0.5),
        ([[EAST], [EAST, EAST]], 5.0, 1.0),
        ([[EAST], [WEST]], 5.0, -1.0),
        ([[EAST], [NORTH]], 5**0.5, 0.0),
        ([[EAST], [[[0.0, 0.0], [0.0, 0.0]]]], 0.0, 0.0),
    ],
)
def test_direction_is_compared_across_ticks(ticks, mean_norm, mean_correlation, weights):
    norms, correlations, _ = weights(*ticks)
    assert norms["mean"] == pytest.approx(mean_norm)
    assert correlations["mean"] == pytest.approx(mean_correlation)


def test_bands(weights):
    _, _, bands = weights([EAST, EAST, WEST])
    spread = np.std([0.0, 1.0, -1.0])
    assert bands == {("-σ", "+σ"): pytest.approx((-spread, spread)), ("min", "max"): pytest.approx((-1.0, 1.0))}


def test_non_finite_gradient_is_counted_and_leaves_the_others_alone(weights, shown):
    norms, correlations, _ = weights([EAST, [[float("nan"), 0.0], [0.0, 0.0]], EAST])
    assert norms["mean"] == pytest.approx(5.0)
    assert correlations["mean"] == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_large_numbers_of_every_dtype_have_a_finite_correlation(dtype, watch, shown):
    model = nn.Sequential(nn.Linear(20, 20, bias=False, dtype=dtype))
    inspector = watch(model, ParameterGradientGeometry(parameters="weight"))
    for _ in inspector.range(2):
        model.zero_grad()
        model[0].weight.backward(torch.full((20, 20), 300.0, dtype=dtype))
    assert shown.values("Weight Gradient Norm")["0"]["mean"] == pytest.approx(6000)
    assert shown.values("Weight Gradient Correlation")["0"]["mean"] == pytest.approx(1)


def test_sparse_gradient_has_the_norm_of_the_dense_one(watch, shown, close):
    model = nn.Sequential(nn.Embedding(6, 3, sparse=True))
    dense = nn.Embedding.from_pretrained(model[0].weight.detach().clone(), freeze=False)
    inspector = watch(model, ParameterGradientGeometry())
    for module in (model, dense):
        module(torch.tensor([1, 4, 4])).square().sum().backward()
    inspector.tick_epoch()
    expected = np.linalg.norm(dense.weight.grad.double().numpy())
    assert shown.values("Weight Gradient Norm")["0"]["mean"] == close(expected)


def test_gradient_with_a_graph_of_its_own(watch, shown):
    model = nn.Sequential(nn.Linear(3, 1))
    inspector = watch(model, ParameterGradientGeometry())
    loss = model(torch.randn(4, 3)).square().sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    sum(gradient.square().sum() for gradient in gradients).backward()
    inspector.tick_epoch()
    expected = np.linalg.norm(model[0].weight.grad.double().numpy())
    assert shown.values("Weight Gradient Norm")["0"]["mean"] == pytest.approx(expected)


def test_module_called_twice_has_one_sample_a_step(watch):
    model = nn.Sequential(nn.Linear(3, 3))
    lens = ParameterGradientGeometry(inplace=False)
    inspector = watch(model, lens)
    model(model(torch.randn(5, 3))).sum().backward()
    assert [len(samples) for kept in lens._preprocessors for value in kept.value.values() for samples in value] == [
        1,
        1,
        1,
        1,
    ]
    inspector.detach()


def test_unfreezing_is_noticed_at_the_next_tick_in_a_layer_whose_forward_never_runs(shown, watch):
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    attention.out_proj.weight.requires_grad_(False)
    inspector = watch(attention, ParameterGradientGeometry(parameters="weight"))
    x = torch.randn(2, 3, 4)
    inspector.tick_epoch()
    attention.out_proj.weight.requires_grad_(True)
    inspector.tick_epoch()
    attention(x, x, x)[0].sum().backward()
    inspector.tick_epoch()
    layers = {epoch: list(values) for epoch, tag, values, _ in shown.calls if tag == "Weight Gradient Norm"}
    assert layers == {1: [], 2: [], 3: ["out_proj"]}
