"""Moments of many samples as tensors: folding on a device, without waiting for it.

A row holds ``count, mean, variance, minimum, maximum, number of non-finite samples``.
"""

import torch
from torch import Tensor

INFINITY = float("inf")


def of_samples(samples: Tensor) -> Tensor:
    """One row per sample, from a vector of samples."""
    finite = samples.isfinite()
    value = samples.where(finite, 0.0)
    columns = (
        finite.to(samples.dtype),
        value,
        torch.zeros_like(samples),
        samples.where(finite, INFINITY),
        samples.where(finite, -INFINITY),
        (~finite).to(samples.dtype),
    )
    return torch.stack(columns, dim=-1)


def merge(rows: Tensor) -> Tensor:
    """The row of all samples behind ``rows`` (Chan's pairwise formula for any number of parts)."""
    count, mean, variance, low, high, nonfinite = rows.unbind(-1)
    total = count.sum()
    weight = count / total.clamp(min=1)
    # weights rather than sums: a sum of huge values would overflow where their mean does not
    center = (weight * mean).sum()
    spread = (mean - center).where(count > 0, 0.0).square()
    return torch.stack((total, center, (weight * (variance + spread)).sum(), low.min(), high.max(), nonfinite.sum()))
