"""A named tensor on a module, with fixed sizes in some dimensions."""

import weakref
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import LifecycleError, OptionError
from ..numerical.precision import HOST
from .module import Module

Fill = float | complex


def _forget(owner: "weakref.ref[Module]", names: tuple[str, ...]) -> None:
    module = owner()
    for name in names if module is not None else ():
        if hasattr(module, name):
            delattr(module, name)


def blank(like: Tensor | None = None) -> Tensor:
    """An empty tensor, which stands for "not set yet"."""
    device, dtype = (HOST, torch.get_default_dtype()) if like is None else (like.device, like.dtype)
    return torch.empty(0, device=device, dtype=dtype)


def is_blank(value: Tensor) -> bool:
    """Whether a tensor means that there is none yet."""
    return is_lazy(value) or value.shape == (0,)


def resized(data: Tensor, dim: int, size: int, fill: Fill) -> Tensor:
    """``data`` with another size along ``dim``: the end is kept, and ``fill`` comes before it."""
    missing = size - data.shape[dim]
    if missing <= 0:
        return data.narrow(dim, -missing, size)
    shape = [*data.shape]
    shape[dim] = missing
    return torch.cat((data.new_full(shape, fill), data), dim)


class ShapedAttributes(NamedTuple):
    """The names of the owner's attributes for the parts of a tensor."""

    data: str
    constraints: str


class ShapedTensor:
    """A named tensor on a module, with sizes that some of its dimensions must have.

    The data are attributes of the module, which saves, moves and copies them. They are deleted together with this
    object.

    Args:
        owner: the module that holds the tensor.
        name: the name of the tensor there.
        value: the tensor; constraints do not apply to None or an empty one.
        constraints: sizes by dimension.
        persist_data: save the tensor in the owner's state dictionary.
        persist_constraints: also save the constraints there.
        strict: treat a dimension counted from the front and one counted from the back as different.
        live: check the constraints whenever a tensor is assigned.
        fill: the value of new elements when the tensor grows.
    """

    _attributes: Any = ShapedAttributes

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
            raise TypeError(f"the owner of {name!r} must be a monitorch.observe.Module, not {type(owner).__name__}")
        self.name, self.strict, self.live, self.fill = name, strict, live, fill
        self._names = {role: f"_{name}_{role}" for role in self._attributes._fields}
        self._bind(owner)
        self._keep("constraints", dict(constraints or {}), persist_constraints)
        data = self._names["data"]
        if isinstance(value, nn.Parameter):
            owner.register_parameter(data, value)
        else:
            owner.register_buffer(data, blank() if value is None else value, persistent=persist_data)
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
    def attributes(self) -> Any:
        """The names of the owner's attributes: ``attributes.data`` is that of the tensor."""
        return self._attributes(**self._names)

    @property
    def value(self) -> Tensor:
        """The tensor; set it to None to empty it."""
        return cast(Tensor, self._get("data"))

    @value.setter
    def value(self, value: Tensor | None) -> None:
        if value is None:
            value = blank(self.value)
        if self.live:
            self._check(value)
        self._store(value)

    @property
    def ignored(self) -> bool:
        """Whether it is still empty."""
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
        """The smallest number of dimensions that can meet the constraints."""
        return self._least_dimensions(self.constraints)

    def reconstrain(self, dim: int, size: int | None) -> None:
        """Add, change or (None) remove a constraint. A tensor that changes its size keeps its end in ``dim``."""
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
            raise OptionError(f"{self.name!r} cannot have shape {shape}: the sizes by dimension must be {wanted}")

    def _keep(self, role: str, value: Any, persist: bool) -> None:
        """Store a value other than the tensor on the owner; extras are saved."""
        if persist:
            self.owner.register_extra(self._names[role], value)
        else:
            self._set(role, value)

    def _get(self, role: str) -> Any:
        return getattr(self.owner, self._names[role])

    def _set(self, role: str, value: Any) -> None:
        setattr(self.owner, self._names[role], value)

    def _store(self, data: Tensor) -> None:
        present = self.value
        if not isinstance(present, nn.Parameter) or isinstance(data, nn.Parameter):
            self._set("data", data)
        elif is_lazy(present):
            self._set("data", nn.Parameter(data.detach(), present.requires_grad))
        else:
            present.data = data.detach()

    def _bind(self, owner: Module) -> None:
        self._owner = weakref.ref(owner)
        weakref.finalize(self, _forget, self._owner, tuple(self._names.values())).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        # copied and pickled together with the owner, then bound to the owner's copy
        return {**self.__dict__, "_owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind(state["_owner"])
