"""Data made with torch, the same for the same seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .program import Data


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + seed)


def clusters(seed: int, count: int = 2048, features: int = 20, classes: int = 10, noise: float = 1.0) -> Data:
    """Two clouds of points for each class."""
    g = _random(seed)
    centres = 1.5 * torch.randn(2 * classes, features, generator=g)
    kinds = torch.randint(0, 2 * classes, (count,), generator=g)
    return centres[kinds] + noise * torch.randn(count, features, generator=g), kinds % classes


def halves(seed: int, count: int = 2048, features: int = 20, noise: float = 1.0) -> Data:
    """Clouds with the targets 0 and 1, as one number."""
    x, y = clusters(seed, count, features, 2, noise)
    return x, y[:, None].float()


def curve(seed: int, count: int = 2048, features: int = 8, noise: float = 0.1) -> Data:
    """A smooth function of some features; its values have mean 0 and standard deviation 1."""
    g = _random(seed)
    x = torch.randn(count, features, generator=g)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + x[:, 3:4]
    y = y + noise * torch.randn(count, 1, generator=g)
    return x, (y - y.mean()) / y.std()


def reversed_tokens(seed: int, count: int = 2048, length: int = 8, kinds: int = 12) -> Data:
    """Sequences, and the same from back to front."""
    x = torch.randint(0, kinds, (count, length), generator=_random(seed))
    return x, x.flip(1)


def chains(seed: int, count: int = 2048, length: int = 12, kinds: int = 12) -> Data:
    """Text in which each token nearly settles the next, and what comes next at each place."""
    g = _random(seed)
    follows = torch.randperm(kinds, generator=g)
    text = torch.randint(0, kinds, (count, length + 1), generator=g)
    surprise = torch.rand(count, length, generator=g) < 0.05
    for place in range(length):
        text[:, place + 1] = torch.where(surprise[:, place], text[:, place + 1], follows[text[:, place]])
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def themes(
    seed: int, count: int = 2048, share: float = 0.6, length: int = 10, kinds: int = 20, classes: int = 5
) -> Data:
    """Sequences in which tokens of one theme are more frequent, and which theme that is."""
    g, classes = _random(seed), 5
    y = torch.randint(0, classes, (count,), generator=g)
    any_token = torch.randint(0, kinds, (count, length), generator=g)
    own = y[:, None] + classes * torch.randint(0, kinds // classes, (count, length), generator=g)
    return torch.where(torch.rand(count, length, generator=g) < share, own, any_token), y


def circles(seed: int, count: int = 1000) -> Data:
    """A noisy circle in a noisy larger one."""
    g = _random(seed)
    y = (torch.arange(count) % 2).float()[:, None]
    angle = 2 * math.pi * torch.rand(count, generator=g)
    points = torch.stack([angle.cos(), angle.sin()], 1) * torch.where(y > 0, 0.8, 1.0)
    return points + 0.1 * torch.randn(count, 2, generator=g), y


def images(seed: int, count: int = 1024, classes: int = 10, side: int = 12) -> Data:
    """Pictures between 0 and 1: a pattern for each class, and noise."""
    g = _random(seed)
    patterns = torch.rand(classes, 1, side, side, generator=g)
    y = torch.randint(0, classes, (count,), generator=g)
    return (0.6 * patterns[y] + 0.4 * torch.rand(count, 1, side, side, generator=g)), y


def split(data: Data, share: float = 0.25) -> tuple[Data, Data]:
    """What to train with, and the last part to validate with."""
    x, y = data
    border = len(x) - max(int(len(x) * share), 1)
    return (x[:border], y[:border]), (x[border:], y[border:])


def misfit(y: Tensor, seed: int) -> Tensor:
    """The targets of other samples."""
    return y[torch.randperm(len(y), generator=_random(seed))]
