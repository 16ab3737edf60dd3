"""Statistics of the tensors that enter a model or a loss. Nothing here waits for a device."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..numerical.precision import in_full, wide_dtype
from .abstract import AbstractTensorPreprocessor
from .accumulating import Kept, SeparateStatistics

MEAN, STD, RANGE, NONFINITE = "mean", "std", "range", "nonfinite"
FEATURE_SPREAD, CONSTANT_FEATURES = "feature spread", "constant features"

IMAGE = 4
"""With this many dimensions or more a tensor is a batch of images or films, ``[B, C, ...]``."""

MOST = 1 << 20
"""The most elements read per tensor; of a larger one, every n-th sample is read."""

SMALL = 1 << 16
"""Tensors up to this many elements are copied and read together with those of other steps."""

Described: TypeAlias = list[tuple[str, Tensor]]
"""Statistics with one sample for each of several tensors; one may come several times."""


def thinned(named: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Every n-th sample of tensors that belong together, so that copies take little memory.

    >>> [len(data) for data in thinned({"x": torch.zeros(5000, 1024), "y": torch.zeros(5000)}).values()]
    [1000, 1000]
    """
    largest = max(named.values(), key=Tensor.numel, default=None)
    if largest is None or largest.dim() < 2 or largest.numel() <= MOST:
        return named
    step, count = -(-largest.numel() // MOST), len(largest)
    return {name: data[::step] if data.dim() and len(data) == count else data for name, data in named.items()}


def described(data: Tensor) -> Described:
    """Mean, standard deviation and range of floating data, and how many are not finite; of integers the range only.

    This and the other functions get tensors of one shape, stacked.
    """
    flat = data.reshape(len(data), -1)
    if not data.is_floating_point():
        return extremes(RANGE, flat.to(torch.int64))
    x, wide = in_full(flat), wide_dtype(flat)
    mean = x.mean(1, dtype=wide)
    if x.dtype is wide:  # no wider dtype is there to hold the squares of numbers that are huge or far from 0
        units = _ranges(x.amin(1), x.amax(1))
        std = units * (x - mean[:, None]).div_(units[:, None]).square_().mean(1).sqrt()
    else:
        mean_square = torch.linalg.vector_norm(x, dim=1, dtype=wide).square() / x.shape[1]
        std = (mean_square - mean.square()).clamp(min=0).sqrt()
    nonfinite = (x - x).ne_(0).sum(1)  # 0, unless it is not finite; isfinite() takes ten times as long
    return [(MEAN, mean), (STD, std), *extremes(RANGE, x), (NONFINITE, nonfinite)]


def described_features(data: Tensor) -> Described:
    """The largest standard deviation of a feature over the smallest one, and how many features are constant.

    Features are the last dimension, of images the channels. Those whose elements are all equal are constant: they are
    left out of the first number, which is 1 if no others are there.

    >>> spread, constant = described_features(torch.tensor([[[0.0, 0.0, 7.0], [1.0, 100.0, 7.0]]]))
    >>> spread[1].item(), constant[1].item()
    (100.0, 1)
    """
    if not data.is_floating_point() or data.dim() < 3:
        return []
    stds, is_constant = feature_deviations(data)
    largest = stds.masked_fill(is_constant, -math.inf).amax(1)
    smallest = stds.masked_fill(is_constant, math.inf).amin(1)
    spread = (largest / smallest).masked_fill(largest == -math.inf, 1.0)
    return [(FEATURE_SPREAD, spread), (CONSTANT_FEATURES, is_constant.sum(1))]


def feature_deviations(data: Tensor) -> tuple[Tensor, Tensor]:
    """The standard deviation of each feature of floating data, and a flag for each: whether it is constant."""
    x = in_full(data)
    x = x.movedim(2, -1) if x.dim() > IMAGE else x
    x = x.reshape(len(x), -1, x.shape[-1])
    smallest, largest = x.amin(1), x.amax(1)
    units = _ranges(smallest, largest)  # squares of huge or tiny numbers do not fit into the dtype
    centred = (x - x.mean(1, keepdim=True)).div_(units[:, None])
    rest = centred.mean(1)  # the rounding error of the mean, which matters if the mean is far from 0
    return units * (centred.square_().mean(1) - rest.square()).clamp(min=0).sqrt(), smallest == largest


def _ranges(smallest: Tensor, largest: Tensor) -> Tensor:
    """By how much they differ, or 1 where they do not."""
    return (largest - smallest).masked_fill(smallest == largest, 1.0)


def extremes(statistic: str, x: Tensor) -> Described:
    """The smallest and the largest number as two samples: the range of a tick is from the smallest to the largest."""
    flat = x.reshape(len(x), -1)
    return [(statistic, flat.amin(1)), (statistic, flat.amax(1))]


class DataStatistics(SeparateStatistics, AbstractTensorPreprocessor):
    """Numbers of each tensor, by name: those of :func:`described` and of :func:`described_features`."""

    statistics = (MEAN, STD, RANGE, FEATURE_SPREAD, CONSTANT_FEATURES, NONFINITE)

    def __init__(self) -> None:
        super().__init__(inplace=True)

    @torch.no_grad()
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one tensor; it may be changed afterwards."""
        data = thinned({name: tensor.detach()})[name]
        if data.numel() > SMALL:
            self._handle(self._kept, (name,), (self._kept.series.now(),), [data[None]])
        elif data.numel():
            self._gather(name, data.clone())

    def _handle(
        self, kept: Kept, keys: tuple[Any, ...], steps: tuple[int, ...], columns: list[Tensor], *_: Any
    ) -> None:
        """Describe tensors of one shape."""
        for statistic, samples in (*described(columns[0]), *described_features(columns[0])):
            kept.series.add_all([(name, statistic) for name in keys], samples, steps)
