"""Tells the backward pass of a loss from those that compute something else."""

import weakref
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parameter import is_lazy

from ..numerical.shards import is_distributed

REMEMBERED = 16
"""How many backward passes to remember: checkpointing runs one inside another."""


class Reach(Enum):
    """What the running backward pass does with the parameters of a model."""

    NONE = "none of them is reached"
    RETURNED = "their gradients are computed and returned, as autograd.grad() does"
    ADDED = "their gradients are computed and added to .grad, as backward() does"
    UNKNOWN = "unknown: no parameter is trained, or other tensors stand in for them"


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
                if torch._C._will_engine_execute_node(get_gradient_edge(own).node):
                    return Reach.ADDED
            except RuntimeError:  # torch's way to say that autograd.grad() was asked for the gradient of this tensor
                return Reach.RETURNED
            if is_distributed(own):  # fully_shard: another tensor is in its place in the graph
                return Reach.UNKNOWN
            found = Reach.NONE
    return found


class TrainingBackward:
    """Says whether the running backward pass is that of a loss: only then gradients are recorded.

    Derivatives with respect to the input alone, as for a gradient penalty or a saliency map, are not recorded. Neither
    are Hessian-vector products, where gradients with a graph are differentiated again and the result is returned.
    """

    def __init__(self, model: nn.Module | None, state: Any) -> None:
        self._model, self._state = None if model is None else weakref.ref(model), state
        self._known: dict[int, bool] = {}
        self._with_graph: tuple[int, int] | None = None  # the step and pass whose gradients were kept with their graph

    def is_running(self, module: nn.Module | None) -> bool:
        """Whether the output gradient that now arrives at ``module`` belongs to a loss."""
        task = torch._C._current_graph_task_id()
        if task == -1:
            return True
        if task not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[task] = self._judge(module)
        return self._known[task]

    def _stand_ins(self) -> Iterator[nn.Parameter]:
        """What was in the places of watched parameters during the pass, where ``functional_call`` has put others."""
        house = getattr(self._state, "house", None)
        return iter(() if house is None else house.gradients.hooked)

    def _judge(self, module: nn.Module | None) -> bool:
        model = None if self._model is None else self._model()
        modules = [part for part in (module, model) if part is not None]  # most likely its own
        found = reach(chain(*(part.parameters() for part in modules), self._stand_ins()))
        now = self._state.step, self._state.passes
        if found is Reach.NONE or (found is Reach.RETURNED and self._with_graph == now):
            return False
        if torch.is_grad_enabled():
            self._with_graph = now
        return True
