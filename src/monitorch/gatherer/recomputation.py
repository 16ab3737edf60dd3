"""Telling a forward pass from its repetition by activation checkpointing."""

import torch


def inside_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


class RecomputationFilter:
    """Says which of a layer's forward passes count.

    A pass inside backward repeats an earlier one. It counts only if the earlier one ran without gradients, as
    reentrant checkpointing does: then it is the pass that gradients flow through.
    """

    def __init__(self) -> None:
        self._last_had_grad = True

    def counts(self, has_grad: bool | None = None) -> bool:
        """Judge the pass that is running, with gradients on or off; call once per pass."""
        if inside_backward():
            return not self._last_had_grad
        self._last_had_grad = torch.is_grad_enabled() if has_grad is None else has_grad
        return True
