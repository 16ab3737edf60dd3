"""How the elements of outputs, gradients or parameters are distributed."""

from typing import Any

from torch import nn

from ..engine.parameters import own_parameters
from ..errors import OptionError
from ..gatherer import FeedForwardGatherer, ParameterGradientGatherer
from ..gatherer.abstract_gatherer import Gatherer
from ..preprocessor.data import RANGE
from ..preprocessor.distribution import EDGES, Histograms
from .module_distinction import isactivation
from .options import ALL
from .parameter_state_lens import ParameterStateLens
from .views import ComputedLines, LayerLines, Source

OUTPUT, GRADIENT, PARAMETER = "output", "gradient", "parameter"
BANDS = (("q01", "q99"), ("q05", "q95"), ("q25", "q75"))


class Distribution(ParameterStateLens):
    """Quantiles of the elements of each tensor of a kind: its median, and bands around it.

    All elements since the last tick are counted in a histogram whose bins come from the bits of a float32: sign,
    exponent and the first two bits of the mantissa. Four bins for each power of two from 2^-43 (1.1e-13) to 2^21
    (2.1e6), for both signs, are 512; what is outside goes into the outermost ones, and 0, infinities and NaN have bins
    of their own. So histograms of steps and of processes add up exactly, and the middle of a bin is within 12.5 % of
    everything in it.

    A quantile is that of the finite elements, as NumPy has it, with the elements of a bin evenly spread over it. It is
    off by less than a bin, which is a quarter of its size at most, and by far less where the distribution is smooth. It
    is never outside of the extremes, which are exact and have a plot of their own. The counts of 0, infinite and NaN
    elements are exact as well.

    How to read it: a ribbon that becomes wide, with a median that stays, is a scale that grows. Outer bands that move
    away from the inner one mean outliers, which 16-bit floats handle badly. A ribbon that closes at 0 is a dying layer
    or a vanishing gradient.

    At most 65,536 elements of each tensor are read, in 256 evenly spread blocks; extremes and counts cover all
    elements. Each observed step costs a copy of these, about 30 operations for all tensors of the same size together
    and, of larger tensors, one pass over the whole one, two on a CPU. Nothing waits for the device, and compiled
    graphs stay whole. Up to 4 MiB of copies are batched together.

    Args:
        what: ``"output"``: outputs of activations and of layers with parameters, in training passes; ``"gradient"``:
            gradients of parameters, as each backward pass leaves them, before clipping and unscaling and before
            processes average them; ``"parameter"``: parameters, once per tick.
    """

    def __init__(self, what: str = OUTPUT) -> None:
        if what not in (OUTPUT, GRADIENT, PARAMETER):
            raise OptionError.unknown("what", what, (OUTPUT, GRADIENT, PARAMETER))
        self.what = what
        histograms, title = Histograms(), what.title()
        views = [
            ComputedLines(f"{title} Distribution", histograms.quantiles, bands=BANDS, bins=(EDGES, histograms.finite)),
            LayerLines(f"{title} Extremes", Source(histograms, RANGE), ["min", "max"], None),
            ComputedLines(f"{title} Special Elements", histograms.specials),
        ]
        super().__init__({ALL: histograms}, views)
        self._group = f"Distribution of {what}s"

    @property
    def _cure(self) -> str:  # type: ignore[override]
        return "it has no activations and no parameters" if self.what == OUTPUT else "it has no parameters"

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the module's output or its parameters."""
        if self.what != OUTPUT:
            super().register_leaf_module(module, module_name, inspector_state)
        elif isactivation(module) or own_parameters(module):
            outputs = FeedForwardGatherer(module, self._preprocessors, module_name, inspector_state)
            self._watch(outputs, module_name, module_name)

    register_non_leaf_module = register_leaf_module

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> Gatherer:
        if self.what == PARAMETER:
            return super()._gather(module, parameter, preprocessor, module_name, inspector_state)
        return ParameterGradientGatherer(parameter, module, [preprocessor], module_name, inspector_state, follow=True)
