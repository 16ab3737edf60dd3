"""Condition numbers of weights: how unequally they scale different directions."""

from ..preprocessor import ParameterCond as ParameterCondPreprocessor
from . import options
from .options import Strings
from .parameter_state_lens import ParameterStateLens
from .views import LayerLines, Source


class ParameterCond(ParameterStateLens):
    """Condition number of each matrix among the parameters: largest over smallest singular value.

    Tensors with more than two dimensions are flattened to (first, rest); vectors have no condition number. Costs one
    singular value decomposition per matrix and tick.

    Args:
        inplace: keep only running moments, instead of every sample.
        parameters: names of the parameters to watch, or ``"all"`` for every one, shown as ``"lstm.weight_ih_l0"``.
        log_scale: logarithmic axis.
        aggregation_method: how the samples of a tick are aggregated to one number.
    """

    _default = ("weight",)

    def __init__(
        self,
        inplace: bool = True,
        parameters: Strings = "weight",
        *,
        log_scale: bool = False,
        aggregation_method: str = "mean",
    ) -> None:
        method = options.point("aggregation_method", aggregation_method, inplace)
        names = options.parameters(parameters)
        conds = {name: ParameterCondPreprocessor([name], inplace) for name in names}
        views = [
            LayerLines(
                options.parameter_title(name, "cond"),
                Source(conds[name], name),
                (method,),
                None,
                logy=log_scale,
                annotate=False,
            )
            for name in names
        ]
        super().__init__(dict(conds), views)
