"""Inputs and outputs of a module, at each forward pass."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..preprocessor import AbstractForwardPreprocessor
from .abstract_gatherer import Gatherer, State, first_input
from .compilation import outside_graph
from .recomputation import RecomputationFilter


class FeedForwardGatherer(Gatherer):
    """Hands over what goes into a module and what comes out."""

    def __init__(
        self, module: nn.Module, preprocessors: Sequence[AbstractForwardPreprocessor], name: str, inspector_state: State
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._passes = RecomputationFilter()
        self._handles.append(module.register_forward_hook(self, with_kwargs=True))

    @outside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Be the forward hook."""
        if self._passes.counts():
            self._hand_over(module, first_input(args, kwargs), output)

    def _process(self, preprocessor: AbstractForwardPreprocessor, *data: Any) -> None:
        preprocessor.process_fw(self._name, *data)
