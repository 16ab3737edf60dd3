"""How large each step is, compared with the parameter that it changes."""

from torch.optim import Optimizer

from ..preprocessor.parameter_difference_geometry import ParameterDifferenceRatio
from . import options
from .options import Strings
from .parameter_update_lens import ParameterUpdateLens
from .views import LayerLines, Source


class UpdateRatio(ParameterUpdateLens):
    """Norm of each parameter's change in a step, divided by the norm of the parameter before that step.

    ``|w_after - w_before| / |w_before|``, one sample for each parameter and observed step. A parameter whose norm is 0
    before the step, such as a bias that starts at 0, has no sample for it.

    How to read it: for weight matrices about 1e-3 is usual. Above 0.1 a few steps replace what was learned: the
    learning rate is too high, or there is no warm-up. Below 3e-5 the parameter hardly moves: the rate is too low for
    it, or no gradient reaches it. 0 means that it did not move at all. Layers that differ by several powers of ten do
    not learn at the same pace. Biases and scales are often small, so larger ratios are usual for them. If weights grow,
    the ratio falls although steps stay as large, so look at the first steps as well.

    Cost: one more pass over the parameters before each observed step. The change itself is shared with
    :class:`ParameterUpdateGeometry`, if both keep parameters in the same way.

    Args:
        optimizer: the optimizer whose steps to measure; with None call ``inspect_update()`` after each step.
        inplace: keep only running moments, instead of every sample.
        parameters: names of the parameters to watch, or ``"all"`` for every one, shown as ``"lstm.weight_ih_l0"``.
        log_scale: logarithmic axis.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
        updates: what is kept of a parameter during a step: an ``"exact"`` copy; a ``"sketch"``, so that the ratio has a
            standard error of 1.1 % of itself, at most 1.6 %; ``"auto"`` keeps copies while those of all lenses take
            little memory. The norm of the parameter is always exact.
    """

    def __init__(
        self,
        optimizer: Optimizer | None,
        inplace: bool = True,
        parameters: Strings = ("weight", "bias"),
        *,
        log_scale: bool = True,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = "min-max",
        updates: str = "exact",
    ) -> None:
        how = options.comparison("updates", updates)
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        names = options.parameters(parameters)
        ratios = {name: ParameterDifferenceRatio(inplace, comparison=how) for name in names}
        views = [
            LayerLines(
                options.parameter_title(name, "update ratio"),
                Source(ratios[name], "ratio"),
                lines,
                bands,
                logy=log_scale,
            )
            for name in names
        ]
        self.optimizer = options.optimizer(optimizer)
        super().__init__(dict(ratios), views)
