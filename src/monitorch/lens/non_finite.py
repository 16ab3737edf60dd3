"""How many numbers are NaN or infinite, and where."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine.parameters import own_parameters
from ..engine.step_checks import StepCheck
from ..gatherer import BackwardGatherer, FeedForwardGatherer, ParameterGradientGatherer
from ..gatherer.abstract_gatherer import Gatherer
from ..preprocessor.non_finite import GradientNonFinite, OutputGradientNonFinite, OutputNonFinite, ParameterNonFinite
from . import options
from .module_distinction import isactivation, isnotactivation
from .options import ALL
from .parameter_state_lens import ParameterStateLens
from .views import LayerLines, Source


class NonFinite(ParameterStateLens):
    """The number of NaN and infinite elements in each layer's output and parameters, and in their gradients.

    Shows the largest count of each tensor since the last tick; it should be 0. Outputs are those of activations and of
    layers with parameters, in training; output gradients are those of layers other than activations; parameters are
    read at ticks. Tensors that other lenses measure are not read again, except parameters.

    This does not show which tensor was first, since all others follow within a step: ``inspector.first_not_finite``
    says it, with this lens or any other.

    Args:
        optimizer: check gradients and parameters also at steps of this optimizer that are not observed, so that
            ``first_not_finite`` knows what was first with ``every=`` and ``budget=``, too. That reads both once per
            step; nothing of these steps is shown.
    """

    def __init__(self, optimizer: Optimizer | None = None) -> None:
        self.optimizer = options.optimizer(optimizer, "pass None to look at observed steps only")
        self._check: StepCheck | None = None
        self._of_outputs = OutputNonFinite()
        self._of_output_gradients = OutputGradientNonFinite(correlation=False, normalize=False, inplace=True)
        self._of_gradients = GradientNonFinite(correlation=False, normalize=False, inplace=True)
        self._of_parameters = ParameterNonFinite([ALL], normalize=False, inplace=True)
        views = [
            LayerLines(tag, source, ["max"], None)
            for tag, source in (
                ("Non-Finite Outputs", Source(self._of_outputs, "count")),
                ("Non-Finite Output Gradients", Source(self._of_output_gradients, "count")),
                ("Non-Finite Gradients", Source(self._of_gradients, "count")),
                ("Non-Finite Parameters", Source(self._of_parameters, ALL)),
            )
        ]
        super().__init__({ALL: self._of_parameters}, views)
        self._preprocessors = (self._of_outputs, self._of_output_gradients, self._of_gradients, self._of_parameters)

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the output, its gradient, and the parameters."""
        self._watch_output(module, module_name, inspector_state)
        if isnotactivation(module):
            gradients = BackwardGatherer(module, [self._of_output_gradients], module_name, inspector_state)
            self._watch(gradients, module_name, module_name)
        super().register_leaf_module(module, module_name, inspector_state)

    def register_non_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch its own parameters, and its output if it has any."""
        self._watch_output(module, module_name, inspector_state)
        super().register_leaf_module(module, module_name, inspector_state)

    def detach_from_module(self) -> None:
        """Also end the check of steps."""
        if self._check is not None:
            self._check.close()
        self._check = None
        super().detach_from_module()

    def _watch_output(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        if isactivation(module) or own_parameters(module):
            outputs = FeedForwardGatherer(module, [self._of_outputs], module_name, inspector_state)
            self._watch(outputs, module_name, module_name)

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> Gatherer:
        of_gradient = ([self._of_gradients], module_name, inspector_state)
        gradient = ParameterGradientGatherer(parameter, module, *of_gradient, follow=True)
        self._watch(gradient, self._layer(module_name, parameter), module_name)
        engine = inspector_state.engine
        if self.optimizer is not None and engine is not None:
            self._check = self._check or engine.check_steps(self.optimizer)
            self._check.watch(module, parameter, module_name)
        return super()._gather(module, parameter, preprocessor, module_name, inspector_state)
