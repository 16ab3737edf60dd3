"""How healthy activations are: zeros, saturation, spread, and units that are dead."""

from typing import Any

from torch import nn

from ..gatherer.activation_gatherer import ActivationGatherer, ActivationLayers
from ..preprocessor.activations import BATCH_SPREAD, DEATH, SATURATION, UNIT_SPREAD, ZEROS, Activations
from . import options
from .base import Lens
from .module_distinction import isactivation
from .options import Strings
from .views import LayerLines, Source


class ActivationHealth(Lens):
    """Zeros, saturation, spread and dead units of activation functions: modules, and calls such as ``F.relu(x)``.

    *Zeros* is the share of elements that are exactly 0. About half is normal after ReLU.

    *Saturation* is the share of elements at the bounds of the function, where its gradient vanishes: within 0.01 of
    them for sigmoid (0 and 1), tanh and softsign (-1 and 1); exactly at them for hardsigmoid, hardtanh, ReLU6 and
    clamp. A lower bound of 0 that is set by hardtanh, ReLU6 or clamp is that of ReLU: it counts as zeros. Other
    functions have no such number. Above 0.5 the layer learns little: weights or inputs are too large.

    *Dead units* is the share of units that were 0 all the time in a **window** of at least 256 batch entries, or of
    16,384 positions from four observed steps. Each full window is one sample. One batch is too few: a unit that answers
    to one input in a hundred is 0 for most batches, and with a batch size of 1 half of all units would look dead. Above
    0.5 lower the learning rate, or look for a large negative bias; look at the first such layer, others follow it.

    *Batch spread* is the mean, over all elements of an entry, of the standard deviation over the batch, divided by the
    root mean square of all elements. Near 0 all inputs give the same: the layer has collapsed. *Unit spread* is the
    same with units and batch exchanged: near 0 all units give the same, as after a constant initialisation. With a
    batch, or a layer, of one there is no such number; if everything is 0, it is 0.

    Results with more than a million elements are sampled: evenly spread entries and positions, with all units, at other
    places in each step.

    Calls are named after the last layer with weights that ran before them in the same module, else after the module;
    further ones before the next such layer get numbers: ``fc``, ``fc 2``. Covered are torch's activation modules and
    functions, including methods and in-place versions, and clamp; not softmax and dropout. A formula written by hand
    shows the functions it is made of. The first dimension is the batch. With several processes, the samples of all are
    pooled. Dead units is then the mean of their shares, which is at least the share that is dead everywhere. With
    ``exact_death=True`` it is that share: one sample per tick, over all windows of all processes.

    Compiled models are seen, without a graph break. **Inside compiled graphs**, hardsigmoid, hardswish and checkpointed
    parts are not seen; nor is, with a warning, a model called inside a larger compiled function, or one that is a plain
    ``nn.Sequential``.

    An observed step costs about ten operations on each activation, and a microsecond per torch call. Nothing waits for
    the device. Idle steps cost nothing.

    Args:
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too.
        evaluation_from_grad: what training is: gradients on (True), train mode (False), or both (None).
        channel_last: whether units are the last dimension, or dimension 1; ``"auto"`` decides by the layer with weights
            before.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
        in_graphs: also look into compiled graphs, by adding operators to them. False leaves graphs unchanged, as the
            standard lens does: then nothing is shown for a compiled model.
        exact_death: with several processes, count a unit as dead only if it was never active in any of them.
    """

    def __init__(
        self,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool | None = None,
        channel_last: bool | str = "auto",
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = "min-max",
        in_graphs: bool = True,
        exact_death: bool = False,
    ) -> None:
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        self._calls = ActivationLayers(None if options.channel_last(channel_last) == "auto" else bool(channel_last))
        health = Activations(inplace, record_eval, evaluation_from_grad, in_graphs, exact_death)
        shares = {"Activation Zeros": ZEROS, "Activation Saturation": SATURATION, "Activation Dead Units": DEATH}
        spreads = {"Activation Batch Spread": BATCH_SPREAD, "Activation Unit Spread": UNIT_SPREAD}
        views = [LayerLines(tag, Source(health, name), lines, bands, ylim=(0, 1)) for tag, name in shares.items()]
        views += [LayerLines(tag, Source(health, name), lines, bands) for tag, name in spreads.items()]
        super().__init__([health], views)

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Listen to every module: which of them call activation functions is known when they do."""
        common = (module, self._preprocessors, module_name, inspector_state)
        gatherer = ActivationGatherer(*common, self._calls, is_activation=isactivation(module))
        self._watch(gatherer, module_name, module_name)

    register_non_leaf_module = register_leaf_module

    def finalize_epoch(self) -> None:
        """Read every view, also for calls with numbers."""
        self._layers = {name: None for layer in self._layers for name in self._calls.names(layer)}
        for health in self._preprocessors:
            health.take_deaths()
        super().finalize_epoch()

    def detach_from_module(self) -> None:
        """Also forget the names of calls."""
        super().detach_from_module()
        self._calls.forget()
