"""The common part of all lenses on parameters: which parameters a lens watches."""

import weakref
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..engine.parameters import locate_parameter, own_parameters
from ..errors import warn
from ..gatherer.abstract_gatherer import Gatherer
from ..preprocessor.accumulating import AccumulatingPreprocessor
from .abstract_lens import AbstractLens
from .base import Lens
from .options import ALL
from .views import View


class ParameterLens(Lens):
    """A lens on parameters: one preprocessor for each name, one gatherer for each parameter of that name.

    The name ``"all"`` means every parameter of a module; each is then shown as its own layer, such as
    ``"lstm.weight_ih_l0"``.
    """

    _default: tuple[str, ...] = ("weight", "bias")
    """The names that are watched by default."""

    def __init__(self, by_parameter: dict[str, AccumulatingPreprocessor], views: Sequence[View]) -> None:
        super().__init__(by_parameter.values(), views)
        self._by_parameter = by_parameter
        self._seen: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}
        """Where each tensor was found first: the module, the parameter's name in it, and the module's own name; a weak
        reference to the tensor would keep torch from swapping it."""
        self._named_otherwise: dict[str, str] = {}

    @property
    def by_parameter(self) -> Mapping[str, AccumulatingPreprocessor]:
        """What computes its numbers, by the name of the parameters that it gets."""
        return self._by_parameter

    @property
    def _cure(self) -> str:  # type: ignore[override]
        """Names of parameters that the model has instead."""
        others = ", ".join(map(repr, sorted(set(self._named_otherwise.values()))[:5]))
        return f'name some with parameters=: {others} or "all"' if others else "it has no parameters"

    @abstractmethod
    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> Gatherer:
        """Put a gatherer on a parameter that exists."""

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch each listed parameter that the module has; a tied one only under its first name."""
        own = own_parameters(module)
        names = own if ALL in self._by_parameter else list(self._by_parameter)
        found = {name: tensor for name in names if (tensor := locate_parameter(module, name)) is not None}
        for name, tensor in found.items():
            if not self._was_seen(tensor):
                self._seen[id(tensor)] = weakref.ref(module), name, module_name
                preprocessor = self._by_parameter.get(ALL) or self._by_parameter[name]
                gatherer = self._gather(module, name, preprocessor, module_name, inspector_state)
                self._watch(gatherer, self._layer(module_name, name), module_name)
        if own and not found:
            self._named_otherwise[module_name] = own[0]

    register_non_leaf_module = register_leaf_module

    def leave(self, modules: Collection[str]) -> None:
        """Also forget their tensors: the same modules may be in the model under other names now."""
        super().leave(modules)
        self._seen = {place: seen for place, seen in self._seen.items() if seen[2] not in modules}

    def detach_from_module(self) -> None:
        """Also forget which tensors were seen."""
        super().detach_from_module()
        self._seen, self._named_otherwise = {}, {}

    def _was_seen(self, tensor: Tensor) -> bool:
        """Whether it is already watched where it was first found; another tensor may have had the same id."""
        known, name, _ = self._seen.get(id(tensor), (None, "", ""))
        module = None if known is None else known()
        return module is not None and locate_parameter(module, name) is tensor

    def _layer(self, module_name: str, parameter: str) -> str:
        """The name to show a parameter under."""
        return ".".join(filter(None, (module_name, parameter))) if ALL in self._by_parameter else module_name


def warn_of_other_names(lenses: Iterable[AbstractLens]) -> None:
    """Warn once about layers that default options leave out and no other lens watches."""
    known = [lens for lens in lenses if isinstance(lens, ParameterLens)]
    default = next((lens for lens in known if tuple(lens._by_parameter) == lens._default and lens._layers), None)
    passed_over = known[0]._named_otherwise if known else {}
    unseen = [layer for layer in passed_over if all(layer in lens._named_otherwise for lens in known)]
    if default is None or not unseen:
        return
    where = f"layer {unseen[0]!r}" if unseen[0] else "the model itself"
    looks = f"{type(default).__name__} watches only parameters named {' and '.join(map(repr, default._default))}"
    others = f"{where} has others, such as {default._named_otherwise[unseen[0]]!r}"
    warn(f'{looks}, but {others}: parameters="all" shows every parameter')
