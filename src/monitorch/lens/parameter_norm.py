"""How large each parameter is."""

from ..preprocessor import ParameterNorm as ParameterNormPreprocessor
from . import options
from .options import Strings
from .parameter_state_lens import ParameterStateLens
from .views import LayerLines, Shares, Source


class ParameterNorm(ParameterStateLens):
    """Norm of each parameter.

    Args:
        inplace: keep only running moments, instead of every sample.
        parameters: names of the parameters to watch, or ``"all"`` for every one, shown as ``"lstm.weight_ih_l0"``.
        normalize_by_size: divide by the root of the number of elements.
        log_scale: logarithmic axis.
        comparison_plot: also show each layer's share in the sum of all.
        aggregation_method: how the samples of a tick are aggregated to one number.
    """

    def __init__(
        self,
        inplace: bool = True,
        parameters: Strings = ("weight", "bias"),
        normalize_by_size: bool = False,
        log_scale: bool = False,
        comparison_plot: bool = True,
        aggregation_method: str = "mean",
    ) -> None:
        method = options.point("aggregation_method", aggregation_method, inplace)
        names = options.parameters(parameters)
        norms = {name: ParameterNormPreprocessor([name], normalize_by_size, inplace) for name in names}
        sources = {name: Source(norms[name], name) for name in names}
        small = [
            LayerLines(options.parameter_title(name, "norm"), source, (method,), None, logy=log_scale, annotate=False)
            for name, source in sources.items()
        ]
        title = "Log Norm Comparison" if log_scale else "Norm Comparison"
        shares = [Shares(options.parameter_title(name, title), source, method) for name, source in sources.items()]
        super().__init__(dict(norms), [*small, *shares] if comparison_plot else small)
