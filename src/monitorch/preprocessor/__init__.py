"""Preprocessors: which numbers are computed from a tensor."""

from .abstract import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractModulePreprocessor,
    AbstractPreprocessor,
    AbstractTensorPreprocessor,
)
from .geometry import GradientGeometry, OutputGradientGeometry
from .loss_module import LossModule
from .outputs import OutputNorm
from .parameter_difference_geometry import ParameterDifferenceGeometry
from .parameters import ParameterCond, ParameterNorm
from .rates import GradientActivation, OutputActivation
from .run_numbers import ExplicitCall

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
