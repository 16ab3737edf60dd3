"""A parameter, just before and just after each step of an optimizer."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..preprocessor import AbstractTensorPreprocessor
from ..preprocessor.parameters import find_parameter
from .abstract_gatherer import State
from .call_parameter_gatherer import CallParameterGatherer


class OptimizerStepParameterGatherer(CallParameterGatherer):
    """Hands over one parameter after each step, and shows it to the preprocessors before the step.

    So N steps give N changes, each measured over one step, also after a time when nothing was recorded.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        parameter: str,
        preprocessors: Sequence[AbstractTensorPreprocessor],
        name: str,
        inspector_state: State,
    ) -> None:
        super().__init__(module, parameter, preprocessors, name, inspector_state)
        self._handles.append(optimizer.register_step_pre_hook(self._before_step))
        self._handles.append(optimizer.register_step_post_hook(self))

    def _before_step(self, *_: Any) -> None:
        parameter = find_parameter(self._module, self._parameter) if self._module is not None else None
        if parameter is not None and self._wants_data():
            for preprocessor in self._preprocessors:
                self._guarded(preprocessor.remember, self._name, parameter)
