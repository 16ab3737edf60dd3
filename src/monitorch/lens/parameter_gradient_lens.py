"""The common part of the lenses on gradients of parameters."""

from typing import Any

from torch import nn

from ..gatherer import ParameterGradientGatherer
from .parameter_lens import ParameterLens


class ParameterGradientLens(ParameterLens):
    """Gathers each parameter's gradient; a frozen parameter is watched as soon as it trains."""

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> ParameterGradientGatherer:
        return ParameterGradientGatherer(parameter, module, [preprocessor], module_name, inspector_state, follow=True)
