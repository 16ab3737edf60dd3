"""Tells a forward pass from its repetition by activation checkpointing."""

import sys
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction


def inside_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


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
        will_be_repeated = not has_grad and getattr(self._state, "pass_has_grad", True) and _inside_function()
        if not inside_backward():
            self._to_repeat += will_be_repeated
            return not will_be_repeated
        if will_be_repeated:  # one checkpoint inside another
            return False
        repeats = self._to_repeat > 0 and isinstance(torch._C._current_autograd_node(), BackwardCFunction)
        self._to_repeat -= repeats
        return repeats


def _inside_function() -> bool:
    """Whether an autograd.Function with a backward to come is running its forward, as reentrant checkpointing does."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            context = frame.f_locals.get(code.co_varnames[0])
            if isinstance(context, BackwardCFunction) and any(context.needs_input_grad) and not _is_graph(context):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_graph(context: BackwardCFunction) -> bool:
    """Whether the function is a compiled graph."""
    kind: type = type(context)._forward_cls  # type: ignore[attr-defined]
    return kind.__module__.startswith("torch._functorch.")
