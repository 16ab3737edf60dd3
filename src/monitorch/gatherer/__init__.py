"""Where tensors come from: hooks on modules, parameters and optimizers."""

from .abstract_gatherer import AbstractGatherer
from .backward_gatherer import BackwardGatherer
from .feed_forward_gatherer import FeedForwardGatherer
from .parameters import (
    CallParameterGatherer,
    EpochModuleGatherer,
    OptimizerStepParameterGatherer,
    ParameterGradientGatherer,
)

__all__ = [
    "AbstractGatherer",
    "BackwardGatherer",
    "CallParameterGatherer",
    "EpochModuleGatherer",
    "FeedForwardGatherer",
    "OptimizerStepParameterGatherer",
    "ParameterGradientGatherer",
]
