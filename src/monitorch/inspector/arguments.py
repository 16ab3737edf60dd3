"""Checks the arguments of the inspector; the messages say what is right."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.gradients import AT_STEP, BEFORE_CLIP
from ..engine.optimizers import BY_HAND, StandIn, Unwrapped, takes_steps, unwrap_optimizer
from ..engine.parameters import ParameterBank
from ..errors import OptionError, short_repr

GRADIENTS = (AT_STEP, BEFORE_CLIP)

YES_OR_NO = bool, "True or False"

KINDS: dict[str, tuple[Any, str]] = {
    "capture": YES_OR_NO,
    "depth": (int, "a whole number"),
    "diagnose": YES_OR_NO,
    "epoch": (int, "a whole number"),
    "lenses": (Iterable, "a list of lenses, such as [ParameterNorm()]"),
    "master_rank": (int, "a whole number"),
    "module_name_prefix": (str, "a string"),
    "non_train_loss_str": (str, "the name of a loss"),
    "per_rank": YES_OR_NO,
    "resume": YES_OR_NO,
    "run": (str, "the name of a run"),
    "train_loss_str": (str, "the name of a loss"),
}
"""The type of each option, and how a message describes it."""


class Trainer(NamedTuple):
    """The optimizers of a model and how their steps are observed."""

    optimizers: tuple[Optimizer, ...]
    grad_scaler: Any
    gradient: str
    """When gradients of the optimizers' parameters are read."""


def check(**given: Any) -> None:
    """Refuse options whose value has the wrong type."""
    for option, value in given.items():
        kind, wanted = KINDS[option]
        if not isinstance(value, kind) or isinstance(value, (str, type)) != (kind is str):
            raise OptionError(f"{option} takes {wanted}, not {short_repr(value)}")


def check_loss_fn(loss_fn: Any) -> None:
    """Refuse what cannot be called; None is fine."""
    if loss_fn is not None and not callable(loss_fn):
        raise OptionError(f"loss_fn takes a module or function such as nn.MSELoss(), not {short_repr(loss_fn)}")


def bank(tensors: Any) -> ParameterBank:
    """Tensors that are trained without a module, by name."""
    if not isinstance(tensors, Mapping) or not tensors:
        raise OptionError(f"parameters takes tensors by name, such as {{'scale': scale}}, not {short_repr(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not all(name.split(".")):
            raise OptionError(f"parameters: a name is a string such as 'scale' or 'codes.left', not {short_repr(name)}")
        if not isinstance(tensor, Tensor) or not tensor.is_leaf:
            what = "is computed from others" if isinstance(tensor, Tensor) else f"is {type(tensor).__name__}"
            raise OptionError(f"parameters takes tensors that are trained themselves, but {name!r} {what}")
    return ParameterBank(tensors)


def positive(option: str, value: float | None) -> float | None:
    """A number above 0, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise OptionError(f"{option} takes a number above 0, or None, not {short_repr(value)}")
    return float(value)


def _optimizers(given: Any) -> list[Unwrapped]:
    """The optimizers that take the steps; if the steps of one cannot be noticed, one object that stands in for all."""
    if isinstance(given, str) and given == BY_HAND:
        return [Unwrapped(StandIn())]
    given = given.values() if isinstance(given, Mapping) else given
    several = isinstance(given, Iterable) and not isinstance(given, (str, Optimizer, nn.Module))
    listed = () if given is None else tuple(given) if several else (given,)
    found = list(chain.from_iterable(map(_parts, listed)))
    if all(takes_steps(one.optimizer) for one in found):
        return found
    return [Unwrapped(StandIn(*(one.optimizer for one in found)))]


def _parts(given: Any) -> list[Unwrapped]:
    """The optimizers of a container, or the single one, which may be any object with a ``step()``."""
    found = unwrap_optimizer(given)
    several = getattr(found.optimizer, "optimizers", None)
    if isinstance(several, (list, tuple)) and several:
        inside = [part for one in several for part in _parts(one)]
        return [part if part.scaler else part._replace(scaler=found.scaler) for part in inside]
    is_one = callable(getattr(found.optimizer, "step", None)) and not isinstance(found.optimizer, (type, nn.Module))
    if not is_one:
        choices = f"optimizer takes a torch.optim.Optimizer or a list of them, not {short_repr(given)}"
        raise OptionError(
            f"{choices}. If there is no optimizer object, pass {BY_HAND!r} and call watched.step() after each step"
        )
    return [found]


def trainer(optimizer: Any, grad_scaler: Any, gradient: Any) -> Trainer:
    """The optimizers, the scaler and when gradients are read; a wrapper around an optimizer may bring the scaler."""
    unwrapped = _optimizers(optimizer)
    found = tuple(one.optimizer for one in unwrapped)
    if gradient not in GRADIENTS:
        raise OptionError.unknown("gradient", gradient, GRADIENTS)
    if gradient != AT_STEP and not found:
        raise OptionError(f"gradient={gradient!r} needs an optimizer: also pass optimizer=")
    if grad_scaler is not None and not isinstance(grad_scaler, torch.amp.GradScaler):
        raise OptionError(f"grad_scaler takes a torch.amp.GradScaler, not {short_repr(grad_scaler)}")
    if grad_scaler is not None and not found:
        raise OptionError("grad_scaler needs the optimizer that it steps: also pass optimizer=")
    is_by_hand = any(isinstance(one, StandIn) for one in found)
    if grad_scaler is not None and is_by_hand:
        raise OptionError(
            "grad_scaler works only with torch.optim optimizers: skipped steps of others cannot be detected"
        )
    if grad_scaler is None and not is_by_hand:
        grad_scaler = next((one.scaler for one in unwrapped if isinstance(one.scaler, torch.amp.GradScaler)), None)
    return Trainer(found, grad_scaler, gradient)
