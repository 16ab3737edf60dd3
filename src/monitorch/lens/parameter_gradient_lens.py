"""The common half of the two lenses on gradients of parameters."""

from typing import Any

from torch import nn

from ..gatherer import ParameterGradientGatherer
from .base import ParameterLens


class ParameterGradientLens(ParameterLens):
    """Gathers each parameter's gradient; one that is frozen now is watched from when it trains."""

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> ParameterGradientGatherer:
        return ParameterGradientGatherer(parameter, module, [preprocessor], module_name, inspector_state, follow=True)
