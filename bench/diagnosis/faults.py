"""Ways to spoil a program, whatever its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from . import data
from .program import Program

Fault = Callable[[Program], Program | None]
"""Changes the program that it gets, or returns another one."""


def bias(layer: nn.Linear, value: float) -> None:
    """Set all biases."""
    nn.init.constant_(layer.bias, value)


def without(p: Program, layer: nn.Module) -> None:
    """Let the optimizers forget a layer."""
    for group in p.groups:
        group["params"] = [q for q in group["params"] if all(q is not own for own in layer.parameters())]


def rebuilt(p: Program, layer: nn.Linear) -> None:
    """New parameters that no optimizer knows."""
    layer.weight, layer.bias = (nn.Parameter(q.detach().clone()) for q in (layer.weight, layer.bias))


def set_(**values: Any) -> Fault:
    """A fault that is a wrong setting of the program."""

    def fault(p: Program) -> None:
        for name, value in values.items():
            setattr(p, name, value)

    return fault


def rates(factor: float) -> Fault:
    """A fault that is a wrong learning rate."""
    return lambda p: p.scale_rates(factor)


def few(p: Program, count: int = 96) -> None:
    """Few samples."""
    p.train = (p.train[0][:count], p.train[1][:count])


def mixed_up(p: Program) -> None:
    """Targets of other samples."""
    p.train, p.valid = ((x, data.misfit(y, p.seed + k)) for k, (x, y) in enumerate((p.train, p.valid)))


def sort(p: Program) -> None:
    """Samples in the order of their classes, never shuffled."""
    order = p.train[1].argsort()
    p.train, p.shuffled = (p.train[0][order], p.train[1][order]), False


def decay(p: Program, value: float) -> None:
    """Set the weight decay."""
    for group in p.groups:
        group["weight_decay"] = value
