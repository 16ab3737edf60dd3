"""The common part of the two lenses on how steps change parameters."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..gatherer import CallParameterGatherer, OptimizerStepParameterGatherer
from .parameter_lens import ParameterLens


class ParameterUpdateLens(ParameterLens):
    """Gathers each parameter around the steps of an optimizer; without one, whenever it is told that a step is over."""

    optimizer: Optimizer | None = None

    def inspect_update(self) -> None:
        """Measure how far parameters have moved since the last call."""
        for gatherer in self._gatherers:
            gatherer()

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> CallParameterGatherer:
        data = (parameter, [preprocessor], module_name, inspector_state)
        if self.optimizer is None:
            return CallParameterGatherer(module, *data)
        return OptimizerStepParameterGatherer(module, self.optimizer, *data)
