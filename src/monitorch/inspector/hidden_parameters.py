"""Tensors of a model that torch does not know: no optimizer gets them from ``model.parameters()``."""

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

MOST_ITEMS = 10_000
"""Longer lists hold data, not layers."""

NESTED = 2
"""How many containers may be inside each other."""

_OF_TORCH = frozenset(vars(nn.Module()))


def hidden_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Tensors that require a gradient, in plain attributes, lists, tuples and dictionaries of modules.

    >>> model = nn.Linear(2, 2)
    >>> model.blocks = [nn.Linear(2, 2, bias=False)]
    >>> list(hidden_parameters(model))
    ['blocks.0.weight']
    """
    known, found = {id(own) for own in model.parameters()}, dict[str, Tensor]()
    for name, module in model.named_modules():
        for attribute, value in list(vars(module).items()):
            if attribute not in _OF_TORCH:
                for path, own in _inside(value, f"{name}.{attribute}".lstrip("."), NESTED):
                    if id(own) not in known:
                        known.add(id(own))
                        found[path] = own
    return found


def _inside(value: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_leaf and value.requires_grad:
            yield path, value
    elif isinstance(value, nn.Module):
        if depth < NESTED:  # as an attribute, only object.__setattr__ hides one: that is meant
            yield from ((f"{path}.{name}", own) for name, own in value.named_parameters() if own.requires_grad)
    elif isinstance(value, list | tuple | dict) and depth and len(value) <= MOST_ITEMS:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(items):
            yield from _inside(item, f"{path}.{key}", depth - 1)


class _Seen(NamedTuple):
    tensor: weakref.ref[Tensor]
    version: int
    """How often it was changed in place."""
    gradient: int
    """The same for its gradient; -1 if it had none."""


class HiddenParameters:
    """Those of a model whose gradients only add up, because nothing trains or clears them.

    Args:
        model: the model, as it is when training has begun.
    """

    def __init__(self, model: nn.Module) -> None:
        self._seen = {name: _seen(own) for name, own in hidden_parameters(model).items()}

    def left_behind(self) -> list[str]:
        """Their names; call it some steps later."""
        return [name for name, seen in self._seen.items() if _is_left_behind(seen, seen.tensor())]


def _seen(own: Tensor) -> _Seen:
    return _Seen(weakref.ref(own), own._version, -1 if own.grad is None else own.grad._version)


def _is_left_behind(then: _Seen, own: Tensor | None) -> bool:
    if own is None:
        return False
    now = _seen(own)
    # a fused step does not count as a change of the tensor, but whoever makes it also drops the gradient
    return now.version == then.version and now.gradient > then.gradient
