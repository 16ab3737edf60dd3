"""Whether BatchNorm layers will do in eval mode what they do in training."""

from typing import Any

from torch import nn

from ..gatherer.module_gatherers import BatchNormGatherer
from ..preprocessor.batch_norm import BatchNormShifts
from . import options
from .base import Lens
from .module_distinction import has_running_statistics
from .options import Strings
from .views import LayerLines, Source


class BatchNormStatistics(Lens):
    """How far the running statistics of BatchNorm layers are from those of each batch, in training passes.

    Training normalises with the mean and variance of the batch, eval mode with running ones. *Mean shift* is
    max |mean - running mean| / sqrt(running variance + eps) over channels, *variance ratio* is (variance + eps) /
    (running variance + eps) of the channel where that is farthest from 1. Running statistics are those before the pass.

    How to read it: small batches are noisy, so a shift of a few times 1 / sqrt(n), with n elements per channel, means
    nothing. A shift that stays above 1, or a ratio that stays above 3 or below 1/3, means that the model behaves
    differently in eval mode: the momentum is too small, batches are tiny or of different kinds, or training changes the
    layers before it faster than the statistics follow. At the beginning of training they always do.

    A layer updates its running statistics by the share ``momentum``, so the batch statistics follow from the running
    ones before and after. So each observed step costs a few operations on one number per channel, without reading
    activations or waiting for the device; in a synchronised layer the batch is that of all processes. Idle steps cost
    nothing. Layers without running statistics, in eval mode or with a momentum of 0 show nothing.

    Args:
        inplace: keep only running moments, instead of every sample.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
    """

    _cure = "it has no BatchNorm layers that keep running statistics"

    def __init__(
        self,
        inplace: bool = True,
        *,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = "min-max",
    ) -> None:
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        shifts = BatchNormShifts(inplace)
        views = [
            LayerLines("BatchNorm Mean Shift", Source(shifts, "mean shift"), lines, bands),
            LayerLines("BatchNorm Variance Ratio", Source(shifts, "variance ratio"), lines, bands, logy=True),
        ]
        super().__init__([shifts], views)

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the module if it keeps running statistics."""
        if has_running_statistics(module):
            gatherer = BatchNormGatherer(module, self._preprocessors, module_name, inspector_state)
            self._watch(gatherer, module_name, module_name)

    register_non_leaf_module = register_leaf_module
