"""A module that also saves plain Python values; attributes by dotted path."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn


def nested(thing: Any, path: str) -> Any:
    """The attribute at a dotted path; an empty path is the thing itself.

    >>> nested(nn.Sequential(nn.Linear(2, 3)), "0.weight.shape")
    torch.Size([3, 2])
    """
    found = thing
    for part in path.split(".") if path else ():
        try:
            found = getattr(found, part)
        except AttributeError as error:
            text = f"{type(thing).__name__} has no {path!r}: {type(found).__name__} has no attribute {part!r}"
            raise AttributeError(text) from error
    return found


def holder_of(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The innermost module on a dotted path, and the rest of the path from there.

    >>> holder_of(nn.Sequential(nn.Linear(2, 3)), "0.weight.grad")
    (Linear(in_features=2, out_features=3, bias=True), 'weight.grad')
    """
    nested(model, path)
    first, _, rest = path.partition(".")
    inner = getattr(model, first)
    return holder_of(inner, rest) if rest and isinstance(inner, nn.Module) else (model, path)


class Module(nn.Module):
    """A module with *extras*: plain values, not tensors or modules, that its state dictionary holds.

    >>> module = Module()
    >>> module.register_extra("count", 3)
    >>> module.count += 1
    >>> module.state_dict()["_extra_state"]
    {'count': 4}
    """

    _extras: OrderedDict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._extras = OrderedDict()
        self._elastic: set[str] = set()
        """Names of buffers that take the shape and dtype of what is loaded into them."""

    def register_extra(self, name: str, value: Any) -> None:
        """Add an extra; from then on it is read, set and deleted like any attribute."""
        if not isinstance(name, str):
            raise TypeError(f"the name of an extra is a string, not {type(name).__name__}")
        if not name or "." in name or hasattr(self, name):
            raise KeyError(f"{name!r} cannot be the name of an extra: it is empty, contains a dot or exists already")
        if isinstance(value, (Tensor, nn.Module)):
            raise TypeError(f"{name!r} is a {type(value).__name__}, not a plain value: register a buffer or module")
        self._extras[name] = value

    def get_extra(self, target: str) -> Any:
        """The extra at a dotted path through submodules."""
        holder_path, _, name = target.rpartition(".")
        holder = self.get_submodule(holder_path)
        if not isinstance(holder, Module) or name not in holder._extras:
            raise AttributeError(f"{type(self).__name__} has no extra {target!r}")
        return holder._extras[name]

    def get_extra_state(self) -> dict[str, Any]:
        """A copy of the extras: a state dictionary does not change later."""
        return copy.deepcopy(dict(self._extras))

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take extras from a state dictionary."""
        self._extras.update(copy.deepcopy(state))

    def __getattr__(self, name: str) -> Any:
        extras = self.__dict__.get("_extras", {})
        return extras[name] if name in extras else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        descriptor = getattr(type(self), name, None)
        if hasattr(type(descriptor), "__set__"):  # torch would let a module of that name shadow a property
            object.__setattr__(self, name, value)
        elif name in self.__dict__.get("_extras", {}):
            self._extras[name] = value
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._extras:
            del self._extras[name]
        else:
            super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._extras]  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._elastic & self._buffers.keys():
            saved, own = state_dict.get(prefix + name), self._buffers[name]
            if isinstance(saved, Tensor) and isinstance(own, Tensor):
                self._buffers[name] = torch.empty_like(saved, device=own.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
