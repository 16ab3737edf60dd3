"""What one pass shows, compared with NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from monitorch.inspector.model_copy import copied
from monitorch.watching.preflight.first_pass import first_pass
from tests.cut import Cut

from .models import Convolutional, classes, layers


def look(model, *batch, loss_fn=F.cross_entropy):
    with copied(model, loss_fn) as twin:
        return first_pass(twin, batch)


def array(tensor):
    return tensor.detach().double().numpy()


def test_outputs_gradients_and_the_loss_are_those_of_a_plain_pass():
    model, x = layers(6, 8, 8, 3), torch.randn(16, 6)
    y = classes(x, 3)
    seen = look(model, x, y)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    assert seen.loss == loss.item()
    assert list(seen.layers) == ["0", "1", "2", "3", "4"]
    assert [layer.has_weights for layer in seen.layers.values()] == [True, False, True, False, True]
    h = array(x)
    for name, part in model.named_children():
        h = np.maximum(h, 0) if name in "13" else h @ array(part.weight).T + array(part.bias)
        assert seen.layers[name].rms == pytest.approx(np.sqrt(np.mean(h**2)), rel=1e-5)
    for name, own in model.named_parameters():
        assert torch.equal(seen.gradients[name], own.grad)
        assert seen.layer_of[name] == name.split(".")[0]
    assert torch.equal(seen.output, model(x).detach())


def test_dead_units_of_functions_are_counted_over_all_positions():
    model, x = Convolutional(), torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        model.norm.bias[:4] = -100.0
    model.eval()
    seen = look(model, x, classes(x))
    first, second = seen.activations
    assert (first.name, first.weights, first.entries, first.positions) == ("norm", "norm", 5, 5 * 64)
    assert first.dead == 4 / 16
    assert (second.name, second.weights, second.dead) == ("again", "again", 0.0)
    assert first.saturated is None


def test_saturation_is_the_share_near_the_bounds():
    model, x = nn.Sequential(nn.Linear(6, 50), nn.Sigmoid(), nn.Linear(50, 3)), 10 * torch.randn(20, 6)
    seen = look(model, x, classes(x, 3))
    values = 1 / (1 + np.exp(-(array(x) @ array(model[0].weight).T + array(model[0].bias))))
    expected = np.mean((values <= 0.01) | (values >= 0.99))
    assert seen.activations[0].saturated == pytest.approx(expected, abs=1e-3)
    assert 0.2 < expected < 0.9


def test_scale_is_that_of_what_enters_the_first_layer_with_weights():
    x = torch.randn(40, 6) * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 50.0]) + 3
    x[:, 1] = 7.0
    seen = look(nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3)), x, classes(x, 3))
    scale, values = seen.layers["1"].data, array(x)
    stds = np.delete(values.std(0), 1)
    assert (scale.mean, scale.std) == (pytest.approx(values.mean(), rel=1e-5), pytest.approx(values.std(), rel=1e-5))
    assert scale.apart == pytest.approx(stds.max() / np.median(stds), rel=1e-5)
    assert seen.layers["3"].data is None


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 8), nn.Linear(5, 8), nn.LayerNorm(8)

    def forward(self, a, b):
        return self.norm(self.first(a) + self.second(b.permute(1, 0).T))


def test_every_input_that_enters_a_layer_directly_has_a_scale():
    seen = look(TwoInputs(), (torch.randn(9, 4), 30 * torch.ones(9, 5)), torch.randn(9, 8), loss_fn=F.mse_loss)
    assert seen.layers["second"].data == (30.0, 0.0, 1.0)
    assert seen.layers["norm"].data is None


class Ending(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.linear(x))


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (nn.Sigmoid(), 0.0, 1.0),
        (torch.tanh, -1.0, 1.0),
        (F.relu, 0.0, math.inf),
        (lambda x: x.relu_(), 0.0, math.inf),
        (lambda x: x.clamp(-2, 3), -2.0, 3.0),
        (nn.Hardtanh(-0.5, 0.5), -0.5, 0.5),
        (nn.ReLU6(), 0.0, 6.0),
        (nn.ELU(alpha=2.0), -2.0, math.inf),
        (F.softplus, 0.0, math.inf),
        (F.gelu, pytest.approx(-0.17, abs=1e-2), math.inf),
        (nn.LeakyReLU(), -math.inf, math.inf),
        (nn.PReLU(), -math.inf, math.inf),
        (lambda x: x.softmax(1), 0.0, 1.0),
        (lambda x: x.sigmoid().view(-1, 2, 2), 0.0, 1.0),
    ],
)
def test_the_range_of_the_last_activation(function, low, high):
    last = look(Ending(function), torch.randn(6, 4), None, loss_fn=torch.mean).last_function
    assert (last.low, last.high) == (low, high)


@pytest.mark.parametrize("function", [lambda x: x, lambda x: 10 * x.sigmoid(), lambda x: x + x.relu().mean()])
def test_other_operations_at_the_end_have_no_range(function):
    assert look(Ending(function), torch.randn(6, 4), None, loss_fn=torch.mean).last_function is None


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = layers(4, 8, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(checkpoint(self.inner, x, use_reentrant=False).relu())


def test_what_backward_repeats_is_not_counted():
    x = torch.randn(9, 4)
    seen = look(Checkpointed(), x, classes(x, 2))
    assert [one.name for one in seen.activations] == ["inner.1", "inner.2"]
    assert seen.gradients.keys() == seen.parameters.keys()


def test_where_numbers_stop_being_finite():
    model, x = layers(4, 8, 8, 2), torch.randn(9, 4)
    model[2].register_forward_hook(lambda module, args, output: output / 0)
    seen = look(model, x, classes(x, 2))
    found = [(one.name, one.takes_finite, one.gives_finite) for one in seen.layers.values()]
    assert found[1:4] == [("1", True, True), ("2", True, False), ("3", False, False)]


def test_tied_and_frozen_parameters():
    model, x = layers(4, 4, 4, 2), torch.randn(9, 4)
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    seen = look(model, x, classes(x, 2))
    assert seen.layer_of["0.weight"] == "0"
    assert "2.weight" not in seen.parameters
    assert "0.bias" not in seen.trained
    assert "0.bias" not in seen.gradients


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut, self.kept = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return Cut.apply(self.cut(x)) + self.kept(x)


def test_a_function_of_the_user_may_have_no_gradient_for_a_layer():
    seen = look(Half(), torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    assert all(layer.gradient_is_finite for layer in seen.layers.values())
