"""What one training pass of a copy of a model shows: outputs, activations and gradients, layer by layer."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...engine.parameters import locate_parameter, own_parameters
from ...engine.tensors import pick_tensor, tensors_in
from ...engine.torch_private import tree_leaves
from ...errors import MonitorchError, OptionError
from ...gatherer.activation_gatherer import ActivationLayers
from ...inspector.hidden_parameters import hidden_parameters
from ...inspector.model_copy import ModelCopy, fresh
from ...inspector.module_tree import walk
from ...lens.module_distinction import isactivation
from ...numerical.precision import HOST, wide_dtype
from ...preprocessor.activations import READERS, SATURATION, active_counts, saturated
from ...preprocessor.data import feature_deviations

SOFTMAX = (torch.softmax, Tensor.softmax, functional.softmax)

FEW = 8
"""With fewer samples, a spread cannot be measured."""

FAR = 1e4
"""A function that is above this for some input has no upper bound."""


class DataScale(NamedTuple):
    """The scale of floating data."""

    mean: float
    std: float
    apart: float
    """The largest standard deviation of a feature over the median one; constant features do not count."""


@dataclass
class SeenLayer:
    """A module that ran and has weights, or has no submodules."""

    name: str
    module: nn.Module
    has_weights: bool
    rms: float = 0.0
    """The root mean square of its output, the largest if it ran several times."""
    takes_finite: bool = True
    gives_finite: bool = True
    gradient_is_finite: bool = True
    """Whether the gradient of its output is finite."""
    data: DataScale | None = None
    """The scale of its input, if that comes from the batch or if no layer with weights ran before."""


@dataclass
class SeenActivation:
    """A call of an activation function."""

    name: str
    weights: str | None
    """The last layer with weights that ran before it."""
    entries: int
    positions: int
    dead: float
    """The share of units that are 0 everywhere."""
    saturated: float | None
    """The share of elements at the bounds of the function, if it has any."""


class LastFunction(NamedTuple):
    """The activation function that makes the output of the model."""

    name: str
    is_softmax: bool
    low: float
    """The smallest number that it can return."""
    high: float


@dataclass
class FirstPass:
    """One pass, with its loss and gradients."""

    layers: dict[str, SeenLayer] = field(default_factory=dict)
    """By name, in the order in which they ended."""
    activations: list[SeenActivation] = field(default_factory=list)
    last_function: LastFunction | None = None
    output: Tensor | None = None
    """The first floating tensor of the output that is not a single number."""
    loss: float = math.nan
    has_gradient: bool = False
    """Whether the loss depends on anything that is trained."""
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    """The parameters of the copy, with their gradients."""
    layer_of: dict[str, str] = field(default_factory=dict)
    """The layer that a parameter belongs to, by the name of the parameter."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    """Tensors that get a gradient, although torch does not know that they belong to the model."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are not frozen."""
        return {name: own for name, own in self.parameters.items() if own.requires_grad}


def first_pass(twin: ModelCopy, batch: tuple[Any, Any]) -> FirstPass:
    """Run a copy forward and backward."""
    seen, (inputs, targets) = FirstPass(), fresh(batch)
    twin.zero_grad()
    hidden = hidden_parameters(twin.model)
    for own in hidden.values():
        own.grad = None
    with _Watching(twin.model, inputs, seen) as watching:
        output = _explained(lambda: twin.call(inputs), "the model", _HOW_TO_CALL)
    watching.finish(output)
    loss = _explained(lambda: twin.loss_of(output, targets), "loss_fn", _HOW_TO_LOSE)
    seen.loss, seen.has_gradient = float(loss.detach()), loss.requires_grad
    if seen.has_gradient:
        _explained(loss.backward, "the backward pass", "Every operation must have a gradient")
    seen.parameters = dict(twin.model.named_parameters())
    names = {
        id(locate_parameter(layer.module, own)): layer.name
        for layer in reversed(walk(twin.model))
        for own in own_parameters(layer.module)
    }
    seen.layer_of = {name: names.get(id(own), "") for name, own in seen.parameters.items()}
    seen.gradients = {
        name: own.grad.detach().to_dense().clone() for name, own in seen.parameters.items() if own.grad is not None
    }
    seen.hidden = [name for name, own in hidden.items() if own.grad is not None]
    return seen


_HOW_TO_CALL = "batch is (inputs, targets): a dictionary of inputs holds keyword arguments, a tuple several arguments"
_HOW_TO_LOSE = "It is called with the output of the model and the targets, or with the output alone if these are None"


def _explained(do: Callable[[], Any], what: str, cure: str) -> Any:
    """Call a function of the user; if it raises an error, say what to do."""
    try:
        return do()
    except MonitorchError:
        raise
    except Exception as error:
        raise OptionError(f"{what} raises {type(error).__name__} with this batch: {error}. {cure}") from error


class _Caller:
    """A module that runs."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self._module, self.is_activation = name, module, isactivation(module)

    def module(self) -> nn.Module:
        return self._module


class _Call(NamedTuple):
    """An activation function that was called."""

    name: str
    result: Tensor
    function: Any
    others: Sequence[Any]
    """Its arguments after the first."""
    named: dict[str, Any]


class _Watching(TorchFunctionMode):
    """Notes what modules take and return, and calls of activation functions, inside a ``with`` block."""

    def __init__(self, model: nn.Module, inputs: Any, seen: FirstPass) -> None:
        super().__init__()
        self._seen, self._is_over = seen, False
        self._running: list[_Caller] = []
        self._names, self._calls = ActivationLayers(None), list[_Call]()
        self._from_batch = {_memory(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)}
        self._had_weights = self._is_ours = False
        for layer in walk(model):
            caller = _Caller(layer.name, layer.module)
            has_weights = bool(own_parameters(layer.module))
            wanted = SeenLayer(layer.name, layer.module, has_weights) if has_weights or layer.is_leaf else None
            layer.module.register_forward_pre_hook(self._entering(caller, wanted), with_kwargs=True)
            layer.module.register_forward_hook(self._leaving(wanted), with_kwargs=True, always_call=True)

    def finish(self, output: Any) -> None:
        """The model has run and returned ``output``. Recomputation during backward is ignored."""
        self._is_over = True
        found = (one for one in tensors_in(output) if one.is_floating_point() and one.dim())
        self._seen.output = last = next(found, None)
        if last is not None:
            own = [call for call in self._calls if _memory(call.result) == _memory(last)]
            made = [call for call in own if call.result.numel() == last.numel()]
            self._seen.last_function = _last_function(made[-1]) if made else None
            self._seen.output = last.detach()
        self._calls.clear()

    def _entering(self, caller: _Caller, layer: SeenLayer | None) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._is_over:
                return
            self._running.append(caller)
            if layer is not None:
                with self._ours():
                    self._look_at_input(layer, [one for one in tensors_in((args, kwargs)) if one.is_floating_point()])

        return enter

    def _look_at_input(self, layer: SeenLayer, given: list[Tensor]) -> None:
        layer.takes_finite &= not given or _is_finite(given[0])  # others may be masks, with -Inf in them
        if layer.has_weights and is_one_layer(layer.module):
            is_first, self._had_weights = not self._had_weights, True
            if given and (is_first or _memory(given[0]) in self._from_batch):
                layer.data = _scale(given[0].detach())

    def _leaving(self, layer: SeenLayer | None) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._is_over:
                return
            self._running.pop()
            given = None if layer is None else pick_tensor(output)
            if layer is not None and given is not None and not given.is_complex() and given.numel():
                with self._ours():
                    self._look_at_output(layer, given)

        return leave

    def _look_at_output(self, layer: SeenLayer, given: Tensor) -> None:
        self._seen.layers.setdefault(layer.name, layer)
        layer.gives_finite &= _is_finite(given)
        layer.rms = max(layer.rms, float(rms(given)))
        if given.requires_grad:
            given.register_hook(partial(_note_gradient, layer))  # type: ignore[no-untyped-call]

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Calls inside the block are ours, not the model's."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called instead of ``func``."""
        named = kwargs or {}
        result = func(*args, **named)
        if self._is_ours or not self._running or not isinstance(result, Tensor):
            return result
        caller = self._running[-1]
        if func in SOFTMAX:
            self._calls.append(_Call(caller.name, result, func, args[1:], named))
        elif func in READERS:
            content = READERS[func](result, *args, **named)
            call = None if content is None else self._names.take(caller, content, (0, 0))
            if call is not None:
                self._calls.append(_Call(call.name, result, func, args[1:], named))
                units = result.dim() - 1 if call.channel_last else min(1, result.dim() - 1)
                self._seen.activations.append(_seen_activation(call, result.detach(), units))
        return result


def _seen_activation(call: Any, x: Tensor, units: int) -> SeenActivation:
    if not x.numel():
        return SeenActivation(call.name, call.weights, 0, 0, 0.0, None)
    active = active_counts(x, units) if x.dim() > 1 else x
    dead = 1 - float(active.count_nonzero()) / active.numel()
    positions = x.numel() // x.shape[units] if x.dim() > 1 else 1
    entries = len(x) if x.dim() > 1 else 1
    at_bounds = saturated(x, *call.bounds)
    share = float(at_bounds[SATURATION]) / x.numel() if at_bounds else None
    return SeenActivation(call.name, call.weights, entries, positions, dead, share)


def _last_function(call: _Call) -> LastFunction:
    """The range of a function, found by calling it with numbers of every magnitude."""
    if call.function in SOFTMAX:
        return LastFunction(call.name, is_softmax=True, low=0.0, high=1.0)
    sizes = torch.logspace(-4, 6, 400, dtype=torch.float64, device=HOST)
    numbers = torch.cat([-sizes.flip(0), torch.zeros_like(sizes[:1]), sizes])
    try:
        with torch.no_grad():
            results = call.function(numbers, *call.others, **call.named)
        low, high = float(results.min()), float(results.max())
    except Exception:  # one that takes tensors of its own, such as PReLU
        low, high = -math.inf, math.inf
    unbounded = LastFunction(call.name, is_softmax=False, low=-math.inf, high=math.inf)
    return unbounded._replace(low=low if low > -FAR else -math.inf, high=high if high < FAR else math.inf)


def is_one_layer(module: nn.Module) -> bool:
    """Whether it counts as one layer: a torch.nn module such as attention, or one whose parts have no parameters."""
    if type(module).__module__.startswith("torch.nn."):
        return True
    return not any(own_parameters(part) for part in module.modules() if part is not module)


def _memory(tensor: Tensor) -> int:
    """Views of a tensor have the same memory."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors, and those of some subclasses, have none
        return id(tensor)


def _note_gradient(layer: SeenLayer, gradient: Tensor | None) -> None:
    # a function of the user may have no gradient for one of its inputs
    layer.gradient_is_finite &= gradient is None or _is_finite(gradient)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def rms(x: Tensor) -> Tensor:
    """The root mean square."""
    length: Tensor = torch.linalg.vector_norm(x.detach().to(wide_dtype(x)))
    return length / math.sqrt(max(x.numel(), 1))


def _scale(data: Tensor) -> DataScale | None:
    if not data.numel():
        return None
    wide = data.to(wide_dtype(data))
    apart = 1.0
    if data.dim() > 1 and data.numel() >= FEW * data.shape[-1]:
        stds, is_constant = feature_deviations(wide[None])
        stds = stds[~is_constant]
        apart = float(stds.amax() / stds.median()) if len(stds) else 1.0
    return DataScale(float(wide.mean()), float(wide.std(correction=0)), apart)
