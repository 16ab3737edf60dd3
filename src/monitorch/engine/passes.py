"""Which passes of a model count: training or evaluation, first or recomputed, for a loss or for something else."""

import sys
import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.nn.parameter import is_lazy

from .distributed_tensors import is_distributed
from .state import State
from .torch_private import (
    NO_TASK,
    backward_node,
    graph_task,
    inside_backward,
    is_graph_function,
    will_execute,
    without_modes_of_others,
)

IN_TRAIN_MODE, WITH_GRAD = 1, 2
"""The bits of the kind of a forward pass."""

ALL_PASSES = frozenset(range(4))
"""All kinds of forward passes, as :func:`kind_of_pass` numbers them."""

TRAINING = IN_TRAIN_MODE | WITH_GRAD
"""The kind of a pass in train mode with gradients enabled."""

TRAINING_PASSES = {
    True: frozenset({WITH_GRAD, TRAINING}),
    False: frozenset({IN_TRAIN_MODE, TRAINING}),
    None: frozenset({TRAINING}),
}
"""The kinds that are part of training.

``True``: those with gradients enabled. ``False``: those of modules in train mode. ``None``: those with both.
"""


def passes_to_measure(*, record_eval: bool, evaluation_from_grad: bool | None) -> frozenset[int]:
    """The kinds of passes that somebody wants: all of them, or those of training."""
    return ALL_PASSES if record_eval else TRAINING_PASSES[evaluation_from_grad]


def kind_of_pass(module: nn.Module) -> int:
    """The kind of the running forward pass: ``IN_TRAIN_MODE``, ``WITH_GRAD`` if gradients are enabled, both, or 0."""
    return IN_TRAIN_MODE * bool(module.training) + WITH_GRAD * torch.is_grad_enabled()


def is_training_pass(module: nn.Module, evaluation_from_grad: bool | None) -> bool:
    """Whether the running forward pass is one of training; ``evaluation_from_grad`` is a key of ``TRAINING_PASSES``."""
    return kind_of_pass(module) in TRAINING_PASSES[evaluation_from_grad]


class RecomputationFilter:
    """Says which of a layer's forward passes count.

    A pass inside backward repeats an earlier one and does not count. Reentrant checkpointing is different: its first
    pass runs under no_grad, so the repetition counts: gradients flow through that one.

    Args:
        state: the state of the inspector, which knows whether the current pass of the model has gradients.
    """

    def __init__(self, state: Any = None) -> None:
        self._state = state
        self._to_repeat = 0

    def counts(self, has_grad: bool | None = None) -> bool:
        """Whether the running pass counts; call this once per pass."""
        if has_grad is None:
            has_grad = torch.is_grad_enabled()
        if has_grad and graph_task() == NO_TASK:
            return True  # nearly always
        is_first = not has_grad and will_be_repeated(self._state)
        if not inside_backward():
            self._to_repeat += is_first
            return not is_first
        if is_first:  # one checkpoint inside another
            return False
        repeats = self._to_repeat > 0 and isinstance(backward_node(), BackwardCFunction)
        self._to_repeat -= repeats
        return repeats

    def counts_as_training(self, kind: int) -> bool:
        """Whether the running pass counts and is one of training; call this once per pass, not :meth:`counts` too."""
        return self.counts(has_grad=kind >= WITH_GRAD) and kind == TRAINING


def will_be_repeated(state: Any) -> bool:
    """Whether reentrant checkpointing runs a part of the model without gradients now, and with them in backward."""
    return getattr(state, "pass_has_grad", True) and _inside_function()


def _inside_function() -> bool:
    """Whether an autograd.Function with a backward to come is running its forward, as reentrant checkpointing does."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            context = frame.f_locals.get(code.co_varnames[0])
            if (
                isinstance(context, BackwardCFunction)
                and any(context.needs_input_grad)
                and not is_graph_function(context)
            ):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


REMEMBERED = 16
"""How many backward passes to remember: checkpointing runs one inside another."""


class Reach(Enum):
    """What the running backward pass does with the parameters of a model."""

    NONE = "none of them is reached"
    RETURNED = "their gradients are computed and returned, as autograd.grad() does"
    ADDED = "their gradients are computed and added to .grad, as backward() does"
    UNKNOWN = "unknown: no parameter is trained, other tensors stand in for them, or torch cannot say"


def reach(parameters: Iterable[nn.Parameter]) -> Reach:
    """What the running backward pass does with these parameters; the first one that it reaches decides.

    >>> weight, x = nn.Parameter(torch.ones(1)), torch.ones(1, requires_grad=True)
    >>> product, found = weight * x, []
    >>> _ = product.register_hook(lambda _: found.append(reach([weight]).name))
    >>> (slope,) = torch.autograd.grad(product, x, create_graph=True)
    >>> (product + slope).backward()
    >>> found
    ['NONE', 'ADDED']
    """
    found = Reach.UNKNOWN
    for own in parameters:
        if own.requires_grad and own.is_leaf and not is_lazy(own):
            try:
                if will_execute(get_gradient_edge(own).node):
                    return Reach.ADDED
            except RuntimeError:  # torch's way to say that autograd.grad() was asked for the gradient of this tensor
                return Reach.RETURNED
            except AttributeError:  # torch 2.11 cannot tell below a mode that sees operators
                return Reach.UNKNOWN
            if is_distributed(own):  # fully_shard: another tensor is in its place in the graph
                return Reach.UNKNOWN
            found = Reach.NONE
    return found


class TrainingBackward:
    """Says whether the running backward pass is that of a loss; only then are gradients recorded.

    Derivatives with respect to the input alone, as for a gradient penalty or a saliency map, are not recorded. Neither
    are Hessian-vector products, where gradients with a graph are differentiated again and the result is returned.

    Args:
        stand_ins: returns the tensors in the places of watched parameters during the pass; ``functional_call`` may have
            replaced them.
    """

    def __init__(self, model: nn.Module | None, state: State, stand_ins: Callable[[], Iterable[Any]]) -> None:
        self._model, self._state = None if model is None else weakref.ref(model), state
        self._stand_ins = stand_ins
        self._known: dict[int, bool] = {}
        self._with_graph: tuple[int, int] | None = None  # the step and pass whose gradients were kept with their graph

    def is_running(self, module: nn.Module | None) -> bool:
        """Whether the output gradient that now arrives at ``module`` belongs to a loss."""
        task = graph_task()
        if task == NO_TASK:
            return True
        if task not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[task] = self._judge(module)
        return self._known[task]

    def _judge(self, module: nn.Module | None) -> bool:
        model = None if self._model is None else self._model()
        modules = [part for part in (module, model) if part is not None]  # most likely its own
        with without_modes_of_others():
            found = reach(chain(*(part.parameters() for part in modules), self._stand_ins()))
        now = self._state.step, self._state.passes
        if found is Reach.NONE or (found is Reach.RETURNED and self._with_graph == now):
            return False
        if torch.is_grad_enabled():
            self._with_graph = now
        return True
