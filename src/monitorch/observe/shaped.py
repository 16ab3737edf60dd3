"""A tensor that lives on a module under a name, and of which some sizes are fixed."""

import weakref
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import LifecycleError, OptionError
from .module import Module

Fill = float | complex


def _forget(owner: "weakref.ref[Module]", names: tuple[str, ...]) -> None:
    module = owner()
    for name in names if module is not None else ():
        if hasattr(module, name):
            delattr(module, name)


def is_blank(value: Tensor) -> bool:
    """Whether a tensor stands for none."""
    return is_lazy(value) or value.shape == (0,)


def resized(data: Tensor, dim: int, size: int, fill: Fill) -> Tensor:
    """``data`` with another size along ``dim``: the end is kept, what is missing comes before it."""
    missing = size - data.shape[dim]
    if missing <= 0:
        return data.narrow(dim, -missing, size)
    shape = [*data.shape]
    shape[dim] = missing
    return torch.cat((data.new_full(shape, fill), data), dim)


class ShapedTensor:
    """A named tensor on a module, with sizes that some of its dimensions must have.

    This object keeps no data: they are attributes of the module, which saves, moves and copies them, and they go with
    this object.

    Args:
        owner: the module that holds the tensor.
        name: what the tensor is called there.
        value: the tensor, or None or an empty one, to which no constraint applies.
        constraints: sizes by dimension.
        persist_data: save the tensor in the owner's state dictionary.
        persist_constraints: save the constraints there, too.
        strict: dimensions counted from the front and from the back are different ones.
        live: refuse a tensor that does not meet the constraints when it is assigned.
        fill: what is put where the tensor grows.
    """

    _roles: tuple[str, ...] = ("data", "constraints")

    def __init__(
        self,
        owner: Module,
        name: str,
        value: Tensor | None,
        constraints: dict[int, int] | None = None,
        persist_data: bool = True,
        persist_constraints: bool = False,
        strict: bool = True,
        live: bool = False,
        *,
        fill: Fill = 0,
    ) -> None:
        if not isinstance(owner, Module):
            raise TypeError(f"{name!r} must belong to a monitorch.observe.Module, not to {type(owner).__name__}")
        self.name, self.strict, self.live, self.fill = name, strict, live, fill
        self._names = {role: f"_{name}_{role}" for role in self._roles}
        self._bind(owner)
        self._keep("constraints", dict(constraints or {}), persist_constraints)
        data = self._names["data"]
        if isinstance(value, nn.Parameter):
            owner.register_parameter(data, value)
        else:
            owner.register_buffer(data, torch.empty(0) if value is None else value, persistent=persist_data)
            owner._elastic.add(data)
        self._check(self.value)

    @classmethod
    def create(cls, owner: Module, name: str, *args: Any, **kwargs: Any) -> Any:
        """Make one and set it as attribute ``name`` of its owner."""
        made = cls(owner, name, *args, **kwargs)
        setattr(owner, name, made)
        return made

    @property
    def owner(self) -> Module:
        """The module that holds the tensor."""
        owner = self._owner()
        if owner is None:
            raise LifecycleError(f"the module that owned {self.name!r} is gone")
        return owner

    @property
    def attributes(self) -> dict[str, str]:
        """Names of the owner's attributes, by what they hold."""
        return dict(self._names)

    @property
    def value(self) -> Tensor:
        """The tensor; None empties it."""
        return cast(Tensor, self._get("data"))

    @value.setter
    def value(self, value: Tensor | None) -> None:
        if value is None:
            value = torch.empty(0, device=self.value.device, dtype=self.value.dtype)
        if self.live:
            self._check(value)
        self._store(value)

    @property
    def ignored(self) -> bool:
        """Whether there is nothing in it yet."""
        return is_blank(self.value)

    @property
    def valid(self) -> bool:
        """Whether the constraints are met."""
        return self._meets(self.value, self._get("constraints"))

    @property
    def constraints(self) -> dict[int, int]:
        """Sizes by dimension."""
        return dict(self._get("constraints"))

    @property
    def dimensionality(self) -> int:
        """The least number of dimensions that can meet the constraints."""
        return self._least_dimensions(self.constraints)

    def reconstrain(self, dim: int, size: int | None) -> None:
        """Add, change, or with None remove a constraint; where one is changed, the tensor keeps its end in ``dim``."""
        constraints: dict[int, int] = dict(self._get("constraints"))
        known, data = constraints.pop(dim, None), self.value
        if size is not None:
            constraints[dim] = size
            if known is not None and not self.ignored:
                data = resized(data, dim, size, self.fill)
        self._check(data, constraints)
        self._set("constraints", constraints)
        self._store(data)

    def _least_dimensions(self, constraints: dict[int, int]) -> int:
        front = max((dim + 1 for dim in constraints if dim >= 0), default=0)
        back = max((-dim for dim in constraints if dim < 0), default=0)
        return front + back if self.strict else max(front, back)

    def _meets(self, value: Tensor, constraints: dict[int, int]) -> bool:
        if is_blank(value):
            return True
        enough = value.dim() >= self._least_dimensions(constraints)
        return enough and all(value.shape[dim] == size for dim, size in constraints.items())

    def _check(self, value: Tensor, constraints: dict[int, int] | None = None) -> None:
        wanted = self._get("constraints") if constraints is None else constraints
        if not self._meets(value, wanted):
            shape = tuple(value.shape)
            raise OptionError(f"{self.name!r} cannot have the shape {shape}: sizes by dimension are {wanted}")

    def _keep(self, role: str, value: Any, persist: bool) -> None:
        """Put a value other than the tensor on the owner; as an extra it is saved."""
        if persist:
            self.owner.register_extra(self._names[role], value)
        else:
            self._set(role, value)

    def _get(self, role: str) -> Any:
        return getattr(self.owner, self._names[role])

    def _set(self, role: str, value: Any) -> None:
        setattr(self.owner, self._names[role], value)

    def _store(self, data: Tensor) -> None:
        if isinstance(self.value, nn.Parameter) and not isinstance(data, nn.Parameter):
            self.value.data = data.detach()
        else:
            self._set("data", data)

    def _bind(self, owner: Module) -> None:
        self._owner = weakref.ref(owner)
        weakref.finalize(self, _forget, self._owner, tuple(self._names.values())).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        # copied and pickled together with the owner, then bound to the owner's copy
        return {**self.__dict__, "_owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind(state["_owner"])
