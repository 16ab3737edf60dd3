import math

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.errors import SkippedSample
from monitorch.preprocessor import GradientActivation


def oracle(gradient, eps=1e-8):
    active = np.abs(gradient.to(torch.complex128).numpy()) > eps
    rows = active.reshape(len(active) if active.ndim else 1, -1).mean(axis=1)
    return rows.mean(), (rows == 0).mean()


def measured(*gradients, inplace=False, **options):
    preprocessor = GradientActivation(death=True, inplace=inplace, **options)
    for gradient in gradients:
        preprocessor.process_tensor("x", gradient)
    return preprocessor.value["x"]


@pytest.mark.parametrize("shape", [(6, 3), (5, 2, 3, 3), (4, 1), (7,), (1,), ()])
def test_rates_of_rows(shape, dtype):
    gradients = [torch.randn(shape).relu().to(dtype) for _ in range(4)]
    activation, death = measured(*gradients)
    expected = np.array([oracle(gradient) for gradient in gradients])
    np.testing.assert_allclose(activation, expected[:, 0], rtol=1e-6)
    np.testing.assert_allclose(death, expected[:, 1], rtol=1e-6)


def test_each_element_of_a_bias_is_a_row():
    assert measured(torch.tensor([0.0, 1.0, 0.0, -1.0])) == ([0.5], [0.5])


def test_without_death_there_is_one_accumulator():
    preprocessor = GradientActivation(death=False, inplace=True)
    preprocessor.process_tensor("x", torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert preprocessor.value["x"].mean == 0.25


def test_eps_itself_counts_as_zero():
    assert measured(torch.tensor([0.5, -0.75]), eps=0.5) == ([0.5], [0.5])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_gradients_do_not_look_dead(bad):
    for moments in measured(torch.full((2, 3), bad), torch.ones(2, 3), inplace=True):
        assert (moments.count, moments.nonfinite) == (1, 1)


def test_a_complex_number_is_active_as_a_whole():
    gradient = torch.tensor([[0j, 1j], [1 + 0j, 0j], [0j, 0j]])
    activation, death = measured(gradient)
    assert (activation[0], death[0]) == pytest.approx(oracle(gradient))
    assert measured(torch.tensor(1j)) == ([1.0], [0.0])


def test_sparse_gradients_of_an_embedding():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 1, 4])).sum().backward()
    assert table.weight.grad.is_sparse
    assert measured(table.weight.grad) == (pytest.approx([0.4]), pytest.approx([0.6]))


GRADIENTS = {
    "expanded": torch.ones(()).expand(3, 4),
    "transposed": torch.randn(4, 3).relu().T,
    "with a graph": torch.randn(3, 4, requires_grad=True).relu(),
}


@pytest.mark.parametrize("gradient", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_of_any_layout_are_left_as_they_were(gradient):
    before = gradient.detach().clone()
    activation, death = measured(gradient)
    assert (activation[0], death[0]) == pytest.approx(oracle(before))
    assert torch.equal(gradient.detach(), before)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_gradients_are_skipped(shape):
    with pytest.raises(SkippedSample, match="empty"):
        measured(torch.zeros(shape))
