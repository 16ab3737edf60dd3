"""Arithmetic: accumulators and how to read them, geometry, activation rates."""

from importlib import import_module
from typing import Any

from .activation_computation import reduce_activation_to_activation_rates
from .extraction import extract_point, extract_range, parse_range_name
from .series import (
    Accumulator,
    RunningMeanVar,
    RunningValue,
    finish_sync_rmv_or_error,
    start_sync_rmv_or_error,
)

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


def __getattr__(name: str) -> Any:
    """``GeometryComputation`` is found on first use: its numbers are those of the preprocessors, above this package."""
    if name == "GeometryComputation":
        return import_module("monitorch.preprocessor.geometry").GeometryComputation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
