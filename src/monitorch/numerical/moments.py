"""Moments of many samples as tensors, computed on a device without waiting for it.

A row holds ``count, mean, standard deviation, minimum, maximum, number of non-finite samples``. Unlike variances,
deviations fit into float64 whenever the samples do.
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
    count, mean, deviation, low, high, nonfinite = rows.unbind(-1)
    total = count.sum()
    weight = count / total.clamp(min=1)
    # weights rather than sums: a sum of huge values could overflow although their mean does not
    center = (weight * mean).sum()
    distance = (mean - center).where(count > 0, 0.0)
    unit = torch.maximum(distance.abs(), deviation).max()
    unit = unit.where(unit > 0, 1.0)
    spread = (weight * ((deviation / unit).square() + (distance / unit).square())).sum().sqrt() * unit
    return torch.stack((total, center, spread, low.min(), high.max(), nonfinite.sum()))
