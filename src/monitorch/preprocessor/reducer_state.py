"""The states of monitors' reducers, as numbers."""

from typing import Any

import torch
from torch import nn

from ..numerical.norms import as_real, l2_norm
from .abstract import AbstractForwardPreprocessor
from .accumulating import AccumulatingPreprocessor


class ReducerState(AccumulatingPreprocessor, AbstractForwardPreprocessor):
    """The state after each sample: a single number as it is, a larger tensor as its Euclidean norm."""

    @torch.no_grad()
    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take what a reducer returned; None for a sample that it left out."""
        if layer_output is not None:
            state = as_real(layer_output)
            self._record(name, state.reshape(()) if state.numel() == 1 else l2_norm(state))
