"""What two neighbouring samples become when one is inserted between them.

Every function takes the inserted sample, the time since the older neighbour, the older and the newer neighbour, and the
time between them; it returns the new neighbours.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
Adjust = Callable[[Tensor], Tensor]


def extrap_previous(sample: Tensor, sample_at: Tensor, prev_data: Tensor, next_data: Tensor, step_time: float) -> Pair:
    """The sample replaces the older neighbour."""
    return sample, next_data


def extrap_next(sample: Tensor, sample_at: Tensor, prev_data: Tensor, next_data: Tensor, step_time: float) -> Pair:
    """The sample replaces the newer neighbour."""
    return prev_data, sample


def extrap_neighbors(sample: Tensor, sample_at: Tensor, prev_data: Tensor, next_data: Tensor, step_time: float) -> Pair:
    """The sample replaces both neighbours."""
    return sample, sample


def extrap_nearest(sample: Tensor, sample_at: Tensor, prev_data: Tensor, next_data: Tensor, step_time: float) -> Pair:
    """The sample replaces the neighbour that is closer in time; in the middle the older one."""
    is_next = sample_at > step_time / 2
    return torch.where(is_next, prev_data, sample), torch.where(is_next, sample, next_data)


def extrap_linear_forward(
    sample: Tensor,
    sample_at: Tensor,
    prev_data: Tensor,
    next_data: Tensor,
    step_time: float,
    *,
    adjust: Adjust | None = None,
) -> Pair:
    """The newer neighbour moves onto the line from the older one, after ``adjust``, through the sample.

    >>> ends = torch.tensor(1.0), torch.tensor(9.0)
    >>> extrap_linear_forward(torch.tensor(2.0), torch.tensor(0.5), *ends, 1.0)
    (tensor(1.), tensor(3.))
    """
    older = prev_data if adjust is None else adjust(prev_data)
    return older, older + (sample - older) / sample_at * step_time


def extrap_linear_backward(
    sample: Tensor,
    sample_at: Tensor,
    prev_data: Tensor,
    next_data: Tensor,
    step_time: float,
    *,
    adjust: Adjust | None = None,
) -> Pair:
    """The older neighbour moves onto the line through the sample to the newer one, after ``adjust``."""
    newer = next_data if adjust is None else adjust(next_data)
    return newer - (newer - sample) / (step_time - sample_at) * step_time, newer


def extrap_expdecay(
    sample: Tensor, sample_at: Tensor, prev_data: Tensor, next_data: Tensor, step_time: float, *, time_constant: float
) -> Pair:
    """Both neighbours lie on the exponential decay through the sample."""
    rate = 1 / time_constant
    return extrap_expratedecay(sample, sample_at, prev_data, next_data, step_time, rate_constant=rate)


def extrap_expratedecay(
    sample: Tensor, sample_at: Tensor, prev_data: Tensor, next_data: Tensor, step_time: float, *, rate_constant: float
) -> Pair:
    """Both neighbours lie on the exponential decay of a given rate through the sample."""
    return sample * torch.exp(sample_at * rate_constant), sample * torch.exp((sample_at - step_time) * rate_constant)
