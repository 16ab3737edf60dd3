"""How many neurons of each layer are active, and how many are dead."""

from typing import Any

from torch import nn

from ..gatherer import FeedForwardGatherer
from ..gatherer.channel_layout import ChannelLayout
from ..preprocessor import OutputActivation as OutputActivationPreprocessor
from . import options
from .base import OutputLens
from .module_distinction import isactivation
from .options import Classes
from .views import LayerRates, View, WorstRates


class OutputActivation(OutputLens):
    """Share of outputs that are not zero, and of channels that are zero for a whole batch.

    Args:
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too.
        evaluation_from_grad: what training is: gradients on (True), train mode (False), or both (None).
        activation: watch all activation functions.
        dropout: watch all dropouts.
        include: further classes of layers to watch.
        exclude: classes of layers to leave out.
        channel_last: whether channels are the last dimension; ``"auto"`` decides by the layer with weights before.
        warning_plot: also show the worst rates of all layers.
        activation_aggregation: how the rates of a tick are aggregated to one.
        death_aggregation: the same for death rates.
        output_index: which part of a tuple or dictionary output to measure; by default its first floating tensor.
        exact_death: with several processes, count a channel as dead only if it is dead in all of them; by default the
            death rate is the mean over processes. It costs one more pass over each output.
    """

    _SMALL_TAG_NAME = "Output Activations"
    _BIG_TAG_NAME = "Warning Output Activations"

    def __init__(
        self,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool | None = None,
        activation: bool = True,
        dropout: bool = True,
        include: Classes = (),
        exclude: Classes = (),
        channel_last: bool | str = "auto",
        warning_plot: bool = True,
        activation_aggregation: str = "mean",
        death_aggregation: str = "mean",
        *,
        output_index: int | str | None = None,
        exact_death: bool = False,
    ) -> None:
        self._layout = ChannelLayout() if options.channel_last(channel_last) == "auto" else None
        rates = OutputActivationPreprocessor(
            *(True, inplace, record_eval, evaluation_from_grad),
            channel_last=self._layout or bool(channel_last),
            output_index=output_index,
            exact_death=exact_death,
        )
        methods = options.rate_methods(activation_aggregation, death_aggregation, inplace)
        small = LayerRates(self._SMALL_TAG_NAME, rates, *methods)
        views: list[View] = [small, WorstRates(self._BIG_TAG_NAME, [small])] if warning_plot else [small]
        kinds = options.kinds(activation=activation, dropout=dropout)
        super().__init__(options.LayerChoice(kinds, include, exclude), [rates], views)

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the module if it is chosen; also notice layers with weights, which tell the layout of what follows."""
        if self._layout is not None:
            for name, part in module.named_modules():
                if not isactivation(part) and "parametrizations" not in name.split("."):
                    self._layout.watch(part, getattr(inspector_state, "engine", None))
        super().register_leaf_module(module, module_name, inspector_state)

    def register_non_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """The same for a module with children, such as attention with its own weights."""
        if self._layout is not None:
            self._layout.watch(module, getattr(inspector_state, "engine", None))
        super().register_non_leaf_module(module, module_name, inspector_state)

    def detach_from_module(self) -> None:
        """Also forget the layouts."""
        super().detach_from_module()
        if self._layout is not None:
            self._layout.detach()

    def _gather(self, module: nn.Module, module_name: str, inspector_state: Any) -> FeedForwardGatherer:
        if self._layout is not None:
            self._layout.expect(module_name)
        return FeedForwardGatherer(module, self._preprocessors, module_name, inspector_state)
