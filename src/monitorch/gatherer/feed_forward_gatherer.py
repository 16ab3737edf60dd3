"""Inputs and outputs of a module, at each forward pass."""

import weakref
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from ..engine.compilation import HookedMethod, inside_graph, outside_graph
from ..engine.distributed_tensors import distributed_type, samples_here
from ..engine.graph import GraphCallback, GraphHook, handed_on
from ..engine.passes import ALL_PASSES, WITH_GRAD, RecomputationFilter, kind_of_pass
from ..engine.reports import tell
from ..engine.state import HookClock, QuietSteps
from ..engine.tensors import first_input, tensor_for_graph
from ..engine.torch_private import NO_TASK, graph_task, is_traced, without_modes, without_operator_modes
from ..preprocessor import AbstractForwardPreprocessor
from ..preprocessor.loss_module import ITEMS_OF_STEP, LossModule, PartOfLoss, loss_in
from .abstract_gatherer import Gatherer, GathererState

PART = len(ALL_PASSES)
"""Added to the kind of a pass whose loss is only a part of the loss of its step."""


class FeedForwardGatherer(Gatherer):
    """Passes on the input and output of a module."""

    def __init__(
        self,
        module: nn.Module,
        preprocessors: Sequence[AbstractForwardPreprocessor],
        name: str,
        inspector_state: GathererState,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self.passes = RecomputationFilter(inspector_state)
        self._callback: GraphCallback | None = None
        engine = self._engine()
        if engine is not None:
            tap = engine.output(module, name)
            self._handles += [tap.watch_output(self, preprocessor) for preprocessor in self._preprocessors]
        elif len(self._preprocessors) == 1 and isinstance(self._preprocessors[0], LossModule):
            self._callback = self._new_callback(module)
            hook = _LossHook(self, self._callback, self._preprocessors[0])
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        elif self._preprocessors and not any(preprocessor.needs_input for preprocessor in self._preprocessors):
            self._callback = self._new_callback(module)
            self._hook_module(module, _OutputHook(self, self._callback))
        else:
            self._hook_module(module, HookedMethod(self))

    def _new_callback(self, module: nn.Module) -> GraphCallback:
        """A way out of compiled graphs, for preprocessors that look at one tensor of the output only."""
        engine = getattr(self.inspector_state, "engine", None)
        device = torch.device("cpu") if engine is None else engine.device
        return GraphCallback(device, partial(self._receive, weakref.ref(module)), self.inspector_state)

    def _receive(self, known: weakref.ref[nn.Module], tensor: Tensor, kind: int) -> None:
        module = known()
        if module is not None:
            with torch.set_grad_enabled(bool(kind & WITH_GRAD)):  # as it was when the graph was made
                self(module, (), {}, PartOfLoss(tensor) if kind & PART else {"loss": tensor})

    @outside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Pass on the data of one forward pass."""
        try:
            if not is_traced():
                with without_operator_modes():
                    self.take(module, args, kwargs, output)
        except Exception as error:
            if self.inspector_state is None:
                raise
            tell(self.inspector_state, f"looking at layer {self.name!r}", error)

    def take(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The same; errors are not caught."""
        if self.passes.counts():
            self._hand_over(module, first_input(args, kwargs), output)

    def take_loss(self, module: nn.Module, kwargs: dict[str, Any], output: Any) -> None:
        """The same if only a loss is looked for, which happens at every step and must cost nearly nothing."""
        if kwargs.get(ITEMS_OF_STEP) is not None and loss_in(output) is not None:
            output = PartOfLoss(loss_in(output))
        if self.passes.counts() and not self._failed and self.inspector_state.is_active:  # type: ignore[union-attr]
            self.guarded(self._process, self._preprocessors[0], module, None, output)

    def loss_in_graph(self, output: Any) -> Tensor | None:
        """The loss in an output, while a model is being compiled."""
        loss: Tensor | None = self._preprocessors[0].loss_in_graph(output)
        return loss

    def _process(self, preprocessor: AbstractForwardPreprocessor, *data: Any) -> None:
        preprocessor.process_fw(self.name, *data)


class _LossHook(GraphHook):
    """The hook on a module that computes a loss; from inside a compiled graph it passes the loss on."""

    def __init__(self, gatherer: FeedForwardGatherer, callback: GraphCallback, losses: LossModule) -> None:
        state: Any = gatherer.inspector_state
        super().__init__(state, f"looking at layer {gatherer.name!r}")
        self._quiet: QuietSteps | None = state if hasattr(state, "is_quiet") else None
        self._gatherer, self._callback, self._losses = gatherer, callback, losses
        self._distributed = distributed_type()
        self._clock: HookClock | None = getattr(state, "clock", None)

    @inside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Called by the module; in quiet steps a loss that is a plain number is taken in as few calls as possible."""
        quiet = self._quiet
        if is_dynamo_compiling() or quiet is None or not quiet.is_quiet:
            super().__call__(module, args, kwargs, output)
            return
        begin, is_taken = perf_counter(), False
        try:
            if graph_task() == NO_TASK and not is_traced() and ITEMS_OF_STEP not in kwargs:
                with without_modes():
                    is_taken = self._losses.take_quietly(module, output, quiet.step + 1)
        except Exception as error:
            tell(self._reports, self._what, error)
        if is_taken:
            clock = quiet.clock
            clock.spent += perf_counter() - begin + clock.calling
        else:
            super().__call__(module, args, kwargs, output)

    def eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Take the loss."""
        begin = None if self._clock is None else self._clock.enter()
        try:
            self._gatherer.take_loss(module, kwargs, output)
        finally:
            if self._clock is not None:
                self._clock.leave(begin)

    def in_graph(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Pass the loss on."""
        loss = self._gatherer.loss_in_graph(output)
        if loss is not None:
            loss = samples_here(loss)[0] if isinstance(loss, self._distributed) else loss
            self._callback.pass_outside(kind_of_pass(module) + PART * (kwargs.get(ITEMS_OF_STEP) is not None), loss)


class _OutputHook(GraphHook):
    """The hook for preprocessors that need no input; from inside a compiled graph it passes the output on."""

    def __init__(self, gatherer: FeedForwardGatherer, callback: GraphCallback) -> None:
        self._state: Any = gatherer.inspector_state
        super().__init__(self._state, f"looking at layer {gatherer.name!r}")
        self._gatherer, self._callback = gatherer, callback
        self._distributed = distributed_type()

    def eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Take the output."""
        self._gatherer.take(module, args, kwargs, output)

    def in_graph(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Pass the tensor in the output on, in steps that are observed."""
        tensor = tensor_for_graph(output)
        if tensor is None or not self._state.observing:
            return None
        here = samples_here(tensor)[0] if isinstance(tensor, self._distributed) else tensor
        self._callback.pass_outside(kind_of_pass(module), here)
        return handed_on(output, [tensor])
