"""What enters the model, and what enters the loss."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .distributed_tensors import distributed_type
from .module_tap import NamedTensors, here, in_graph
from .reports import tell
from .state import State, is_observed
from .tensors import named_tensors, tensors_in

Reader: TypeAlias = Callable[[NamedTensors], None]

INPUT = "input"
"""The name of what enters the model."""
OUTPUT, TARGET = "output", "target"
"""The names of what enters the loss."""

KEYWORDS = {OUTPUT: ("input", "output"), TARGET: ("target", "targets", "labels")}
"""What loss modules call their first two arguments."""

MOST_INPUTS = 64
"""The most tensors read per call; some models take a list with one tensor per sample."""


class InputTap:
    """Passes the model's inputs to all readers.

    It has no hook of its own; the step counter calls it when a pass begins. So idle steps cost nothing.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.readers: list[Reader] = []
        self._distributed = distributed_type()

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training pass has begun with these arguments."""
        if self.readers and is_observed(self._state):
            self._pass_on(named_inputs(args, kwargs))

    def in_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedTensors:
        """What to pass on from the graph that is being compiled."""
        return in_graph(named_inputs(args, kwargs), self._distributed) if self.readers else {}

    def receive(self, named: NamedTensors) -> None:
        """A training pass of a graph has begun with these tensors."""
        if is_observed(self._state):
            self._pass_on(named)

    def _pass_on(self, named: NamedTensors) -> None:
        try:
            found = here(named)
            for read in list(self.readers):
                read(found)
        except Exception as error:
            tell(self._state, "looking at what enters the model", error)


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
    """The model output and the target among the arguments of a loss; for a tuple, its first tensor.

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
    return is_real and not tensor.is_quantized and not tensor.is_nested and tensor.numel() > 0
