"""What a row of the table says: one way to train, or one that torch does not support."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from tests.training_reality import loops, models

EVERYTHING = (
    *("output norm", "activation rates", "output gradients"),
    *("parameter gradients", "parameter norms", "parameter updates"),
)

OF_SOME = ("routing", "BatchNorm statistics")
"""What only models with routers or BatchNorm layers have."""


def one(kind=SGD, **options):
    """Makes one optimizer of all parameters."""
    return lambda model: [kind(model.parameters(), **{"lr": 0.1, **options})]


def one_for_each_parameter(model):
    return [SGD([parameter], lr=0.1) for parameter in model.parameters()]


def of_parts(*parts):
    """Makes one optimizer for each of these parts of a model."""
    return lambda model: [SGD(model.get_submodule(part).parameters(), lr=0.1) for part in parts]


def compiled_whole(**options):
    return lambda model: torch.compile(model, **options)


def compiled_by_blocks(model):
    for block in model.children():
        block.compile(backend="aot_eager")
    return model


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
        view: when gradients of parameters are taken: ``"at_step"``, ``"before_clip"`` or ``"backward"``, the last of
            them where the inspector is not told of the optimizer.
        since: the step in which the last of all series begins.
        records: the families of numbers that there are.
        trained_factors: parameters that stand for others, by path.
        exact: weights are bit-identical with and without the inspector.
    """

    name: str
    note: str = ""
    model: Callable[[], nn.Module] = models.mlp
    loop: Callable[[Any], None] = loops.plain
    optimizers: Callable[[nn.Module], list[Any]] = field(default_factory=one)
    view: str = "at_step"
    since: int = 1
    records: tuple[str, ...] = EVERYTHING
    scale: float | None = None
    autocast: torch.dtype | None = None
    precision: torch.dtype = torch.float32
    compiled: Callable[[nn.Module], nn.Module] | None = None
    attach_after: bool = False
    parameters: tuple[str, ...] | str = ("weight", "bias")
    trained_factors: dict[str, str] = field(default_factory=dict)
    channel_dim: int = -1
    tolerance: float = 1e-4
    exact: bool = True

    def new_scaler(self, device):
        """The loss scale grows after every second step."""
        return None if self.scale is None else torch.amp.GradScaler(device, init_scale=self.scale, growth_interval=2)


@dataclass(frozen=True)
class Refused:
    """A way to train that torch itself has no support for; ``attempt`` fails with what it ``says``."""

    name: str
    why: str
    attempt: Callable[[], Any]
    says: str
