"""A whole module, whenever somebody asks."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..preprocessor import AbstractModulePreprocessor
from .abstract_gatherer import Gatherer, State


class EpochModuleGatherer(Gatherer):
    """Hands over a module each time it is called."""

    def __init__(
        self, module: nn.Module, preprocessors: Sequence[AbstractModulePreprocessor], name: str, inspector_state: State
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module: nn.Module | None = module

    def __call__(self) -> None:
        """Hand over the module as it is now."""
        self._hand_over(self._module)

    def detach(self) -> None:
        """Let go of the module."""
        super().detach()
        self._module = None

    def _process(self, preprocessor: AbstractModulePreprocessor, *data: Any) -> None:
        preprocessor.process_module(self._name, *data)
