"""What single modules do in training passes: what routers return, and what BatchNorm layers keep."""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..engine.module_tap import ModuleTap, NamedTensors
from ..engine.passes import TRAINING, RecomputationFilter
from ..engine.tensors import tensors_in
from ..errors import SkippedSample
from ..preprocessor.batch_norm import BatchNormShifts, ChannelMoments
from ..preprocessor.routing import ExpertShares
from .abstract_gatherer import Gatherer, GathererState

MEAN, VARIANCE, BATCHES = "mean", "variance", "batches"


class RouterGatherer(Gatherer):
    """Passes on the tensors that a router returns.

    Args:
        top_k: how many experts each token goes to; None if that is not known.

    The others are those of every gatherer.
    """

    def __init__(
        self,
        module: nn.Module,
        preprocessors: Sequence[ExpertShares],
        name: str,
        inspector_state: GathererState,
        top_k: int | None,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._top_k, self._recomputation = top_k, RecomputationFilter(inspector_state)
        engine = getattr(inspector_state, "engine", None)
        if engine is not None:
            self._handles.append(ModuleTap(engine, module, _pick_outputs, self, f"looking at router {name!r}"))

    def __call__(self, named: NamedTensors, kind: int) -> None:
        """Called with what the router has returned."""
        if self._recomputation.counts_as_training(kind):
            self._hand_over(list(named.values()))

    def _process(self, preprocessor: ExpertShares, tensors: list[Tensor]) -> None:
        preprocessor.process_router(self.name, tensors, self._top_k)


def _pick_outputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> NamedTensors:
    return {str(place): x for place, x in enumerate(tensors_in(output))}


class BatchNormGatherer(Gatherer):
    """Passes on the running statistics of a BatchNorm layer, as they are before and after it runs."""

    def __init__(
        self,
        module: nn.Module,
        preprocessors: Sequence[BatchNormShifts],
        name: str,
        inspector_state: GathererState,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module, self._recomputation = weakref.ref(module), RecomputationFilter(inspector_state)
        self._kept: ChannelMoments | None = None
        engine, what = getattr(inspector_state, "engine", None), f"looking at BatchNorm layer {name!r}"
        if engine is not None:
            self._handles.append(ModuleTap(engine, module, _pick_running, self._keep, what, before=True))
            self._handles.append(ModuleTap(engine, module, _pick_running, self, what))

    def _keep(self, named: NamedTensors, kind: int) -> None:
        """Called before the layer runs and updates its statistics."""
        is_there = kind == TRAINING and MEAN in named
        self._kept = ChannelMoments(named[MEAN].clone(), named[VARIANCE].clone()) if is_there else None

    def __call__(self, named: NamedTensors, kind: int) -> None:
        """Called after the layer has run."""
        kept, self._kept = self._kept, None
        if self._recomputation.counts_as_training(kind) and kept is not None:
            self._hand_over(kept, named)

    def _process(self, preprocessor: BatchNormShifts, kept: ChannelMoments, named: NamedTensors) -> None:
        module: Any = self._module()
        momentum: float | Tensor | None = module.momentum
        if momentum is None and BATCHES in named:  # the mean of all batches
            momentum = 1 / named[BATCHES].to(kept.mean.dtype)
        if momentum is None or (not isinstance(momentum, Tensor) and not momentum):
            raise SkippedSample("its running statistics never change: momentum is 0")
        now = ChannelMoments(named[MEAN], named[VARIANCE])
        preprocessor.process_statistics(self.name, kept, now, momentum, module.eps)


def _pick_running(module: Any, *_: Any) -> NamedTensors:
    named = {MEAN: module.running_mean, VARIANCE: module.running_var, BATCHES: module.num_batches_tracked}
    return {name: x for name, x in named.items() if x is not None}
