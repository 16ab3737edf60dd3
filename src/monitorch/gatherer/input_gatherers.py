"""What enters the model, and what enters the loss, in training passes."""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..engine.engine import Engine
from ..engine.inputs import INPUT, loss_arguments
from ..engine.module_tap import ModuleTap, NamedTensors
from ..engine.passes import RecomputationFilter
from ..preprocessor import AbstractTensorPreprocessor
from ..preprocessor.loss_inputs import LossInputs
from .abstract_gatherer import Gatherer, GathererState


class InputGatherer(Gatherer):
    """Passes on each tensor that enters the model, by name."""

    def __init__(
        self, engine: Engine, preprocessors: Sequence[AbstractTensorPreprocessor], inspector_state: GathererState
    ) -> None:
        super().__init__(preprocessors, INPUT, inspector_state)
        self._readers = engine.inputs.readers
        self._readers.append(self)

    def __call__(self, named: NamedTensors) -> None:
        """Called with what enters the model."""
        for name, tensor in named.items():
            self._hand_over(name, tensor)

    def _process(self, preprocessor: AbstractTensorPreprocessor, *data: Any) -> None:
        preprocessor.process_tensor(*data)

    def detach(self) -> None:
        """Read no more."""
        super().detach()
        self._readers.remove(self)


class LossInputGatherer(Gatherer):
    """Passes on what a loss is computed from."""

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        loss_fn: nn.Module,
        preprocessors: Sequence[LossInputs],
        inspector_state: GathererState,
    ) -> None:
        super().__init__(preprocessors, "loss", inspector_state)
        self._ignore_index = getattr(loss_fn, "ignore_index", None)
        self._model, self._recomputation = weakref.ref(model), RecomputationFilter(inspector_state)
        what = "looking at what enters the loss"
        self._handles.append(ModuleTap(engine, loss_fn, _pick_arguments, self, what, before=True))

    def __call__(self, named: NamedTensors, kind: int) -> None:
        """Called with what enters the loss."""
        model = self._model()
        counts = self._recomputation.counts_as_training(kind)
        if counts and (model is None or model.training):  # nobody calls eval() on a loss
            self._hand_over(named, self._ignore_index)

    def _process(self, preprocessor: LossInputs, *data: Any) -> None:
        preprocessor.process_loss(*data)


def _pick_arguments(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedTensors:
    return loss_arguments(args, kwargs)
