"""Signals that are not shown but needed by the diagnosis."""

import weakref
from collections.abc import Sequence
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..engine.module_tap import ModuleTap, NamedTensors
from ..engine.parameters import locate_parameter, own_parameters
from ..engine.passes import RecomputationFilter
from ..engine.tensors import tensors_in
from ..engine.torch_private import Normalization
from ..gatherer import FeedForwardGatherer
from ..gatherer.abstract_gatherer import Gatherer, GathererState
from ..preprocessor import OutputNorm
from ..preprocessor.layer_spread import LayerSpread
from .base import Lens

MOST_SPREADS = 8
"""How many layers the batch spread is measured in: evenly spaced, including the first and the last hidden layer."""


class SpreadGatherer(Gatherer):
    """Passes on the output of a layer in training passes."""

    def __init__(
        self, module: nn.Module, preprocessors: Sequence[LayerSpread], name: str, inspector_state: GathererState
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._recomputation = RecomputationFilter(inspector_state)
        engine = getattr(inspector_state, "engine", None)
        if engine is not None:
            self._handles.append(ModuleTap(engine, module, _pick_output, self, f"looking at the output of {name!r}"))

    def __call__(self, named: NamedTensors, kind: int) -> None:
        """Called with the output."""
        if self._recomputation.counts_as_training(kind) and named:
            self._hand_over(next(iter(named.values())))

    def _process(self, preprocessor: LayerSpread, output: Tensor) -> None:
        preprocessor.process_output(self.name, output)


def _pick_output(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> NamedTensors:
    return {"output": x for x in islice(tensors_in(output), 1)}  # noqa: B035 - there is at most one


def _has_weights(module: nn.Module) -> bool:
    """Whether a module has a matrix or a kernel of its own; parametrised and not yet initialised ones count."""
    found = [locate_parameter(module, name) for name in own_parameters(module)]
    is_norm = isinstance(module, (Normalization, nn.GroupNorm, nn.LayerNorm))
    return any(own is not None and (not is_norm if is_lazy(own) else own.dim() > 1) for own in found)


class DiagnosisSignals(Lens):
    """The root mean square of layers' outputs, and how much samples differ in some of them; nothing is shown."""

    def __init__(self) -> None:
        self.scale = OutputNorm(True, True, False, None)
        self.spread = LayerSpread(inplace=True)
        self._weighted: list[tuple[weakref.ref[nn.Module], str]] = []
        super().__init__([self.scale, self.spread], [])

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch layers with weights."""
        if _has_weights(module):
            self._watch(
                FeedForwardGatherer(module, [self.scale], module_name, inspector_state), module_name, module_name
            )
            self._weighted.append((weakref.ref(module), module_name))

    def register_non_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch containers with weights of their own."""
        if own_parameters(module):
            self.register_leaf_module(module, module_name, inspector_state)

    def finish_attach(self) -> None:
        """Choose the layers whose samples are compared: all but the last, which makes the output of the model."""
        hidden = self._weighted[:-1]
        count = min(MOST_SPREADS, len(hidden))
        places = {round(number * (len(hidden) - 1) / max(count - 1, 1)) for number in range(count)}
        for place in sorted(places):
            known, name = hidden[place]
            module = known()
            if module is not None:
                self._watch(SpreadGatherer(module, [self.spread], name, self._state), name, name)
        self._weighted = []
