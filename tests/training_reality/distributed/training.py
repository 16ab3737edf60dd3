"""What is trained in every layout: a model, and for each step and data-parallel rank a batch."""

from typing import NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS, TICKS, RATE = 4, 2, 0.1
DETOUR_STEP = 1
"""In this step only the first data-parallel rank uses the layer ``extra``, where a layout allows that."""


class Variant(NamedTuple):
    """How to train.

    Attributes:
        micro_batches: how many parts a step is cut into.
        told: whether the inspector knows the optimizer.
        clip: what the length of all gradients together is limited to.
        gradient: when the inspector takes gradients.
    """

    dtype: torch.dtype = torch.float64
    micro_batches: int = 1
    told: bool = True
    clip: float | None = None
    gradient: str = "at_step"
    scaled: bool = False
    checkpointed: bool = False
    compiled: bool = False


VARIANTS = {
    "float64": Variant(),
    "float32": Variant(torch.float32),
    "micro-batches": Variant(micro_batches=2),
    "at backward": Variant(told=False),
    "clipping": Variant(clip=0.1),
    "before clipping": Variant(clip=0.1, gradient="before_clip"),
    "GradScaler": Variant(torch.float32, scaled=True, clip=0.1),
    "checkpointing": Variant(checkpointed=True),
    "compiled": Variant(compiled=True),
    "compiled, checkpointing": Variant(checkpointed=True, compiled=True),
}


class Net(nn.Module):
    """Hidden layers are named after how tensor parallelism cuts them."""

    def __init__(self):
        super().__init__()
        self.checkpointed = False
        self.norm = nn.LayerNorm(6)
        self.columns = nn.Linear(6, 10)
        self.act = nn.ReLU()
        self.rows = nn.Linear(10, 6)
        self.extra = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x, detour=False):
        x = checkpoint(self.middle, x, use_reentrant=False) if self.checkpointed else self.middle(x)
        return self.last(x + self.extra(x) if detour else x)

    def middle(self, x):
        return self.rows(self.act(self.columns(self.norm(x))))


def new_model(dtype, *, checkpointed=False):
    torch.manual_seed(0)
    model = Net().to(dtype)
    model.checkpointed = checkpointed
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
