"""Preprocessors: which numbers are computed from a tensor."""

from .abstract import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractModulePreprocessor,
    AbstractPreprocessor,
    AbstractTensorPreprocessor,
)
from .explicit_call import ExplicitCall
from .gradient_activation import GradientActivation
from .gradient_geometry import GradientGeometry
from .loss_module import LossModule
from .output_activation import OutputActivation
from .output_gradient_geometry import OutputGradientGeometry
from .output_norm import OutputNorm
from .parameter_cond import ParameterCond
from .parameter_difference_geometry import ParameterDifferenceGeometry
from .parameter_norm import ParameterNorm

__all__ = [
    "AbstractBackwardPreprocessor",
    "AbstractForwardPreprocessor",
    "AbstractModulePreprocessor",
    "AbstractPreprocessor",
    "AbstractTensorPreprocessor",
    "ExplicitCall",
    "GradientActivation",
    "GradientGeometry",
    "LossModule",
    "OutputActivation",
    "OutputGradientGeometry",
    "OutputNorm",
    "ParameterCond",
    "ParameterDifferenceGeometry",
    "ParameterNorm",
]
