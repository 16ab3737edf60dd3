import pytest
import torch
from torch import nn

from monitorch.preprocessor import OutputGradientGeometry


@pytest.fixture
def preprocessor():
    return OutputGradientGeometry(correlation=True, normalize=False, inplace=False, eps=0.0)


def hand_over(preprocessor, *gradients):
    preprocessor.process_bw("x", nn.ReLU(), (None,), gradients)


def test_only_the_gradient_of_the_first_output_counts(preprocessor):
    hand_over(preprocessor, torch.tensor([3.0, 4.0]), torch.tensor([100.0]))
    hand_over(preprocessor, torch.tensor([-3.0, -4.0]), None)
    norms, products = preprocessor.value["x"]
    assert norms == pytest.approx([5.0, 5.0])
    assert products == pytest.approx([0.0, -1.0])


def test_an_output_that_was_not_used_has_no_sample(preprocessor):
    hand_over(preprocessor, None, torch.ones(2))
    assert preprocessor.value == {}


def test_the_input_gradient_is_not_asked_for():
    assert not OutputGradientGeometry.needs_grad_input


def test_short_last_batch_has_no_correlation_sample(preprocessor):
    for rows in (5, 5, 2, 1):
        hand_over(preprocessor, torch.ones(rows, 3))
    norms, products = preprocessor.value["x"]
    assert norms == pytest.approx([rows**0.5 * 3**0.5 for rows in (5, 5, 2, 1)])
    assert products == pytest.approx([0.0, 1.0])


def test_backward_with_create_graph(preprocessor):
    layer = nn.Linear(2, 3)
    layer.register_full_backward_hook(lambda module, into, out: hand_over(preprocessor, *out))
    for _ in range(2):
        data = torch.ones(4, 2, requires_grad=True)
        loss = layer(data).pow(2).sum()
        (gradient,) = torch.autograd.grad(loss, data, create_graph=True)
        assert gradient.requires_grad
    expected = 2 * layer(torch.ones(4, 2)).double().norm().item()
    assert preprocessor.value["x"][0] == pytest.approx([expected] * 2, rel=1e-5)
    assert preprocessor.value["x"][1] == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("normalize", [True, False])
def test_half_precision_does_not_overflow(normalize):
    preprocessor = OutputGradientGeometry(correlation=True, normalize=normalize, inplace=True)
    for value in (200.0, 300.0):
        hand_over(preprocessor, torch.full((10, 10), value, dtype=torch.float16))
    norms, products = preprocessor.value["x"]
    assert norms.mean == pytest.approx(250.0 if normalize else 2500.0)
    assert (products.max_, products.nonfinite) == (pytest.approx(1.0), 0)
