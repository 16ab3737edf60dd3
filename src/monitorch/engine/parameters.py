"""Parameters: found by name, and measured together."""

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..numerical.norms import as_dense
from .buffers import Entry, Info
from .distributed_tensors import SHARED, local_part
from .meter import PARAMETER, Measured, Meter, Reporter, Subscription
from .torch_private import without_overrides

if TYPE_CHECKING:
    from .engine import Engine


def find_parameter(module: nn.Module, name: str) -> Tensor | None:
    """The tensor that :func:`locate_parameter` finds, or None while it is not initialised."""
    found = locate_parameter(module, name)
    return None if found is None or is_lazy(found) else found


def locate_parameter(module: nn.Module, name: str) -> Tensor | None:
    """The trained tensor behind ``name``, or None if there is none.

    A parametrised or pruned weight is computed from other tensors at each access, which for some parametrisations
    changes training. So its trained tensor is used instead. A dotted name reaches into submodules.
    """
    direct = module._parameters.get(name)
    if direct is not None:  # nearly always
        return direct
    path, _, leaf = name.rpartition(".")
    for part in path.split(".") if path else ():
        child = module._modules.get(part)
        if child is None:
            return None
        module = child
    found: object = module._parameters.get(leaf)
    if found is None:
        found = _trained_factor(module, leaf)
    if found is None:
        found = module._buffers.get(leaf, module.__dict__.get(leaf))
    return found if isinstance(found, Tensor) else None


def own_parameters(module: nn.Module) -> list[str]:
    """The names of the module's own parameters, including those of its parametrisations.

    >>> own_parameters(nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)))
    ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    inner = module._modules.get("parametrizations")
    hidden = [] if inner is None else [f"parametrizations.{name}" for name, _ in inner.named_parameters()]
    return [name for name, _ in module.named_parameters(recurse=False)] + hidden


def _trained_factor(module: nn.Module, name: str) -> Tensor | None:
    parametrizations = module._modules.get("parametrizations")
    if parametrizations is not None and name in parametrizations._modules:
        originals = parametrizations._modules[name]._parameters  # type: ignore[union-attr]
        return originals.get("original", originals.get("original1"))
    return module._parameters.get(f"{name}_orig", module._parameters.get(f"{name}_v"))


def changes_of(parameters: Iterable[Tensor]) -> int:
    """How often these were changed in place so far; tensors of inference mode do not count that."""
    with without_overrides():  # uninitialised ones refuse nearly all methods
        return sum(own._version for own in parameters if not own.is_inference())


class ParameterRef:
    """A parameter of a module, looked up by name each time: it may be replaced, and the module may go."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self.name = weakref.ref(module), name

    def find(self) -> Tensor | None:
        """The parameter as it is now."""
        module = self._module()
        return None if module is None else find_parameter(module, self.name)

    def belongs_to(self, module: nn.Module) -> bool:
        """Whether it is one of this module; the id alone does not tell, since a later module may get the same."""
        return self._module() is module


class ParameterBank(nn.Module):
    """Holds trained tensors that belong to no module; it is never called.

    >>> tensors = {"scale": nn.Parameter(Tensor([1])), "codes.left": nn.Parameter(Tensor([1, 2]))}
    >>> [name for name, _ in ParameterBank(tensors).named_parameters()]
    ['scale', 'codes.left']

    Args:
        tensors: by name; a dotted name makes nested banks.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        inside = dict[str, dict[str, Tensor]]()
        for name, tensor in tensors.items():
            first, _, rest = name.partition(".")
            if rest:
                inside.setdefault(first, {})[rest] = tensor
            else:  # register_parameter refuses tensors that are no Parameters
                self._parameters[name] = tensor  # type: ignore[assignment]
        for name, own in inside.items():
            self._modules[name] = ParameterBank(own)


class Target(NamedTuple):
    """A parameter to measure."""

    meter: Meter
    module: weakref.ref[nn.Module]
    parameter: str


class ParameterTap:
    """Measures parameters as they are, many at once."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def watch(
        self, parameter: str, name: str, gatherer: Reporter, preprocessor: Measured, kept_under: str
    ) -> Subscription:
        """Measure a parameter for a preprocessor on request; the numbers are kept under ``kept_under``."""
        return self._engine.subscribe([], name, gatherer, preprocessor, PARAMETER, parameter, parameter=kept_under)

    def measure(self, targets: Iterable[Target]) -> None:
        """Measure these parameters now."""
        step, entries = self._engine.state.step, list[Entry]()
        for meter, known, parameter in targets:
            module = known()
            if module is None or meter.failed:
                continue
            tensor = module._parameters.get(parameter)
            if tensor is None or type(tensor) is not nn.Parameter or self._engine.averages:
                meter.guarded(self._look, entries, meter, module, parameter)
            else:  # nearly always
                entries.append((meter, Info(meter.number, step, part=SHARED), tensor.detach(), False))
        is_plain = not any(meter.rates or meter.compares or meter.wanted for meter, *_ in entries)
        self._engine.measure_together("lengths" if is_plain else "gradients", entries)

    def _look(self, entries: list[Entry], meter: Meter, module: nn.Module, parameter: str) -> None:
        tensor = find_parameter(module, parameter)
        if tensor is not None:
            local, part = local_part(tensor)
            if self._engine.averages and local is tensor:
                # fully_shard resizes the memory of gathered parameters later, which fails once NumPy holds a view of it
                local = tensor.detach().clone()
            entries.append((meter, Info(meter.number, self._engine.state.step, part=part), as_dense(local), False))
