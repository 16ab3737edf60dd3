"""Arguments of the inspector: checked once, with what is right in the message."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from ..errors import OptionError
from ..gatherer.watched_gradient import AT_STEP, BEFORE_CLIP

GRADIENTS = (AT_STEP, BEFORE_CLIP)

KINDS: dict[str, tuple[Any, str]] = {
    "depth": (int, "a whole number"),
    "epoch": (int, "a whole number"),
    "lenses": (Iterable, "a list of lenses, such as [ParameterNorm()]"),
    "master_rank": (int, "a whole number"),
    "module_name_prefix": (str, "a string"),
    "per_rank": (bool, "True or False"),
}
"""Of which kind the value of an option is, and how to say so."""


class Trainer(NamedTuple):
    """What trains a model."""

    optimizers: tuple[Optimizer, ...]
    grad_scaler: Any
    gradient: str
    """When gradients of the optimizers' parameters are taken."""


def check(**given: Any) -> None:
    """Refuse options whose value is not of their kind."""
    for option, value in given.items():
        kind, wanted = KINDS[option]
        if not isinstance(value, kind) or isinstance(value, (str, type)) != (kind is str):
            raise OptionError(f"{option} takes {wanted}, not {value!r}")


def optimizers(given: Any) -> tuple[Optimizer, ...]:
    """One optimizer or several, as a tuple."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    found = () if given is None else tuple(given) if several else (given,)
    for optimizer in found:
        if not isinstance(optimizer, Optimizer):
            raise OptionError(f"optimizer takes a torch.optim.Optimizer or a list of them, not {optimizer!r}")
    return found


def trainer(optimizer: Any, grad_scaler: Any, gradient: Any) -> Trainer:
    """Optimizers and what belongs to their steps."""
    found = optimizers(optimizer)
    if gradient not in GRADIENTS:
        raise OptionError.unknown("gradient", gradient, GRADIENTS)
    if gradient != AT_STEP and not found:
        raise OptionError(f"gradient={gradient!r} is about steps of an optimizer: give it with optimizer=")
    if grad_scaler is not None and not isinstance(grad_scaler, torch.amp.GradScaler):
        raise OptionError(f"grad_scaler takes a torch.amp.GradScaler, not {grad_scaler!r}")
    if grad_scaler is not None and not found:
        raise OptionError(
            "grad_scaler says which steps of an optimizer are skipped: give the optimizer, too, optimizer="
        )
    return Trainer(found, grad_scaler, gradient)
