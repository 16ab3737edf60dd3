"""Parameters: found by name, and measured together."""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..numerical.norms import as_dense
from .buffers import Entry, Info
from .distributed_tensors import local_part
from .meter import Measured, Meter, Reporter, Subscription

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


class ParameterTap:
    """Keeps the parameters to be measured until :meth:`flush`."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._waiting: list[Entry] = []

    def watch(
        self, parameter: str, name: str, gatherer: Reporter, preprocessor: Measured, kept_under: str
    ) -> Subscription:
        """Measure a parameter for a preprocessor whenever it is asked for; it keeps the numbers under this name."""
        return self._engine.subscribe([], name, gatherer, preprocessor, "parameter", parameter, parameter=kept_under)

    def look(self, meter: Meter, module: nn.Module, parameter: str) -> None:
        """Measure this parameter with the others."""
        tensor = find_parameter(module, parameter)
        if tensor is not None:
            local, part = local_part(tensor)
            if self._engine.averages and local is tensor:
                # fully_shard resizes the memory of gathered parameters later, which fails once NumPy holds a view of it
                local = tensor.detach().clone()
            info = Info(meter.number, self._engine.state.step, part=part)
            self._waiting.append((meter, info, as_dense(local), False))

    def flush(self) -> None:
        """Measure all parameters that wait."""
        waiting, self._waiting = self._waiting, []
        self._engine.measure_together("gradients", waiting)
