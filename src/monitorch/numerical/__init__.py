"""Arithmetic: accumulators and how to read them, geometry, activation rates."""

from .accumulator import Accumulator, RunningValue
from .activation_computation import reduce_activation_to_activation_rates
from .extraction import extract_point, extract_range, parse_range_name
from .geometry_computation import GeometryComputation
from .running_mean_var import RunningMeanVar, finish_sync_rmv_or_error, start_sync_rmv_or_error

__all__ = [
    "Accumulator",
    "GeometryComputation",
    "RunningMeanVar",
    "RunningValue",
    "extract_point",
    "extract_range",
    "finish_sync_rmv_or_error",
    "parse_range_name",
    "reduce_activation_to_activation_rates",
    "start_sync_rmv_or_error",
]
