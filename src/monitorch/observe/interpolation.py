"""Values between two neighbouring samples.

Every function takes the older sample, the newer one, the time since the older one, and the time between them.
"""

import torch
from torch import Tensor


def interp_previous(prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
    """The older sample."""
    return prev_data


def interp_next(prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
    """The newer sample."""
    return next_data


def interp_nearest(prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
    """The sample that is closer in time; in the middle the older one."""
    return torch.where(sample_at / step_time > 0.5, next_data, prev_data)


def interp_linear(prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
    """Linear interpolation between the two.

    >>> interp_linear(torch.tensor(1.0), torch.tensor(3.0), torch.tensor(0.5), 2.0)
    tensor(1.5000)
    """
    return prev_data + (next_data - prev_data) / step_time * sample_at


def interp_expdecay(
    prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float, *, time_constant: float
) -> Tensor:
    """The older sample, decayed exponentially."""
    return interp_expratedecay(prev_data, next_data, sample_at, step_time, rate_constant=1 / time_constant)


def interp_expratedecay(
    prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float, *, rate_constant: float
) -> Tensor:
    """The older sample, decayed exponentially at a given rate."""
    return prev_data * torch.exp(sample_at * -rate_constant)
