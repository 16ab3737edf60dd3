"""How far each parameter moves in a step, and how the direction changes."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine.optimizers import unwrap_optimizer
from ..errors import OptionError
from ..gatherer import CallParameterGatherer, OptimizerStepParameterGatherer
from ..preprocessor import ParameterDifferenceGeometry
from .options import with_options_of
from .parameter_geometry import ParameterGeometry


class ParameterUpdateGeometry(ParameterGeometry):
    """Norm of each parameter's change in a step, and its cosine with the change before.

    Args:
        optimizer: the optimizer whose steps to measure; with None call :meth:`inspect_update` after each step.

    The other options are those of ParameterGradientGeometry. With ``correlation="sketch"``, and with ``"auto"`` where
    that takes sketches, there are no copies of parameters either: a change is estimated from sketches before and after
    the step, so that its norm has a standard error of 1.1 %, at most 1.6 %. Without an optimizer updates are always
    exact.
    """

    _what = "update"
    _preprocessor = ParameterDifferenceGeometry

    @with_options_of(ParameterGeometry)
    def __init__(self, optimizer: Optimizer | None, *options: Any, **named_options: Any) -> None:
        optimizer = unwrap_optimizer(optimizer).optimizer
        has_hooks = hasattr(optimizer, "register_step_post_hook") and not isinstance(optimizer, type)
        if optimizer is not None and not has_hooks:
            cure = "pass None and call inspect_update() after each step"
            raise OptionError(f"{optimizer!r} is not a torch.optim.Optimizer object: {cure}")
        super().__init__(*options, **named_options)
        self.optimizer = optimizer

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
