"""What enters the model, and what enters the loss."""

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ..numerical.norms import as_dense
from .allocation import is_capturing
from .distributed_tensors import distributed_type, local_samples, samples_here
from .graph import GraphCallback, GraphHook
from .passes import TRAINING, RecomputationFilter, kind_of_pass
from .state import State
from .tensors import named_tensors, tensors_in

if TYPE_CHECKING:
    from .engine import Engine

NamedTensors: TypeAlias = dict[str, Tensor]
Reader: TypeAlias = Callable[[NamedTensors], None]

INPUT = "input"
"""The name of what enters the model."""
OUTPUT, TARGET = "output", "target"
"""The names of what enters the loss."""

KEYWORDS = {OUTPUT: ("input", "output"), TARGET: ("target", "targets", "labels")}
"""What loss modules call their first two arguments."""

MOST_INPUTS = 64
"""How many tensors of one call are read; some models take a list with a tensor for each sample."""


class InputTap:
    """Hands what enters the model to all who read it.

    It has no hook of its own: whoever notices that a pass begins calls it. So idle steps cost nothing.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.readers: list[Reader] = []
        self._distributed = distributed_type()

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training pass has begun with these arguments."""
        if self.readers and _is_wanted(self._state):
            self._pass_on(named_inputs(args, kwargs))

    def in_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedTensors:
        """What to pass on from the graph that is being compiled."""
        return _in_graph(named_inputs(args, kwargs), self._distributed) if self.readers else {}

    def receive(self, named: NamedTensors) -> None:
        """A training pass of a graph has begun with these tensors."""
        if _is_wanted(self._state):
            self._pass_on(named)

    def _pass_on(self, named: NamedTensors) -> None:
        found = _here(named)
        for read in list(self.readers):
            read(found)


class LossTap(GraphHook):
    """Hands the first two arguments of a loss module to a reader, in training passes.

    While nothing is recorded its hook is off; the engine puts it back in time.
    """

    def __init__(self, engine: "Engine", model: nn.Module, loss_fn: nn.Module, read: Reader) -> None:
        super().__init__(engine.state, "looking at what enters the loss")
        self._engine, self._state, self._read = engine, engine.state, read
        self._model, self._loss_fn = weakref.ref(model), weakref.ref(loss_fn)
        self._recomputation = RecomputationFilter(engine.state)
        self._distributed = distributed_type()
        self._callback = GraphCallback(engine.device, self._receive, engine.state)
        self.is_eager = False
        """Whether the loss is called, instead of being part of a compiled graph."""
        engine.losses.append(self)
        self.wake()

    def wake(self) -> None:
        """Put the hook on the loss."""
        loss_fn = self._loss_fn()
        if loss_fn is not None:
            self._handle = loss_fn.register_forward_pre_hook(self, with_kwargs=True)

    def rest(self) -> None:
        """Take it off until :meth:`wake`."""
        self._handle.remove()

    def remove(self) -> None:
        """Take it off for good."""
        self._engine.forget(self)
        self._engine.losses.remove(self)
        self._handle.remove()

    def eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before the loss is computed."""
        self.is_eager = True
        if self._state.wants_data():
            begin = self._state.clock.enter()
            self._receive(loss_arguments(args, kwargs), kind_of_pass(module))
            self._state.clock.leave(begin)
        elif self._state.is_steady:  # the first pass was idle
            self._engine.send_to_rest(self)

    def in_graph(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leave an operator in the graph that passes the arguments on."""
        named = _in_graph(loss_arguments(args, kwargs), self._distributed)
        if named and self._state.observing:
            self._callback.pass_named(kind_of_pass(module), named)

    def _receive(self, named: NamedTensors, kind: int) -> None:
        model = self._model()
        counts = _is_wanted(self._state) and self._recomputation.counts(has_grad=kind >= 2)
        if counts and kind == TRAINING and (model is None or model.training):  # nobody calls eval() on a loss
            self._read(_here(named))


def named_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedTensors:
    """The numbers that a model is called with, by name; the first ``MOST_INPUTS`` of them.

    A single positional argument is ``"input"``, several are ``"input.0"`` and ``"input.1"``, keywords are
    ``"input.mask"``; and so on for what is inside of tuples, lists and dictionaries.

    >>> list(named_inputs((torch.ones(1), [torch.ones(1)]), {"mask": torch.ones(1)}))
    ['input.0', 'input.1.0', 'input.mask']
    """
    found: NamedTensors = {}
    for part in (args[0] if len(args) == 1 else args, kwargs):
        for name, tensor in named_tensors(part, INPUT):
            if len(found) < MOST_INPUTS and _has_numbers(tensor):
                found[name] = tensor
    return found


def loss_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedTensors:
    """The output of the model and the target, as far as a loss is called with them; of a tuple the first tensor.

    >>> list(loss_arguments((torch.ones(1),), {"target": torch.ones(1), "weight": torch.ones(1)}))
    ['output', 'target']
    """
    found: NamedTensors = {}
    for place, (name, keywords) in enumerate(KEYWORDS.items()):
        given = [kwargs[keyword] for keyword in keywords if keyword in kwargs]
        for part in args[place : place + 1] or given[:1]:
            for tensor in tensors_in(part):
                if name not in found and _has_numbers(tensor):
                    found[name] = tensor
    return found


def _has_numbers(tensor: Tensor) -> bool:
    is_real = tensor.is_floating_point() or not (tensor.is_complex() or tensor.dtype is torch.bool)
    return is_real and not tensor.is_quantized and tensor.numel() > 0


def _is_wanted(state: State) -> bool:
    return state.wants_data() and not state.is_baseline


def _in_graph(named: Mapping[str, Tensor], distributed: Any) -> NamedTensors:
    """What operators can take; distributed tensors cannot leave a graph."""
    return {name: samples_here(x)[0] if isinstance(x, distributed) else x for name, x in named.items()}


def _here(named: Mapping[str, Tensor]) -> NamedTensors:
    """The part of each tensor that this process has, without those that have no numbers yet."""
    found = {name: x if type(x) is Tensor else local_samples(x)[0] for name, x in named.items() if not x.is_meta}
    return {name: as_dense(x) for name, x in found.items() if not is_capturing(x.device)}
