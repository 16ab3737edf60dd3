"""The model as a list of named layers, in model order."""

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from ..engine.distributed_tensors import is_distributed
from ..engine.optimizers import DEEPSPEED, MEGATRON
from ..engine.parameters import ParameterBank, locate_parameter, own_parameters
from ..engine.torch_private import CHECKPOINTED_INSIDE, COMPILED_INSIDE, PIPELINE_STAGE, processes_sharding
from ..errors import OptionError, UnsupportedModelError

Names = tuple[str, str]
"""Top-level package and name of a class, to recognise it without importing the package."""

UNSUPPORTED: dict[Names, str] = {
    ("torch", "FullyShardedDataParallel"): "use fully_shard (FSDP2) instead",
    ("torch", "DataParallel"): "use DistributedDataParallel instead",
    ("torch", PIPELINE_STAGE): "attach to the stage's own module instead",
    ("deepspeed", "DeepSpeedEngine"): DEEPSPEED,
    ("megatron", "DistributedDataParallel"): MEGATRON,
    ("megatron", "FullyShardedDataParallel"): MEGATRON,
}
"""What to do instead."""

WRAPPERS: dict[Names, str] = {
    ("torch", "DistributedDataParallel"): "module",
    ("torch", "OptimizedModule"): COMPILED_INSIDE,
    ("torch", "ActivationWrapper"): CHECKPOINTED_INSIDE,
    ("lightning", "_FabricModule"): "_forward_module",
    ("lightning_fabric", "_FabricModule"): "_forward_module",
    ("peft", "PeftModel"): "base_model",
    ("peft", "PeftMixedModel"): "base_model",
    ("peft", "BaseTuner"): "model",
}
"""Modules that wrap another one, and the attribute that holds it; wrappers do not appear in layer names."""

FITTED: dict[Names, str] = {
    ("lightning", "LightningModule"): "lightning",
    ("pytorch_lightning", "LightningModule"): "lightning",
}
"""Models trained by a Trainer, and the module of ``monitorch.integration`` with a callback for that Trainer."""

BYPASSING = {"peft"}
"""Packages whose wrappers may run the inner module without calling it, so that its hooks would not fire."""

TUNED: Names = ("peft", "BaseTunerLayer")
"""Layers that keep their parts in dictionaries by the names of adapters."""

TAKEN_OVER = {
    "ds_id": ("DeepSpeed", DEEPSPEED),
    "_hp_mapping": ("DeepSpeed", DEEPSPEED),
    "main_grad": ("Megatron", MEGATRON),
}
"""Attributes of parameters whose values live elsewhere: which library sets them, and why such models cannot be
observed."""

BESIDE = "parameters"
"""Prefix for the names of tensors trained beside a model; no submodule can have this name."""

SCRIPTED = torch.jit.ScriptModule
"""Modules that torch.jit runs, without calling hooks."""


class NamedModule(NamedTuple):
    """One module of the model."""

    name: str
    module: nn.Module
    is_leaf: bool


def description(layers: Iterable[NamedModule]) -> list[tuple[str, str, int]]:
    """Name, class and number of parameters of each layer, without the parameters of its submodules."""
    return [(name, type(module).__name__, sum(map(size_of, module._parameters.values()))) for name, module, _ in layers]


def size_of(parameter: nn.Parameter | None) -> int:
    """How many elements a parameter has; 0 while it is not initialised."""
    return 0 if parameter is None or is_lazy(parameter) else parameter.numel()


def unwrap(model: nn.Module) -> nn.Module:
    """The module that runs when a model is called, inside DistributedDataParallel, torch.compile and the like.

    Raises an error for models that cannot be observed.
    """
    for module in model.modules() if isinstance(model, nn.Module) else (model,):
        advice = _looked_up(module, UNSUPPORTED)
        if advice:
            raise UnsupportedModelError(f"{advice.name} cannot be observed: {advice.found}")
    if isinstance(model, SCRIPTED):
        raise UnsupportedModelError(f"{type(model).__name__} cannot be observed: watch the model before torch.jit")
    if not isinstance(model, nn.Module):
        order = ": the model comes first, then the optimizer" if isinstance(model, torch.optim.Optimizer) else ""
        raise OptionError(f"a model is a torch.nn.Module, not {type(model).__name__}{order}")
    if taken := taken_over(model):
        raise UnsupportedModelError(f"a model trained by {taken.name} cannot be observed: {taken.found}")
    while (inner := _inside(model)) is not None and not BYPASSING & _packages(model):
        model = inner
    return model


def callback_for(model: nn.Module) -> str | None:
    """The module with a callback for the Trainer that fits such models; None if no Trainer does."""
    found = _looked_up(model, FITTED)
    return None if found is None or getattr(model, "fabric", None) is not None else found.found


class _Found(NamedTuple):
    name: str
    found: str


def taken_over(model: nn.Module) -> _Found | None:
    """Which library keeps the parameters' values elsewhere, and why that is a problem; None if none does."""
    names = (name for own in model.parameters() for name in TAKEN_OVER if name in getattr(own, "__dict__", ()))
    found = next(names, None)
    return None if found is None else _Found(*TAKEN_OVER[found])


def _looked_up(module: Any, table: dict[Names, str]) -> _Found | None:
    """What the table has for the class of a module or one of its base classes."""
    for base in type(module).__mro__:
        found = table.get((base.__module__.partition(".")[0], base.__name__))
        if found is not None:
            return _Found(base.__name__, found)
    return None


def _packages(module: nn.Module) -> set[str]:
    return {base.__module__.partition(".")[0] for base in type(module).__mro__}


def _inside(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper; None if the module is not a wrapper."""
    wrapper = _looked_up(module, WRAPPERS)
    return None if wrapper is None else module._modules.get(wrapper.found)


def _wrapped(module: nn.Module) -> list[nn.Module]:
    """A wrapper, the wrappers inside it, and the wrapped module, which comes last."""
    inner = _inside(module)
    return [] if inner is None else [inner, *_wrapped(inner)]


def averaging_processes(model: nn.Module) -> int:
    """Over how many processes DistributedDataParallel or fully_shard average gradients; 0 if neither is used."""
    sizes = [0]
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            sizes.append(dist.get_world_size(module.process_group))
        else:
            sizes.append(processes_sharding(module))
    return max(sizes)


def is_spread(model: nn.Module) -> bool:
    """Whether some of its parameters are sharded over several processes."""
    return any(map(is_distributed, model.parameters()))


def walk(model: nn.Module, depth: int = -1, separator: str = ".") -> list[NamedModule]:
    """All modules down to ``depth`` levels (-1: all), parents first; a shared module under its first name only.

    >>> [layer.name for layer in walk(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())), separator="/")]
    ['', '0', '1', '1/0']
    """
    if depth < -1:
        raise OptionError(f"depth={depth} must be -1 for the whole model, or the number of levels to go down")
    return list(_walk(model, "", depth, separator, set()))


def _walk(module: nn.Module, name: str, depth: int, separator: str, seen: set[int] | None) -> Iterator[NamedModule]:
    """The layers of a module; without ``seen``, shared ones appear under all their names."""
    inner = [module, *_wrapped(module)][-1]
    if seen is not None:
        if id(inner) in seen:
            return
        seen.add(id(inner))
    children = {} if depth == 0 else _children(module)
    is_called = name == "" and inner is not module
    if is_called:  # then the model is called through the wrapper
        yield NamedModule(name, module, is_leaf=False)
    if not is_called or inner._parameters:
        yield NamedModule(name, inner, is_leaf=not children and not isinstance(inner, ParameterBank))
    for child_name, child in children.items():
        yield from _walk(child, _joined(name, child_name, separator), depth - 1, separator, seen)


def _joined(name: str, child: str, separator: str) -> str:
    return f"{name}{separator}{child}" if name else child


def _children(module: nn.Module) -> dict[str, nn.Module]:
    """The children of a module, and of what it wraps, that can have hooks.

    A parametrised layer is still one layer, so the modules of its parametrisations are left out; so are scripted
    modules, which call no hooks. With a single PEFT adapter, its name is left out of the layer names.
    """
    inner, found = _inside(module), dict[str, nn.Module]()
    inside = {id(part) for part in _wrapped(module)}
    is_tuned = _looked_up(module, {TUNED: "adapters"}) is not None
    for name, child in module._modules.items():
        if child is None or name == "parametrizations" or isinstance(child, SCRIPTED):
            continue
        if is_tuned and isinstance(child, (nn.ModuleDict, nn.ParameterDict)) and not len(child):
            continue  # a part that this kind of adapter does not have
        if is_tuned and isinstance(child, nn.ModuleDict) and len(child) == 1:
            child = next(iter(child.values()))
        if child is inner:
            found |= _children(child)
        elif id(child) not in inside:
            found[name] = child
    return found


def called_parts(model: nn.Module) -> list[nn.Module]:
    """The outermost parts of a model that can be called; for a list of modules, its items.

    >>> [type(part).__name__ for part in called_parts(nn.ModuleList([nn.Linear(1, 1), nn.Sequential(nn.ReLU())]))]
    ['Linear', 'Sequential']
    """
    parts = [child for child in model.children() if not isinstance(child, SCRIPTED)]
    inside = [[part] if type(part).forward is not nn.Module.forward else called_parts(part) for part in parts]
    return list(chain.from_iterable(inside))


def scripted(model: nn.Module) -> list[str]:
    """The names of scripted and traced submodules, outermost only."""
    names = [name for name, part in model.named_modules() if isinstance(part, SCRIPTED)]
    return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters, under the names of the layers as :func:`walk` has them."""
    names = {id(layer.module): layer.name for layer in walk(model)}
    seen = set[int]()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield _joined(names.get(id(module), path), name, "."), parameter


class LayersOf:
    """What :func:`walk` finds in a model; holds the model only weakly, so that watching does not keep it alive.

    Args:
        bank: tensors trained beside the model.
    """

    def __init__(
        self, model: nn.Module, depth: int = -1, separator: str = ".", bank: ParameterBank | None = None
    ) -> None:
        self._model, self._how, self._bank = weakref.ref(model), (depth, separator), bank
        self._modules: list[weakref.ref[nn.Module]] = []
        self._contents: list[tuple[object, ...]] = []
        self._known: dict[str, tuple[weakref.ref[nn.Module], bool, list[str]]] = {}
        self.changes()

    def __iter__(self) -> Iterator[NamedModule]:
        model = self._model()
        own = [] if model is None else walk(model, *self._how)
        beside = () if self._bank is None else _walk(self._bank, BESIDE, *self._how, set())
        return iter([*own, *beside])

    @property
    def names(self) -> list[str]:
        """The names of all layers, in model order."""
        return list(self._known)

    def _known_contents(self) -> list[tuple[object, ...]]:
        """The parameters and children of every known module; comparing is much faster than walking the model again."""
        known = [module for reference in self._modules if (module := reference()) is not None]
        return [(len(known),), *(_contents(part) for part in known if part._parameters or part._modules)]

    def changes(self) -> tuple[set[str], list[NamedModule]]:
        """Changes since the last call: the names of layers that are gone or changed, and the new and changed ones.

        A layer has changed if it is another module now, or if its parameters have other names.
        """
        if self._modules and self._contents == self._known_contents():
            return set(), []
        model = self._model()
        self._modules = [] if model is None else [weakref.ref(module) for module in model.modules()]
        self._contents = self._known_contents()
        before, layers = self._known, list(self)
        self._known = {
            layer.name: (weakref.ref(layer.module), layer.is_leaf, own_parameters(layer.module)) for layer in layers
        }
        same = {layer.name for layer in layers if layer.name in before and _is_same(layer, *before[layer.name])}
        return before.keys() - same, [layer for layer in layers if layer.name not in same]


def _contents(module: nn.Module) -> tuple[object, ...]:
    """The names of a module's parameters, the types of these, which tell whether there is one, and its children."""
    own, inner = module._parameters, module._modules
    return id(module), *own.keys(), *map(type, own.values()), *inner.keys(), *map(id, inner.values())


def _is_same(layer: NamedModule, known: weakref.ref[nn.Module], is_leaf: bool, own: list[str]) -> bool:
    return known() is layer.module and layer.is_leaf == is_leaf and own_parameters(layer.module) == own


def aliases(model: nn.Module, separator: str = ".") -> dict[str, list[str]]:
    """Further names of shared modules and tied parameters, by the first name.

    >>> shared = nn.Linear(1, 1)
    >>> aliases(nn.ModuleDict({"a": shared, "b": shared}))["a"]
    ['b']
    """
    names: dict[int, list[str]] = defaultdict(list)
    for name, module, _ in _walk(model, "", -1, separator, None):
        names[id(module)].append(name)
        for parameter in own_parameters(module):
            where = _joined(name, parameter.replace(".", separator), separator)
            names[id(locate_parameter(module, parameter))].append(where)
    return {first: others for first, *others in names.values() if others}
