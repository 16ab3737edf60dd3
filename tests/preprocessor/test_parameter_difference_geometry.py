import numpy as np
import pytest
import torch
from torch import nn

from monitorch.preprocessor import ParameterDifferenceGeometry


@pytest.fixture
def updates():
    def build(normalize=False, eps=0.0):
        return ParameterDifferenceGeometry(correlation=True, normalize=normalize, inplace=False, eps=eps)

    return build


def hand_over(preprocessor, *values):
    for value in values:
        preprocessor.process_tensor("x", torch.as_tensor(value))


@pytest.mark.parametrize("normalize", [True, False])
def test_updates_of_an_optimizer(updates, normalize):
    weight = nn.Parameter(torch.randn(4, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    preprocessor, seen = updates(normalize), []
    for _ in range(5):
        preprocessor.process_tensor("x", weight)
        seen.append(weight.detach().double().numpy().ravel().copy())
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
    steps = np.diff(seen, axis=0)
    norms = np.linalg.norm(steps, axis=1)
    products = [0.0, *[a @ b / (n * m) for a, b, n, m in zip(steps, steps[1:], norms, norms[1:], strict=False)]]
    np.testing.assert_allclose(preprocessor.value["x"][0], norms / (np.sqrt(12) if normalize else 1), rtol=1e-5)
    np.testing.assert_allclose(preprocessor.value["x"][1], products, atol=1e-5)


def test_any_dtype(updates, dtype):
    weights = [torch.randn(6, dtype=torch.float64).to(dtype) for _ in range(3)]
    preprocessor = updates()
    hand_over(preprocessor, *weights)
    steps = np.diff([weight.double().numpy() for weight in weights], axis=0)
    half = torch.finfo(dtype).bits == 16
    np.testing.assert_allclose(preprocessor.value["x"][0], np.linalg.norm(steps, axis=1), rtol=1e-2 if half else 1e-6)


def test_the_first_tensor_is_only_kept(updates):
    preprocessor = updates()
    hand_over(preprocessor, [1.0, 2.0])
    assert preprocessor.value == {}
    hand_over(preprocessor, [4.0, 6.0])
    assert preprocessor.value == {"x": ([5.0], [0.0])}


def test_reset_keeps_the_last_tensor(updates):
    preprocessor = updates()
    hand_over(preprocessor, [0.0], [1.0])
    preprocessor.reset()
    assert preprocessor.value == {}
    hand_over(preprocessor, [3.0])
    assert preprocessor.value == {"x": ([2.0], [1.0])}


def test_clear_drops_it(updates):
    preprocessor = updates()
    hand_over(preprocessor, [0.0], [1.0])
    preprocessor.clear()
    hand_over(preprocessor, [3.0], [2.0])
    assert preprocessor.value == {"x": ([1.0], [0.0])}


def test_an_interruption_is_never_measured_across(updates):
    preprocessor = updates()
    hand_over(preprocessor, [0.0], [1.0])
    preprocessor.interrupt("x")
    hand_over(preprocessor, [100.0], [98.0], [96.0])
    assert preprocessor.value == {"x": ([1.0, 2.0, 2.0], [0.0, 1.0])}


def test_a_remembered_tensor_is_where_the_next_change_starts(updates):
    preprocessor = updates()
    weight = torch.zeros(1)
    for start, end in ((0.0, 1.0), (100.0, 103.0)):
        preprocessor.remember("x", weight.fill_(start))
        preprocessor.process_tensor("x", weight.fill_(end))
    assert preprocessor.value["x"][0] == [1.0, 3.0]


@pytest.mark.parametrize("replaced", [torch.zeros(3), torch.zeros(2, device="meta")], ids=["shape", "device"])
def test_a_tensor_of_another_shape_or_device_starts_anew(updates, replaced):
    preprocessor = updates()
    hand_over(preprocessor, torch.zeros(2), replaced, torch.zeros(2))
    assert preprocessor.value == {}
    hand_over(preprocessor, torch.tensor([3.0, 4.0]))
    assert preprocessor.value["x"][0] == [5.0]


def test_a_change_of_dtype_is_followed(updates):
    preprocessor = updates()
    hand_over(preprocessor, torch.zeros(2), torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float16))
    assert preprocessor.value["x"][0] == pytest.approx([2**0.5, 0.0])


def test_no_graph_is_kept(updates):
    preprocessor = updates()
    weight = torch.ones(2, requires_grad=True)
    hand_over(preprocessor, weight * 1, weight * 2)
    assert not any(tensor.requires_grad for tensor in preprocessor._previous.values())
    assert preprocessor.value["x"][0] == pytest.approx([2**0.5])
