"""How much of a gradient is noise."""

import math
from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", float, Tensor)


def estimate_noise(parts: int, mean_square: Number, square_of_mean: Number) -> tuple[Number, Number]:
    """The squared norm of the true gradient G, and the variance of the gradient of one part, summed over its elements.

    From gradients g1, g2, ... of parts of equal size; both estimates are unbiased, and the first may be negative.

    With their mean g and ``m = mean(|g1|^2, |g2|^2, ...)`` of n parts they are ``|G|^2 = (n |g|^2 - m) / (n - 1)`` and
    ``variance = n (m - |g|^2) / (n - 1)``: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018),
    appendix A.1, with a part as the small batch and all of them as the large one.

    Args:
        parts: how many there are; at least two.
        mean_square: the mean of the squared norms of their gradients.
        square_of_mean: the squared norm of the mean of their gradients.

    >>> estimate_noise(2, mean_square=(3.0**2 + 1.0**2) / 2, square_of_mean=2.0**2)
    (3.0, 2.0)
    """
    rest = parts - 1
    square = (parts * square_of_mean - mean_square) / rest
    return square, parts * (mean_square - square_of_mean) / rest


def noise_scale(square: float, variance: float) -> float:
    """How many parts, or samples, a batch needs for noise as large as the gradient; infinite if noise hides that."""
    return max(variance, 0.0) / square if square > 0 else math.inf  # rounding may leave less than no variance
