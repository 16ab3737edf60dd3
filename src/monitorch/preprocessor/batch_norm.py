"""How far the running statistics of BatchNorm layers are from those of the batches that they see."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..numerical.precision import wide_dtype
from .accumulating import AccumulatingPreprocessor


class ChannelMoments(NamedTuple):
    """The mean and the variance of each channel."""

    mean: Tensor
    variance: Tensor


def batch_norm_shift(batch: ChannelMoments, running: ChannelMoments, eps: float) -> tuple[Tensor, Tensor]:
    """How far the running statistics are from those of a batch; does not wait for the device.

    Returns the largest difference of the means of a channel, in running standard deviations, and the variance of a
    channel in the batch over its running variance, where that is farthest from 1. ``eps`` is that of the layer.

    >>> one = ChannelMoments(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 1.0]))
    >>> batch_norm_shift(one, ChannelMoments(torch.zeros(2), torch.tensor([1.0, 4.0])), 0.0)
    (tensor(1.5000), tensor(0.2500))
    """
    scale = running.variance + eps
    ratio = (batch.variance + eps) / scale
    farthest = ratio.log().abs().argmax()
    return ((batch.mean - running.mean).abs() / scale.sqrt()).amax(), ratio.take(farthest)


class BatchNormShifts(AccumulatingPreprocessor):
    """Keeps how far the running statistics of a layer are from those of each batch.

    A layer updates its running statistics by the share ``momentum``. So the batch statistics follow from the running
    ones before and after, without reading activations.
    """

    statistics = ("mean shift", "variance ratio")

    @torch.no_grad()
    def process_statistics(
        self, name: str, before: ChannelMoments, after: ChannelMoments, momentum: float | Tensor, eps: float
    ) -> None:
        """Take the running statistics before and after one pass; ``momentum`` is not 0."""
        wide = wide_dtype(before.mean)
        running = ChannelMoments(*(x.to(wide) for x in before))
        batch = ChannelMoments(
            *(old + (new.to(wide) - old) / momentum for old, new in zip(running, after, strict=True))
        )
        # rounding must not make a variance negative
        batch = batch._replace(variance=batch.variance.clamp(min=0))
        self._record(name, *batch_norm_shift(batch, running, eps))
