"""How many neurons of each parameter receive a gradient."""

from typing import Any

from torch import nn

from ..gatherer import ParameterGradientGatherer
from ..preprocessor import GradientActivation
from . import options
from .options import Strings
from .parameter_gradient_lens import ParameterGradientLens
from .views import LayerRates, View, WorstRates


class ParameterGradientActivation(ParameterGradientLens):
    """Share of gradient entries that are not zero, and of rows that are all zero.

    Rows of an embedding that a batch does not look up are not dead. So for embeddings ``rows_used`` is shown instead of
    a death rate, and the activation rate is that of the used rows.

    Args:
        inplace: keep only running moments, instead of every sample.
        warning_plot: also show the worst rates of all layers.
        parameters: names of the parameters to watch, or ``"all"`` for every one, shown as ``"lstm.weight_ih_l0"``.
        activation_aggregation: how the rates of a tick are aggregated to one.
        death_aggregation: the same for death rates.
        eps: entries up to this absolute value count as zero.
    """

    _BIG_TAG_NAME = "Warning Gradient Activations"

    def __init__(
        self,
        inplace: bool = True,
        warning_plot: bool = True,
        parameters: Strings = ("weight", "bias"),
        activation_aggregation: str = "mean",
        death_aggregation: str = "mean",
        *,
        eps: float = 0.0,
    ) -> None:
        options.not_negative("eps", eps)
        methods = options.rate_methods(activation_aggregation, death_aggregation, inplace)
        names = options.parameters(parameters)
        rates = {parameter: GradientActivation(death=True, inplace=inplace, eps=eps) for parameter in names}
        small = [
            LayerRates(options.parameter_title(name, "gradient activation"), rates[name], *methods) for name in names
        ]
        worst: list[View] = [WorstRates(self._BIG_TAG_NAME, small)] if warning_plot else []
        super().__init__(dict(rates), [*small, *worst])

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> ParameterGradientGatherer:
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            preprocessor.lookups.add(self._layer(module_name, parameter))
        return super()._gather(module, parameter, preprocessor, module_name, inspector_state)
