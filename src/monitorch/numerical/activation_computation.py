"""Shares of active neurons."""

from torch import Tensor


def reduce_spatial_(activation: Tensor, batch: bool) -> Tensor:
    """Mean over all dimensions after the channels."""
    first = 2 if batch else 1
    return activation.float().flatten(first).mean(first) if activation.dim() > first else activation


def reduce_non_channels(activation: Tensor, channel_dim: int) -> Tensor:
    """Mean over every dimension but one.

    >>> reduce_non_channels(torch.tensor([[True, False], [True, True]]), channel_dim=1)
    tensor([1.0000, 0.5000])
    """
    others = [dim for dim in range(activation.dim()) if dim != channel_dim % activation.dim()]
    return activation.float().mean(others) if others else activation.float()


def reduce_activation_to_activation_rates(activation: Tensor, batch: bool) -> Tensor:
    """The share of active entries of each channel, ``[B, C, *]`` with ``batch``, else ``[C, *]``.

    >>> reduce_activation_to_activation_rates(torch.tensor([[True, False], [True, True]]), batch=True)
    tensor([1.0000, 0.5000])
    """
    if not batch:
        return reduce_spatial_(activation, batch)
    if activation.dim() < 2:
        return activation.float().mean()
    return reduce_non_channels(activation, 1)
