"""What is trained in every layout: a model, and for each step and data-parallel rank a batch."""

from typing import NamedTuple

import torch
from torch import nn

STEPS, TICKS, RATE = 4, 2, 0.1
DETOUR_STEP = 1
"""In this step only the first data-parallel rank uses the layer ``extra``, where a layout allows that."""


class Variant(NamedTuple):
    """How to train: numbers, parts that a step is cut into, and whether the inspector knows the optimizer."""

    dtype: torch.dtype = torch.float64
    micro_batches: int = 1
    told: bool = True


VARIANTS = {
    "float64": Variant(),
    "float32": Variant(torch.float32),
    "micro-batches": Variant(micro_batches=2),
    "at backward": Variant(told=False),
}


class Net(nn.Module):
    """Hidden layers are named after how tensor parallelism cuts them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.columns = nn.Linear(6, 10)
        self.act = nn.ReLU()
        self.rows = nn.Linear(10, 6)
        self.extra = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x, detour=False):
        x = self.rows(self.act(self.columns(self.norm(x))))
        return self.last(x + self.extra(x) if detour else x)


def new_model(dtype):
    torch.manual_seed(0)
    model = Net().to(dtype)
    with torch.no_grad():
        model.columns.bias[:2] = -9.0  # two neurons that die
    return model


def batch(number, rank, dtype):
    """Input and target; the second rank has a short batch once, and numbers of another size."""
    size = 3 if (number, rank) == (2, 1) else 4
    generator = torch.Generator().manual_seed(100 * number + rank)
    x, y = (torch.randn(size, 4, width, generator=generator, dtype=torch.float64) for width in (6, 3))
    return (x * (1 + rank)).to(dtype), y.to(dtype)


class Loss(nn.Module):
    def forward(self, prediction, target):
        return (prediction - target).square().mean()
