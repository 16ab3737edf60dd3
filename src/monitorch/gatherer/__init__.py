"""Where tensors come from: hooks on modules, parameters and optimizers."""

from .abstract_gatherer import AbstractGatherer
from .backward_gatherer import BackwardGatherer
from .call_parameter_gatherer import CallParameterGatherer
from .epoch_module_gatherer import EpochModuleGatherer
from .feed_forward_gatherer import FeedForwardGatherer
from .optimizer_step_parameter_gatherer import OptimizerStepParameterGatherer
from .parameter_gradient_gatherer import ParameterGradientGatherer

__all__ = [
    "AbstractGatherer",
    "BackwardGatherer",
    "CallParameterGatherer",
    "EpochModuleGatherer",
    "FeedForwardGatherer",
    "OptimizerStepParameterGatherer",
    "ParameterGradientGatherer",
]
