"""The common half of the two lenses on gradients of parameters."""

from typing import Any

from torch import nn

from ..gatherer import ParameterGradientGatherer
from .parameter_lens import ParameterLens


class ParameterGradientLens(ParameterLens):
    """Gathers each parameter's gradient; one that is frozen now is watched from when it trains."""

    def reset_epoch(self) -> None:
        """Look for parameters that train now in layers whose own forward never runs."""
        super().reset_epoch()
        for gatherer in self._gatherers:
            gatherer.refresh()

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> ParameterGradientGatherer:
        return ParameterGradientGatherer(parameter, module, [preprocessor], module_name, inspector_state, follow=True)
