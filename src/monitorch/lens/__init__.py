"""Lenses: each shows one aspect of a model in training."""

from .abstract_lens import AbstractLens
from .activation_health import ActivationHealth
from .attention import Attention
from .attribute import Attribute
from .batch_norm_statistics import BatchNormStatistics
from .distribution import Distribution
from .gradient_norm import GradientNorm
from .input_statistics import InputStatistics
from .loss_metrics import LossMetrics
from .non_finite import NonFinite
from .output_activation import OutputActivation
from .output_gradient_geometry import OutputGradientGeometry
from .output_norm import OutputNorm
from .parameter_cond import ParameterCond
from .parameter_facts import ParameterFacts
from .parameter_gradient_activation import ParameterGradientActivation
from .parameter_gradient_geometry import ParameterGradientGeometry
from .parameter_norm import ParameterNorm
from .parameter_update_geometry import ParameterUpdateGeometry
from .routing import Routing
from .signal_to_noise import SignalToNoise
from .spectral_norm import SpectralNorm
from .target_statistics import TargetStatistics
from .update_ratio import UpdateRatio

__all__ = [
    "AbstractLens",
    "ActivationHealth",
    "Attention",
    "Attribute",
    "BatchNormStatistics",
    "Distribution",
    "GradientNorm",
    "InputStatistics",
    "LossMetrics",
    "NonFinite",
    "OutputActivation",
    "OutputGradientGeometry",
    "OutputNorm",
    "ParameterCond",
    "ParameterFacts",
    "ParameterGradientActivation",
    "ParameterGradientGeometry",
    "ParameterNorm",
    "ParameterUpdateGeometry",
    "Routing",
    "SignalToNoise",
    "SpectralNorm",
    "TargetStatistics",
    "UpdateRatio",
]
