"""Any attribute of any module."""

import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from ..gatherer import FeedForwardGatherer
from ..numerical.norms import as_real, l2_norm
from ..observe import DifferenceMonitor, Monitor, PassthroughReducer, Reducer, StateMonitor
from ..observe.module import holder_of
from ..preprocessor import AbstractForwardPreprocessor
from ..preprocessor.accumulating import AccumulatingPreprocessor
from . import options
from .base import Lens
from .options import Strings
from .views import LayerLines, Source


class ReducerState(AccumulatingPreprocessor, AbstractForwardPreprocessor):
    """The state of a reducer after each sample: a single number as it is, a larger tensor as its Euclidean norm."""

    @torch.no_grad()
    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take what a reducer returned; None for a sample that it left out."""
        if layer_output is not None:
            state = as_real(layer_output)
            self._record(name, state.reshape(()) if state.numel() == 1 else l2_norm(state))


class Attribute(Lens):
    """Attributes of modules after each forward pass, or how the pass changed them.

    A monitor on the module that has the attribute takes the samples, and its reducer's state is shown: a single number
    as it is, a larger tensor as its norm.

    Args:
        attributes: dotted paths from the model, such as ``"bn1.running_mean"``; those with the same last part share a
            tag.
        reducer: reduces samples over time, with one copy per attribute; by default the latest sample is shown.
        map_: computes what is reduced from a value, or with ``difference`` from the values after and before a pass.
        difference: show the value after a pass minus the value before.
        inplace: keep only running moments, instead of every sample of a tick.
        record_eval: record passes in eval mode too.
        log_scale: logarithmic axis.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
    """

    _cure = "name some with attributes="

    def __init__(
        self,
        attributes: Strings,
        reducer: Reducer | None = None,
        map_: Callable[..., Any] | None = None,
        difference: bool = False,
        *,
        inplace: bool = True,
        record_eval: bool = False,
        log_scale: bool = False,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = ("std", "min-max"),
    ) -> None:
        self._paths = options.strings("attributes", attributes)
        kind = DifferenceMonitor if difference else StateMonitor
        reducer = PassthroughReducer(1.0) if reducer is None else reducer
        self._new_monitor = kind.partialconstructor(reducer, eval_update=record_eval, map_=map_)
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        self._states = {path.rpartition(".")[2]: ReducerState(inplace) for path in self._paths}
        title = "{} Difference" if difference else "{}"
        views = [
            LayerLines(
                title.format(last.replace("_", " ").title()), Source(state, "value"), lines, bands, logy=log_scale
            )
            for last, state in self._states.items()
        ]
        super().__init__(self._states.values(), views)
        self._monitors: list[tuple[str, Monitor]] = []  # monitors with the names of their modules
        self._model: weakref.ref[nn.Module] | None = None  # a lens keeps no module alive

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch those attributes that the module itself has."""
        if not module_name:
            self._model = weakref.ref(module)
        model = None if self._model is None else self._model()
        owners = [] if model is None else [holder_of(model, path) for path in self._paths]
        for attr in (attr for owner, attr in owners if owner is module):
            monitor = self._new_monitor(attr, module)
            monitor.on_error = inspector_state.on_error
            self._monitors.append((module_name, monitor))
            above, _, last = attr.rpartition(".")
            layer = ".".join(filter(None, (module_name, above)))
            gatherer = FeedForwardGatherer(monitor.reducer, [self._states[last]], layer, inspector_state)
            self._watch(gatherer, layer, module_name)

    register_non_leaf_module = register_leaf_module

    def stateful_parts(self) -> list[Any]:
        """Also the reducers."""
        return [*super().stateful_parts(), *(monitor.reducer for _, monitor in self._monitors)]

    def leave(self, modules: Collection[str]) -> None:
        """Also remove their monitors."""
        super().leave(modules)
        for module_name, monitor in self._monitors:
            if module_name in modules:
                monitor.deregister()
        self._monitors = [known for known in self._monitors if known[0] not in modules]

    def detach_from_module(self) -> None:
        """Also remove the monitors."""
        super().detach_from_module()
        for _, monitor in self._monitors:
            monitor.deregister()
        self._monitors, self._model = [], None
