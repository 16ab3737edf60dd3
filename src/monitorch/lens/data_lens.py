"""The common part of the lenses on data: tensors that belong to no layer."""

from abc import abstractmethod
from typing import Any

from torch import nn

from ..engine.engine import Engine
from ..gatherer.abstract_gatherer import Gatherer
from .base import Lens


class DataLens(Lens):
    """Watches the model as a whole; its numbers are named after data instead of layers."""

    @abstractmethod
    def _gather(self, engine: Engine, model: nn.Module, inspector_state: Any) -> Gatherer:
        """Begin to read data."""

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the whole model."""
        if module_name == "":
            gatherer = self._gather(inspector_state.engine, module, inspector_state)
            self._watch(gatherer, gatherer.name, module_name)

    register_non_leaf_module = register_leaf_module

    def finish_attach(self) -> None:
        """Do nothing: the names are only known once data arrive."""

    def finalize_epoch(self) -> None:
        """Read every view, for all names that have come so far."""
        self._layers = dict.fromkeys(self._preprocessors[0].names)
        super().finalize_epoch()
