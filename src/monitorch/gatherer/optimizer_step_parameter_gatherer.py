"""A parameter, just before and just after each step of an optimizer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.optimizers import OptimizerSteps, Owned
from ..preprocessor import AbstractTensorPreprocessor
from .abstract_gatherer import GathererState
from .call_parameter_gatherer import CallParameterGatherer


class OptimizerStepParameterGatherer(CallParameterGatherer):
    """Passes on one parameter after each step, and shows it to the preprocessors before the step.

    So N steps give N changes, each measured over one step, also after a pause in recording.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        parameter: str,
        preprocessors: Sequence[AbstractTensorPreprocessor],
        name: str,
        inspector_state: GathererState,
    ) -> None:
        super().__init__(module, parameter, preprocessors, name, inspector_state)
        self._optimizer = optimizer
        engine = self._engine()
        if engine is not None:
            watch = partial(engine.updates(optimizer).watch, module, parameter, name, self)
            self._handles += map(watch, self._preprocessors)
        else:
            steps = OptimizerSteps(optimizer, inspector_state)
            steps.before.append(self._before_step)
            steps.after.append(self)
            self._handles.append(steps)

    def _current_parameter(self) -> Tensor | None:
        """The parameter, if the optimizer has it: its steps do not change others."""
        parameter = super()._current_parameter()
        return parameter if parameter is not None and parameter in Owned(self._optimizer) else None

    def _before_step(self, *_: Any) -> None:
        parameter = self._current_parameter()
        if parameter is not None and self._wants_data():
            for preprocessor in self._preprocessors:
                self.guarded(preprocessor.remember, self.name, parameter)
