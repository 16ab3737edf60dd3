"""Inputs and outputs of a module, at each forward pass."""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..numerical.shards import distributed_type, samples_here
from ..preprocessor import AbstractForwardPreprocessor
from ..preprocessor.loss_module import ITEMS_OF_STEP, PartOfLoss, loss_in
from ..preprocessor.outputs import kind_of_pass
from .abstract_gatherer import Gatherer, State, first_input
from .compilation import inside_graph, is_compiled, is_traced, outside_graph
from .doorway import Door
from .hook_on_module import HookedMethod
from .recomputation import RecomputationFilter
from .reports import tell

PART = 4
"""Added to the kind of a pass whose loss is only a part of the loss of its step."""


class FeedForwardGatherer(Gatherer):
    """Passes on the input and output of a module."""

    def __init__(
        self, module: nn.Module, preprocessors: Sequence[AbstractForwardPreprocessor], name: str, inspector_state: State
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._passes = RecomputationFilter(inspector_state)
        self._door: Door | None = None
        self._distributed = distributed_type()
        house = self._shared_house()
        if house is not None:
            tap = house.output(module, name)
            self._handles += [tap.watch_output(self, preprocessor) for preprocessor in preprocessors]
        else:
            self._door = self._new_door(module)
            self._handles.append(module.register_forward_hook(HookedMethod(self.hook), with_kwargs=True))

    @inside_graph
    def hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The forward hook; while torch.compile traces, passes the loss on from inside the graph."""
        if not is_compiled():
            try:
                self._take(module, args, kwargs, output)
            except Exception as error:
                tell(self.inspector_state, f"looking at layer {self.name!r}", error)
            return
        if self._door is None:
            self(module, args, kwargs, output)
            return
        for preprocessor in self._preprocessors:
            loss = preprocessor.loss_in_graph(output)
            if loss is not None:
                loss = samples_here(loss)[0] if isinstance(loss, self._distributed) else loss
                self._door.pass_outside(kind_of_pass(module) + PART * _is_part(kwargs), loss)

    def _new_door(self, module: nn.Module) -> Door | None:
        """A way out of compiled graphs, for preprocessors that only look for a loss."""
        if not self._preprocessors or not all(hasattr(p, "loss_in_graph") for p in self._preprocessors):
            return None
        house = getattr(self.inspector_state, "house", None)
        device = torch.device("cpu") if house is None else house.device
        return Door(device, partial(self._receive, weakref.ref(module)), self.inspector_state)

    def _receive(self, known: weakref.ref[nn.Module], tensor: Tensor, kind: int) -> None:
        module = known()
        if module is not None:
            with torch.set_grad_enabled(bool(kind & 2)):  # as it was when the graph was made
                self(module, (), {}, PartOfLoss(tensor) if kind & PART else {"loss": tensor})

    @outside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Pass on the data of one forward pass."""
        try:
            self._take(module, args, kwargs, output)
        except Exception as error:
            if self.inspector_state is None:
                raise
            tell(self.inspector_state, f"looking at layer {self.name!r}", error)

    def _take(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not is_traced() and self._passes.counts():
            if self._door is not None and _is_part(kwargs) and loss_in(output) is not None:
                output = PartOfLoss(loss_in(output))
            self._hand_over(module, first_input(args, kwargs), output)

    def _process(self, preprocessor: AbstractForwardPreprocessor, *data: Any) -> None:
        preprocessor.process_fw(self.name, *data)


def _is_part(kwargs: dict[str, Any]) -> bool:
    return kwargs.get(ITEMS_OF_STEP) is not None
