"""Do to a program what a remedy says, so that it can be run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .case import Case
from .program import Program

ACTIVATIONS = tuple(
    kind
    for kind in vars(nn.modules.activation).values()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not nn.Module
)
NOT_INSIDE = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.MultiheadAttention)
"""Activations that nobody puts between layers."""


def apply(program: Program, action: str, arguments: Mapping[str, Any]) -> Program:
    """Change the program as the action says; what cannot be done raises an error."""
    ACTIONS[action](program, **arguments)
    return program


def treated(case: Case, seed: int, action: str, arguments: Mapping[str, Any]) -> Program:
    """The faulty program with the remedy: from the start, or from just after the fault, as after a checkpoint."""
    program = case.build(seed)
    if not case.onset:
        return apply(program, action, arguments)
    program.changes.append((case.onset, lambda now: apply(now, action, arguments)))
    return program


def scale_lr(program: Program, factor: float) -> None:
    """Multiply all learning rates."""
    program.scale_rates(factor)


def set_group_lr(program: Program, parameters: Iterable[str], lr: float) -> None:
    """Set the learning rate of the groups that hold these parameters."""
    meant = _parameters(program, parameters)
    for group in program.groups:
        if any(_is_in(one, group["params"]) for one in meant):
            group["lr"] = lr


def add_to_optimizer(program: Program, parameters: Iterable[str]) -> None:
    """Train these parameters, too."""
    known = [one for group in program.groups for one in group["params"]]
    new = [one for one in _parameters(program, parameters) if not _is_in(one, known)]
    if new:
        program.optimizers[0].add_param_group({"params": new})


def zero_grad(program: Program) -> None:
    """Forget gradients after each step, and those of now."""
    program.zeroes_gradients = True
    program.model.zero_grad()


def clip(program: Program, max_norm: float) -> None:
    """Clip the norm of all gradients."""
    program.max_norm = max_norm


def reinit(program: Program, layers: Iterable[str] | None = None, gain: float | None = None) -> None:
    """Give layers new random weights, of which ``gain`` says the size; as torch does without it."""
    meant = _modules(program, layers, lambda module: hasattr(module, "reset_parameters"))
    for module in meant:
        module.reset_parameters()
        weight = getattr(module, "weight", None)
        if gain is not None and weight is not None and weight.dim() > 1:
            fan_in = weight[0].numel()
            nn.init.normal_(weight, std=gain / fan_in**0.5)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        for optimizer in program.optimizers:
            for one in module.parameters():
                optimizer.state.pop(one, None)


def replace_activation(program: Program, by: str, layers: Iterable[str] | None = None) -> None:
    """Put another activation in the place of those in layers, or right after them."""
    names = dict(program.model.named_modules())
    if layers is None:
        found = [name for name, module in names.items() if _is_inner_activation(module)]
    else:
        found = [_activation_at(names, layer) for layer in layers]
    for name in found:
        program.model.set_submodule(name, getattr(nn, by)())


def drop_output_activation(program: Program, layer: str | None = None) -> None:
    """Take the last activation away."""
    names = dict(program.model.named_modules())
    if layer is None:
        layer = [name for name, module in names.items() if isinstance(module, ACTIVATIONS)][-1]
    program.model.set_submodule(_activation_at(names, layer), nn.Identity())


def standardise_input(program: Program) -> None:
    """Give every feature mean 0 and standard deviation 1, as known from the training data."""
    x = program.train[0]
    dims = tuple(range(x.dim() - 1))
    mean, std = x.mean(dims), x.std(dims).clamp_min(1e-12)
    program.train, program.valid = (((x - mean) / std, y) for x, y in (program.train, program.valid))


def shuffle(program: Program) -> None:
    """A new order in each epoch."""
    program.shuffled = True


def scale_weight_decay(program: Program, factor: float) -> None:
    """Multiply the weight decay of all groups."""
    for group in program.groups:
        group["weight_decay"] *= factor


def grad_scaler(program: Program) -> None:
    """Scale losses before backward passes in low precision."""
    program.scaler = torch.amp.GradScaler("cpu")


ACTIONS: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        scale_lr,
        set_group_lr,
        add_to_optimizer,
        zero_grad,
        clip,
        reinit,
        replace_activation,
        drop_output_activation,
        standardise_input,
        shuffle,
        scale_weight_decay,
        grad_scaler,
    )
}


def _is_in(one: Tensor, known: Iterable[Tensor]) -> bool:
    return any(one is other for other in known)


def _parameters(program: Program, names: Iterable[str]) -> list[nn.Parameter]:
    """Parameters by name, or all of a layer."""
    found: list[nn.Parameter] = []
    for name in names:
        own = [one for known, one in program.model.named_parameters() if known == name or known.startswith(f"{name}.")]
        if not own:
            raise ValueError(f"no parameter is called {name!r}")
        found += [one for one in own if not _is_in(one, found)]
    return found


def _modules(program: Program, names: Iterable[str] | None, fits: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """Modules of these layers that fit: the layers themselves, or what is inside them; without names, all."""
    roots = [program.model] if names is None else [program.model.get_submodule(name) for name in names]
    found = [module for root in roots for module in root.modules() if fits(module)]
    if not found:
        raise ValueError(f"nothing in {names} can be changed")
    return found


def _is_inner_activation(module: nn.Module) -> bool:
    return isinstance(module, ACTIVATIONS) and not isinstance(module, NOT_INSIDE)


def _activation_at(names: Mapping[str, nn.Module], layer: str) -> str:
    """The layer, if it has no parameters; else the activation that stands next to it."""
    if not any(True for _ in names[layer].parameters()):
        return layer
    parent, _, own = layer.rpartition(".")
    beside = list(dict(names[parent].named_children()))
    for name in beside[beside.index(own) + 1 :]:
        full = f"{parent}.{name}".lstrip(".")
        if isinstance(names[full], ACTIVATIONS):
            return full
    raise ValueError(f"no activation follows {layer!r}")
