"""How large the gradients of each layer's output are, and how their direction changes."""

from typing import Any

from torch import nn

from ..gatherer import BackwardGatherer
from ..preprocessor import OutputGradientGeometry as OutputGradientGeometryPreprocessor
from . import options
from .base import OutputLens
from .module_distinction import isactivation, isnotactivation
from .options import Strings
from .views import geometry_views


class OutputGradientGeometry(OutputLens):
    """Norm of the gradient with respect to each layer's output, and its cosine with the one before.

    A backward pass with ``create_graph=True`` that reaches no parameter, as for a gradient penalty, is not counted.

    Args:
        inplace: keep only running moments, instead of every sample.
        normalize_by_size: divide norms by the root of the number of elements.
        log_scale: logarithmic axis for norms.
        compute_correlation: compare consecutive gradients.
        skip_activation: leave out activation functions.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
        output_index: which part of a tuple or dictionary output to watch; by default its first floating tensor.
        correlation: ``"exact"`` keeps a copy of the last gradient; ``"sketch"`` keeps only a random projection of 4,096
            numbers, so the cosine has a standard error of 0.022, at most 0.031; ``"auto"`` keeps copies while those of
            all lenses take little memory, and sketches of what comes later.
    """

    _SMALL_NORM_TAG_NAME = "Output Gradient Norm"
    _SMALL_PROD_TAG_NAME = "Output Gradient Correlation"
    _cure = "activations are watched with skip_activation=False"

    def __init__(
        self,
        inplace: bool = True,
        normalize_by_size: bool = False,
        log_scale: bool = False,
        compute_correlation: bool = True,
        skip_activation: bool = True,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = ("std", "min-max"),
        *,
        output_index: int | str | None = None,
        correlation: str = "exact",
    ) -> None:
        how = options.comparison("correlation", correlation)
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        geometry = OutputGradientGeometryPreprocessor(
            compute_correlation, normalize_by_size, inplace, 0.0, comparison=how
        )
        self._output_index = output_index
        kinds = [isnotactivation] if skip_activation else [isnotactivation, isactivation]
        views = geometry_views("Output Gradient", geometry, lines, bands, log_scale)
        super().__init__(options.LayerChoice(kinds), [geometry], views)

    def _gather(self, module: nn.Module, module_name: str, inspector_state: Any) -> BackwardGatherer:
        index = self._output_index
        return BackwardGatherer(module, self._preprocessors, module_name, inspector_state, output_index=index)
