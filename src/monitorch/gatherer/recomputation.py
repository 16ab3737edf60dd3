"""Tells a forward pass from its repetition by activation checkpointing."""

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction


def inside_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


class RecomputationFilter:
    """Says which of a layer's forward passes count.

    A pass inside backward repeats an earlier one. It counts only if the earlier one ran under no_grad while the model
    ran
    with gradients, as in reentrant checkpointing: then it is the pass that gradients flow through.

    Args:
        state: the state of the inspector, which knows whether the current pass of the model has gradients.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._to_repeat = 0

    def counts(self, has_grad: bool | None = None) -> bool:
        """Whether the running pass counts; call this once per pass."""
        if inside_backward():
            repeats = self._to_repeat > 0 and isinstance(torch._C._current_autograd_node(), BackwardCFunction)
            self._to_repeat -= repeats
            return repeats
        if has_grad is None:
            has_grad = torch.is_grad_enabled()
        if not has_grad and getattr(self._state, "pass_has_grad", True):
            self._to_repeat += 1
        return True
