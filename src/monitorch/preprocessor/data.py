"""What data look like: numbers of the tensors that enter a model or a loss. Nothing here waits for a device."""

import math
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from ..numerical.precision import wide_dtype
from .abstract import AbstractTensorPreprocessor
from .accumulating import SeparateStatistics

MEAN, STD, RANGE, NONFINITE = "mean", "std", "range", "nonfinite"
FEATURE_SPREAD, CONSTANT_FEATURES = "feature spread", "constant features"

IMAGE = 4
"""With this many dimensions or more a tensor is a batch of images or films, ``[B, C, ...]``."""

MOST = 1 << 22
"""Elements of a tensor that are read; of a larger one every so-many-th sample."""

Described: TypeAlias = list[tuple[str, Tensor]]
"""Statistics with a sample; one may have several samples."""


def thinned(named: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Every so-many-th sample of tensors that go together: few enough that copies of them take little memory.

    >>> [len(data) for data in thinned({"x": torch.zeros(5000, 1024), "y": torch.zeros(5000)}).values()]
    [2500, 2500]
    """
    largest = max(named.values(), key=Tensor.numel, default=None)
    if largest is None or largest.dim() < 2 or largest.numel() <= MOST:
        return named
    step, count = -(-largest.numel() // MOST), len(largest)
    return {name: data[::step] if data.dim() and len(data) == count else data for name, data in named.items()}


def described(data: Tensor) -> Described:
    """Mean, standard deviation and range of floating data, and how many are not finite; of integers the range only."""
    if not data.is_floating_point():
        return extremes(RANGE, data.to(torch.int64))
    x, wide = data.float() if data.dtype.itemsize < torch.float32.itemsize else data, wide_dtype(data)
    mean = x.mean(dtype=wide)
    mean_square = torch.linalg.vector_norm(x, dtype=wide).square() / x.numel()
    std = (mean_square - mean.square()).clamp(min=0).sqrt()
    nonfinite = (x - x).ne_(0).sum()  # 0, unless it is not finite; isfinite() takes ten times as long
    return [(MEAN, mean), (STD, std), *extremes(RANGE, x), (NONFINITE, nonfinite)]


def described_features(data: Tensor) -> Described:
    """The largest standard deviation of a feature over the smallest one, and how many features are constant.

    Features are the last dimension, of images the channels. Those whose elements are all equal are constant: they are
    left out of the first number, which is 1 if no others are there.

    >>> spread, constant = described_features(torch.tensor([[0.0, 0.0, 7.0], [1.0, 100.0, 7.0]]))
    >>> spread[1].item(), constant[1].item()
    (100.0, 1)
    """
    if not data.is_floating_point() or data.dim() < 2:
        return []
    stds, is_constant = feature_deviations(data)
    largest = stds.masked_fill(is_constant, -math.inf).amax()
    smallest = stds.masked_fill(is_constant, math.inf).amin()
    spread = (largest / smallest).masked_fill(largest == -math.inf, 1.0)
    return [(FEATURE_SPREAD, spread), (CONSTANT_FEATURES, is_constant.sum())]


def feature_deviations(data: Tensor) -> tuple[Tensor, Tensor]:
    """The standard deviation of each feature of floating data, and a flag for each: whether it is constant."""
    x = data.float() if data.dtype.itemsize < torch.float32.itemsize else data
    x = x.movedim(1, -1) if x.dim() >= IMAGE else x
    others = tuple(range(x.dim() - 1))
    is_constant = x.amin(others) == x.amax(others)
    centred = x - x.mean(others)
    rest = centred.mean(others)  # what rounding took from the mean; much, if that is far from 0
    return (centred.square_().mean(others) - rest.square()).clamp(min=0).sqrt(), is_constant


def extremes(statistic: str, x: Tensor) -> Described:
    """The smallest and the largest number as two samples: the range of a tick is from the smallest to the largest."""
    return [(statistic, x.amin()), (statistic, x.amax())]


class DataStatistics(SeparateStatistics, AbstractTensorPreprocessor):
    """Numbers of each tensor, by name: those of :func:`described` and of :func:`described_features`."""

    statistics = (MEAN, STD, RANGE, FEATURE_SPREAD, CONSTANT_FEATURES, NONFINITE)

    def __init__(self) -> None:
        super().__init__(inplace=True)

    @torch.no_grad()
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one tensor."""
        data = thinned({name: tensor.detach()})[name]
        for statistic, sample in (*described(data), *described_features(data)):
            self._kept.series.add((name, statistic), sample)
