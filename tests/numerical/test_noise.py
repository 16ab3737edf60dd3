"""The noise of gradients from parts of a batch: unbiased, and the same from halves as from many parts."""

import math

import numpy as np
import pytest
import torch

from monitorch.numerical.noise import estimate_noise, noise_scale


def from_parts(parts):
    """By the definitions: products of different parts for the gradient, deviations from the mean for the noise."""
    count = len(parts)
    products = [parts[i] @ parts[j] for i in range(count) for j in range(count) if i != j]
    return np.mean(products), np.var(parts, axis=0, ddof=1).sum()


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("make", [float, lambda number: torch.tensor(number, dtype=torch.float64)])
def test_estimates_are_those_from_all_pairs_of_parts(count, make):
    parts = np.random.default_rng(count).normal(0.3, 1.0, size=(count, 20))
    mean_square, of_mean = np.mean(np.sum(parts**2, axis=1)), np.sum(parts.mean(axis=0) ** 2)
    found = estimate_noise(count, make(mean_square), make(of_mean))
    assert [float(number) for number in found] == pytest.approx(from_parts(parts), rel=1e-12)


def test_estimates_are_right_on_average():
    stream = np.random.default_rng(0)
    gradient, spread = np.linspace(-1, 1, 10), np.linspace(0.5, 2, 10)
    parts = gradient + spread * stream.normal(size=(20_000, 4, 10))
    squares, means = np.sum(parts**2, axis=2).mean(axis=1), np.sum(parts.mean(axis=1) ** 2, axis=1)
    square, variance = estimate_noise(4, squares.mean().item(), means.mean().item())
    assert square == pytest.approx(np.sum(gradient**2), rel=0.02)
    assert variance == pytest.approx(np.sum(spread**2), rel=0.02)


@pytest.mark.parametrize(
    ("square", "variance", "scale"),
    [
        (2.0, 6.0, 3.0),
        (2.0, 0.0, 0.0),
        (2.0, -1e-9, 0.0),
        (0.0, 1.0, math.inf),
        (-1.0, 1.0, math.inf),
        (math.nan, 1.0, math.inf),
    ],
)
def test_a_gradient_that_does_not_show_has_an_infinite_scale(square, variance, scale):
    assert noise_scale(square, variance) == scale
