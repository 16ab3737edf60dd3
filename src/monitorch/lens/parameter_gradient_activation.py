"""How many neurons of each parameter receive a gradient."""

from ..preprocessor import GradientActivation
from . import options
from .options import Strings
from .parameter_gradient_lens import ParameterGradientLens
from .views import LayerRates, View, WorstRates


class ParameterGradientActivation(ParameterGradientLens):
    """Share of gradient entries that are not zero, and of rows that are zero throughout.

    Args:
        inplace: keep moments only, instead of every sample.
        warning_plot: also show the worst rates of all layers.
        parameters: names of the parameters to look at, or ``"all"``: every one, shown as ``"lstm.weight_ih_l0"``.
        activation_aggregation: how the rates of a tick become one.
        death_aggregation: the same for death rates.
    """

    _BIG_TAG_NAME = "Warning Gradient Activations"

    def __init__(
        self,
        inplace: bool = True,
        warning_plot: bool = True,
        parameters: Strings = ("weight", "bias"),
        activation_aggregation: str = "mean",
        death_aggregation: str = "mean",
    ) -> None:
        methods = options.rate_methods(activation_aggregation, death_aggregation, inplace)
        names = options.parameters(parameters)
        rates = {parameter: GradientActivation(death=True, inplace=inplace) for parameter in names}
        small = [
            LayerRates(options.parameter_title(name, "gradient activation"), rates[name], *methods) for name in names
        ]
        worst: list[View] = [WorstRates(self._BIG_TAG_NAME, small)] if warning_plot else []
        super().__init__(dict(rates), [*small, *worst])
