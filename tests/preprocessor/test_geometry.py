import copy

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.preprocessor import GradientGeometry, OutputGradientGeometry


def oracle(gradients, normalize, eps):
    arrays = [np.asarray(gradient, dtype=np.float64).ravel() for gradient in gradients]
    norms = [np.linalg.norm(array) for array in arrays]
    pairs = zip(arrays, arrays[1:], norms, norms[1:], strict=False)
    products = [0.0] + [a @ b / (n * m + eps) for a, b, n, m in pairs]
    return np.array(norms) / (np.sqrt(arrays[0].size) if normalize else 1), products


@pytest.fixture
def gradients_of_a_run():
    """Gradients of a float32 model, and of its float64 copy, over a few batches."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    wide = copy.deepcopy(model).double()
    batches = torch.randn(4, 8, 3)
    runs = []
    for net, data in ((model, batches), (wide, batches.double())):
        runs.append([torch.autograd.grad(net(batch).square().mean(), net[0].weight)[0] for batch in data])
    return runs


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.1])
def test_geometry_of_real_gradients(gradients_of_a_run, normalize, eps):
    seen, exact = gradients_of_a_run
    preprocessor = GradientGeometry(correlation=True, normalize=normalize, inplace=False, eps=eps)
    for gradient in seen:
        preprocessor.process_tensor("weight", gradient)
    norms, products = oracle([gradient.numpy() for gradient in exact], normalize, eps)
    np.testing.assert_allclose(preprocessor.value["weight"][0], norms, rtol=1e-4)
    np.testing.assert_allclose(preprocessor.value["weight"][1], products, atol=1e-4)


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 3, 3), (5,), ()])
def test_geometry_of_any_shape_and_dtype(shape, dtype):
    gradients = [torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(3)]
    preprocessor = GradientGeometry(correlation=True, normalize=True, inplace=False)
    for gradient in gradients:
        preprocessor.process_tensor("x", gradient)
    norms, products = oracle([gradient.double().numpy() for gradient in gradients], True, 1e-8)
    np.testing.assert_allclose(preprocessor.value["x"][0], norms, rtol=1e-6)
    np.testing.assert_allclose(preprocessor.value["x"][1], products, atol=1e-6)


def test_without_correlation_no_tensor_is_kept():
    preprocessor = GradientGeometry(correlation=False, normalize=False, inplace=True)
    preprocessor.process_tensor("x", torch.tensor([3.0, 4.0]))
    assert preprocessor.value["x"].mean == 5.0
    assert not preprocessor.state_dict()["previous"]


def test_constant_gradients_correlate_fully_in_every_epoch_but_the_first():
    preprocessor = GradientGeometry(correlation=True, normalize=False, inplace=True, eps=0.0)
    means = []
    for _ in range(3):
        for _ in range(3):
            preprocessor.process_tensor("x", torch.ones(4))
        means.append(preprocessor.value["x"][1].mean)
        preprocessor.reset()
    assert means == pytest.approx([2 / 3, 1.0, 1.0])


def test_names_do_not_disturb_each_other():
    preprocessor = GradientGeometry(correlation=True, normalize=False, inplace=False, eps=0.0)
    for sign in (1.0, 1.0):
        preprocessor.process_tensor("a", torch.full((2,), sign))
        preprocessor.process_tensor("b", torch.full((3,), -sign))
    assert [product for _, product in preprocessor.value.values()] == [pytest.approx([0.0, 1.0])] * 2


def test_only_the_interrupted_name_loses_its_last_tensor():
    preprocessor = GradientGeometry(correlation=True, normalize=False, inplace=False, eps=0.0)
    preprocessor.interrupt("unknown")
    for _ in range(2):
        for name in ("a", "b"):
            preprocessor.process_tensor(name, torch.ones(2))
        preprocessor.interrupt("a")
    assert preprocessor.value["a"][1] == [0.0]
    assert preprocessor.value["b"][1] == pytest.approx([0.0, 1.0])


def test_a_gradient_accumulated_in_place_is_compared_with_what_it_was():
    weight = torch.ones(2, requires_grad=True)
    preprocessor = GradientGeometry(correlation=True, normalize=False, inplace=False, eps=0.0)
    for direction in (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])):
        (weight * direction).sum().backward()
        preprocessor.process_tensor("x", weight.grad)
    norms, products = preprocessor.value["x"]
    assert norms == pytest.approx([1.0, np.sqrt(2)])
    assert products == pytest.approx([0.0, np.sqrt(0.5)])


# output gradients


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
