"""How large each layer's output is."""

from typing import Any

from torch import nn

from ..gatherer import FeedForwardGatherer
from ..preprocessor import OutputNorm as OutputNormPreprocessor
from . import options
from .base import OutputLens
from .options import Classes, Strings
from .views import LayerLines, Shares, Source, View


class OutputNorm(OutputLens):
    """Norm of each sample's output, averaged over the batch.

    Args:
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too.
        evaluation_from_grad: what training is: gradients on (True), train mode (False), or both (None).
        normalize_by_size: divide by the root of the number of elements of one sample.
        log_scale: logarithmic axis.
        activation: watch all activation functions.
        include: further classes of layers to watch.
        exclude: classes of layers to leave out.
        channel_last: accepted for symmetry with OutputActivation; norms do not depend on it.
        comparison_plot: also show each layer's share in the sum of all.
        comparison_aggregation: which aggregated number is compared; by default the first line.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
        output_index: which part of a tuple or dictionary output to measure; by default its first floating tensor.
    """

    _SMALL_TAG_NAME = "Output Norm"

    def __init__(
        self,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool | None = None,
        normalize_by_size: bool = False,
        log_scale: bool = False,
        activation: bool = True,
        include: Classes = (),
        exclude: Classes = (),
        channel_last: bool | str = "auto",
        comparison_plot: bool = True,
        comparison_aggregation: str | None = None,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = ("std", "min-max"),
        *,
        output_index: int | str | None = None,
    ) -> None:
        options.channel_last(channel_last)
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        compared = options.point("comparison_aggregation", comparison_aggregation or lines[0], inplace)
        norms = OutputNormPreprocessor(
            normalize_by_size, inplace, record_eval, evaluation_from_grad, output_index=output_index
        )
        source = Source(norms, "value")
        views: list[View] = [LayerLines(self._SMALL_TAG_NAME, source, lines, bands, logy=log_scale)]
        if comparison_plot:
            log = " Log" if log_scale else ""
            views.append(Shares(f"{compared} Output{log} Norm Comparison".title(), source, compared))
        super().__init__(options.LayerChoice(options.kinds(activation=activation), include, exclude), [norms], views)

    def _gather(self, module: nn.Module, module_name: str, inspector_state: Any) -> FeedForwardGatherer:
        return FeedForwardGatherer(module, self._preprocessors, module_name, inspector_state)
