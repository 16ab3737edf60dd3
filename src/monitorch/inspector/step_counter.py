"""Where steps begin and end."""

import weakref
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from ..engine.compilation import inside_graph, outside_graph
from ..engine.engine import Engine
from ..engine.graph import GraphCallback, GraphHook
from ..engine.loss_scale import UNKNOWN_SCALER, LossScale, stepping_scaler
from ..engine.module_tap import NamedTensors
from ..engine.optimizers import Owned, has_closure
from ..engine.passes import TRAINING, RecomputationFilter, kind_of_pass
from ..engine.reports import is_news, tell
from ..engine.tensors import first_input
from ..engine.torch_private import NO_TASK, graph_task, inside_backward
from ..errors import warn
from .arguments import Trainer
from .flop_count import FlopCount
from .inspector_state import InspectorState
from .preparation import Preparation
from .run_statistics import RunStatistics
from .scaler_steps import ScalerSteps

STEPLESS = 4
"""After this many training passes without an optimizer step, changed parameters mean that another optimizer steps."""
LONG = 256
"""After this many passes steps are being missed in any case: nobody accumulates gradients for so long."""
STEP_CURE = (
    "if it is stepped in another way, call step() of the watch or inspector after each step, or pass the optimizer "
    "inside it whose step() is called"
)


class PassHook(GraphHook):
    """Notices that a pass of the model begins."""

    def __init__(self, counter: "StepCounter", callback: GraphCallback, state: InspectorState) -> None:
        super().__init__(state, "noticing that a pass begins")
        self._counter, self._callback, self._state = counter, callback, state
        self._statistics = counter.run_statistics

    @inside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called by the module; training passes of quiet steps are only counted, in as few calls as possible."""
        state = self._state
        if is_dynamo_compiling() or not (state.is_quiet and module.training and torch.is_grad_enabled()):
            super().__call__(module, args, kwargs)
            return
        begin = perf_counter()
        if graph_task() != NO_TASK:
            super().__call__(module, args, kwargs)
            return
        try:
            state.begin_quiet_pass()
            self._statistics.count(args[0] if args else first_input(args, kwargs))
        except Exception as error:
            tell(state, "noticing that a pass begins", error)
        clock = state.clock
        clock.spent += perf_counter() - begin + clock.calling

    def eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a pass, and count its samples."""
        clock, kind = self._counter.clock, kind_of_pass(module)
        self._counter.act_on_events(kind)
        begin = clock.enter()
        if self._counter.begin_pass(kind) and kind == TRAINING:
            self._statistics.count(first_input(args, kwargs))
            self._counter.inputs.take(args, kwargs)
        self._counter.begin_calls(module)
        clock.leave(begin)

    def in_graph(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leave an operator in the graph that calls back whenever it runs, with the inputs if somebody reads them."""
        kind, named = kind_of_pass(module), self._counter.inputs.in_graph(args, kwargs)
        if named and kind == TRAINING and self._state.observing:
            self._callback.pass_named(kind, named)
        else:
            self._callback.pass_outside(kind)


class StepCounter:
    """Counts the steps of the first optimizer, including skipped ones; without one, the training passes of the model.

    A pass begins when the model is called. If the model itself is never called, because a framework calls one of its
    methods, a pass begins with the first layer that is called.

    Args:
        model: the root of the watched modules.
        trainer: the optimizers whose steps to count; gradients of their parameters are measured at their steps.
        peak_flops: the most FLOP/s that the device can do; None for what is known of it.
    """

    def __init__(
        self,
        state: InspectorState,
        engine: Engine,
        model: nn.Module,
        trainer: Trainer,
        peak_flops: float | None = None,
    ) -> None:
        self._state, self._engine, self._optimizers = state, engine, trainer.optimizers
        self.clock, self.inputs = state.clock, engine.inputs
        self._model = weakref.ref(model)
        state.gradient = trainer.gradient
        scaler = trainer.grad_scaler
        state.loss_scale = LossScale(scaler) if scaler is not None and scaler.is_enabled() else None
        state.steps_have_ends = bool(self._optimizers)
        self._callback = GraphCallback(engine.device, self._receive, state)
        self._passes = RecomputationFilter()
        self._is_uncollected = True
        self._waits_for_a_step, self._versions = bool(self._optimizers), 0
        self._may_be_quiet = False
        self._flops = FlopCount(engine.device, peak_flops, state.clock)
        self.run_statistics = RunStatistics(self._optimizers, 1 / state.loss_share, model, flops=self._flops)
        self._preparation = Preparation(state, engine, model, self.run_statistics)
        self._hook = PassHook(self, self._callback, state)
        self._handles: list[Any] = [model.register_forward_pre_hook(self._hook, with_kwargs=True)]
        engine.when_no_pass_has_begun = self._begin_passes_with
        for optimizer in self._optimizers:
            engine.steps(optimizer).before.append(self._before_step)
            engine.steps(optimizer).after.append(self._after_step)
        if state.events.stop_on is not None and self._optimizers:  # after the hook that has noticed the end of the step
            self._handles.append(self._optimizers[0].register_step_post_hook(self._stop_after_step))
        if scaler is not None:
            self.run_statistics.count_skipped(0)
            steps = [engine.steps(optimizer) for optimizer in self._optimizers]
            self._handles.append(ScalerSteps(scaler, steps, self._skip_step, state))

    def remove(self) -> None:
        """Remove the hooks on the model and the scaler; the engine removes those on the optimizers."""
        while self._handles:
            self._handles.pop().remove()
        self._flops.remove()

    def end_step(self) -> None:
        """Count a step that no hook noticed, such as one of an optimizer that is not from torch.optim."""
        if any(self._engine.steps(optimizer).has_ended for optimizer in self._optimizers):
            warn("step() is for optimizers whose steps are not noticed; steps of this one are counted. Remove the call")
            return
        self._flops.end()
        for optimizer in self._optimizers:
            self._engine.gradients.take_step(optimizer)
            self._engine.updates(optimizer).after_step()
        if not self._state.steps_have_ends:  # from now on a step may have several passes
            self._state.steps_have_ends = True
            self._state.step -= self._state.passes
        self._waits_for_a_step = False
        self._finish_step()
        for optimizer in self._optimizers:
            self._engine.updates(optimizer).before_step()

    def _begin_passes_with(self, module: nn.Module) -> None:
        """Let passes begin with this layer from now on: it is called first, and the model itself is not called."""
        if inside_backward():  # activation checkpointing repeats a pass that began before the model was watched
            return
        self._handles.append(module.register_forward_pre_hook(self._hook, with_kwargs=True))
        self.act_on_events(kind_of_pass(module))
        self.begin_pass(kind_of_pass(module))

    def act_on_events(self, kind: int) -> None:
        """A pass is about to begin: if it is the first one of a step, do what could not be done after the last step."""
        events = self._state.events
        if (events.waiting or events.stop is not None) and kind == TRAINING and self._state.is_between_steps:
            self._state.call_back()
            self._state.stop_if_asked()

    @outside_graph
    def _stop_after_step(self, *_: Any) -> None:
        try:
            self._state.stop_if_asked()
        except Exception as error:
            tell(self._state, "stopping training", error)

    def _receive(self, found: torch.Tensor | NamedTensors, kind: int) -> None:
        self.act_on_events(kind)
        if self.begin_pass(kind, in_graph=True) and isinstance(found, dict):
            self.inputs.receive(found)
        self._engine.calls.miss()

    def begin_calls(self, module: nn.Module) -> None:
        """Look at calls of functions inside the model until it has run."""
        self._engine.calls.begin(module)

    def begin_pass(self, kind: int, *, in_graph: bool = False) -> bool:
        """Begin a pass, unless it is repeated, or a repetition; tells whether it is one."""
        self._engine.when_no_pass_has_begun = None
        if not self._passes.counts(has_grad=kind >= 2):
            if not inside_backward():  # it will be repeated with gradients
                self._state.pass_has_grad = True
            return False
        self._state.pass_has_grad = kind >= 2
        if self._state.wants_data():
            self._engine.come_last()
        if self._is_uncollected:
            self._engine.collect()
        self._is_uncollected = True
        if kind == TRAINING:
            if self._state.wants_data() or not self._preparation.has_looked:
                self._preparation.look()
            if not self._state.steps_have_ends:
                self._state.next_step(begins=1, in_graph=in_graph)
            self._state.begin_pass()
            self._engine.gradients.begin_pass()
            if self._waits_for_a_step and not self._engine.steps(self._optimizers[0]).is_running:
                self._miss_a_step()
        else:
            self._flops.spoil()
            self._state.begin_evaluation()
        return True

    def _before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not has_closure(args, kwargs):
            self._end_count(args[0])
            self._engine.gradients.take_step(args[0])

    def _after_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = args[0]
        self._end_count(optimizer)
        if has_closure(args, kwargs):  # the closure has just computed the gradients that the optimizer used
            self._engine.gradients.take_step(optimizer)
        works = self._engine.step_scales.of(optimizer).works
        if works is not None:
            self.run_statistics.count_skipped(1 - works)
        self._end_step(optimizer)

    def _end_count(self, optimizer: Optimizer) -> None:
        """All operations of a step were seen; what the optimizer itself does is not counted."""
        if optimizer is self._optimizers[0]:
            self._flops.end()

    def _skip_step(self, optimizer: Optimizer) -> None:
        self._end_count(optimizer)
        self._engine.skip_step(optimizer)
        self.run_statistics.count_skipped(1)
        self._end_step(optimizer)

    def _end_step(self, optimizer: Optimizer) -> None:
        if self._waits_for_a_step:
            self._waits_for_a_step = False
            self._check_what_is_watched()
            self._look_for_a_scaler()
            self._may_be_quiet = len(self._optimizers) == 1 and stepping_scaler() is None
        if self._may_be_quiet and not self._flops.is_wanted:
            self._may_be_quiet = False
            self._state.has_quiet_steps, self._engine.steps(optimizer).quiet = True, self._state
        if optimizer is self._optimizers[0]:
            self._finish_step()
        elif not inside_backward():  # there may be one optimizer for each parameter
            self._engine.collect()

    def _finish_step(self) -> None:
        self._engine.collect()
        self._is_uncollected = False
        self._state.next_step()
        if self._optimizers:
            self._flops.begin()

    def _miss_a_step(self) -> None:
        """Warn if the model is trained, but no optimizer step is noticed."""
        model = self._model()
        if model is None or self._state.passes not in (1, STEPLESS, LONG):
            return
        versions = sum(parameter._version for parameter in model.parameters())
        if self._state.passes == 1:
            self._versions = versions
        is_missed = self._state.passes == STEPLESS and versions != self._versions
        if is_missed or self._state.passes == LONG:
            self._waits_for_a_step = False
            kind = type(self._optimizers[0]).__name__
            seen = f"{self._state.passes} training passes have been seen, but no call of {kind}.step()"
            warn(f"{seen}, so nothing is counted or shown; {STEP_CURE}", stacklevel=4)

    def _check_what_is_watched(self) -> None:
        """At the first step: warn if the optimizer trains something other than the watched model."""
        model = self._model()
        if model is None or not self._optimizers:
            return
        owned, kind = Owned(*self._optimizers), type(model).__name__
        if not any(parameter in owned for parameter in model.parameters()):
            cure = "watch the model after it is wrapped or moved, and pass the optimizer that trains it"
            warn(f"the optimizer made a step, but has no parameter of the watched {kind}; {cure}", stacklevel=4)
        elif not self._state.passes and self._engine.is_blind:
            cure = "watch the module whose layers are called in training"
            seen = f"the optimizer made a step, but no layer of the watched {kind} was called since watching began"
            warn(f"{seen}; {cure}", stacklevel=4)

    def _look_for_a_scaler(self) -> None:
        """At the first step: warn if a GradScaler that was not given makes it, and scaled gradients are shown."""
        if self._state.loss_scale is not None or not self._engine.takes_scaled_gradients:
            return
        scaler = stepping_scaler()
        scale = 1.0 if scaler is None else scaler.get_scale()
        if scale != 1 and is_news(self._state, UNKNOWN_SCALER):
            text = (
                f"a GradScaler multiplies the loss by {scale:g}, so the gradients shown are that many times too large"
            )
            warn(f"{text}; pass the scaler as grad_scaler=", stacklevel=4)
