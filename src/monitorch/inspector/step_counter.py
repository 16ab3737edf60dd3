"""Where steps begin and end."""

import sys
import weakref
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from ..engine.compilation import inside_graph, outside_graph
from ..engine.engine import Engine
from ..engine.functional_calls import calling_modules
from ..engine.graph import GraphCallback, GraphHook
from ..engine.loss_scale import UNKNOWN_SCALER, LossScale, stepping_scaler
from ..engine.module_tap import NamedTensors
from ..engine.optimizers import Owned, StandIn, has_closure
from ..engine.parameters import changes_of
from ..engine.passes import TRAINING, WITH_GRAD, RecomputationFilter, kind_of_pass
from ..engine.reports import is_news, tell
from ..engine.tensors import first_input
from ..engine.torch_private import NO_TASK, graph_task, inside_backward, without_functions, without_modes
from ..errors import warn
from .arguments import Trainer
from .flop_count import FlopCount
from .inspector_state import InspectorState
from .module_tree import called_parts
from .preparation import Preparation
from .run_statistics import RunStatistics
from .scaler_steps import ScalerSteps

STEPLESS = 4
"""After this many training passes without a step, changed parameters mean that another optimizer is stepping."""
LONG = 256
"""After this many passes steps are certainly being missed: nobody accumulates gradients for that long."""
TELL_OF_STEPS = "step() of the watch or inspector after each step"
STEP_CURE = (
    f"if it is stepped in another way, call {TELL_OF_STEPS}, or pass the optimizer inside it whose step() is called"
)

OPTIMIZER_CURE = "if another optimizer trains the model now, watch the model again with that one"


class PassHook(GraphHook):
    """Notices that a pass of the model begins."""

    changes_modes = True

    def __init__(self, counter: "StepCounter", callback: GraphCallback, state: InspectorState) -> None:
        super().__init__(state, "noticing that a pass begins")
        self._counter, self._callback, self._state = counter, callback, state
        self._clock, self._statistics = state.clock, counter.run_statistics

    @inside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called by the module; training passes of quiet steps are only counted.

        It uses as few calls as possible: what they need has left the CPU caches by then.
        """
        state, clock = self._state, self._clock
        if is_dynamo_compiling() or not (state.is_quiet and module.training and is_grad_enabled()):
            super().__call__(module, args, kwargs)
            return
        begin = perf_counter()
        if graph_task() != NO_TASK or not (state.passes + 1) % LONG:  # at times look whether steps are missed
            super().__call__(module, args, kwargs)
            return
        try:
            state.step_has_ended = state.is_evaluating = False
            state.passes += 1
            state.gaps += 1
            batch = args[0] if args else first_input(args, kwargs)
            with without_functions():
                if type(batch) is Tensor and (shape := batch.shape):
                    self._statistics.samples += shape[0]
                else:
                    self._statistics.count(batch)
        except Exception as error:
            tell(state, "noticing that a pass begins", error)
        clock.spent += perf_counter() - begin + clock.calling

    def eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a pass, and count its samples."""
        clock, kind = self._counter.clock, kind_of_pass(module)
        self._counter.act_on_events(kind)
        begin = clock.enter()
        try:
            if self._counter.begin_pass(kind) and kind == TRAINING:
                self._statistics.count(first_input(args, kwargs))
                with without_modes():
                    self._counter.inputs.take(args, kwargs)
            self._counter.begin_calls(module)
        finally:
            clock.leave(begin)

    def in_graph(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put an operator into the graph that calls back whenever it runs, with the inputs if they are needed."""
        kind, named = kind_of_pass(module), self._counter.inputs.in_graph(args, kwargs)
        if named and kind == TRAINING and self._state.observing:
            self._callback.pass_named(kind, named)
        else:
            self._callback.pass_outside(kind)


class PartHook(GraphHook):
    """Watches function calls in a part of the model, for models that are never called as a whole."""

    def __init__(self, counter: "StepCounter", state: InspectorState) -> None:
        super().__init__(state, "noticing that a part of the model runs")
        self._counter = counter

    def eager(self, module: nn.Module, *_: Any) -> None:
        """Look at calls while it runs."""
        self._counter.begin_calls(module)

    def in_graph(self, *_: Any) -> None:
        """Inside a graph they are not seen."""


class StepCounter:
    """Counts the steps of the first optimizer, including skipped ones; without one, the training passes of the model.

    If other optimizers step right after the first one, without a pass in between, the step ends with the last of them.
    The first step shows which one that is: it ends when a pass begins, at a tick, or when the user reports something.

    A pass begins when the model is called. If the model itself is never called, because a framework calls one of its
    methods, a pass begins with the module that is called first. Once the user calls :meth:`begin_pass_by_hand` or
    :meth:`end_step`, only those calls count.

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
        scaler = trainer.grad_scaler
        state.loss_scale = LossScale(scaler) if scaler is not None and scaler.is_enabled() else None
        state.steps_have_ends = bool(self._optimizers)
        self._callback = GraphCallback(engine.device, self._receive, state)
        self._passes = RecomputationFilter()
        self._is_uncollected = True
        self._waits_for_a_step, self._versions = bool(self._optimizers), 0
        self._last_look: tuple[int, int] | None = None
        """The last step at one pass of many, and the versions of the parameters, if steps have been seen."""
        self._is_by_hand = any(isinstance(optimizer, StandIn) for optimizer in self._optimizers)
        """Whether the user says when steps have ended."""
        self._has_begun = False
        """Whether a pass of this step was noticed."""
        self._is_announced: bool | None = None
        """Whether the user announced a pass and no module was called since; None if the user never announces passes."""
        self._may_be_quiet = False
        self._last: Optimizer | None = self._optimizers[0] if len(self._optimizers) == 1 else None
        """The optimizer with which a step ends; None while that is not known."""
        self._is_ending = False
        """Whether the first optimizer has stepped in this step."""
        self._follower: Optimizer | None = None
        """The optimizer that stepped last since then."""
        self.ends_by_call = False
        """Whether only :meth:`end_step` ends a step, even though optimizer steps are noticed: optimizers may take
        turns."""
        self._flops = FlopCount(engine.device, peak_flops, state.clock)
        self.run_statistics = RunStatistics(self._optimizers, 1 / state.loss_share, model, flops=self._flops)
        self._preparation = Preparation(state, engine, model, self.run_statistics)
        self._hook = PassHook(self, self._callback, state)
        self._handles: list[Any] = [model.register_forward_pre_hook(self._hook, with_kwargs=True)]
        engine.when_no_pass_has_begun = self._begin_passes_with
        self._listen()
        if state.events.stop_on is not None:  # after the hooks that have noticed the end of the step
            self._handles += [one.register_step_post_hook(self._stop_after_step) for one in self._optimizers]
        if scaler is not None:
            self.run_statistics.count_skipped(0)
            steps = [engine.steps(optimizer) for optimizer in self._optimizers]
            self._handles.append(ScalerSteps(scaler, steps, self._skip_step, state))

    def _listen(self) -> None:
        for optimizer in self._optimizers:
            self._engine.steps(optimizer).beginning.append(self._begin_step)
            self._engine.steps(optimizer).before.append(self._before_step)
            self._engine.steps(optimizer).after.append(self._after_step)

    def follow(self, stand_in: StandIn) -> None:
        """The user says when steps end, and gave no optimizer: ``stand_in`` takes its place."""
        self._optimizers, self._last = (stand_in,), stand_in
        self._listen()

    def remove(self) -> None:
        """Remove the hooks on the model and the scaler; the engine removes those on the optimizers."""
        while self._handles:
            self._handles.pop().remove()
        self._flops.remove()

    def end_step(self) -> None:
        """Count a step that no hook noticed, such as one of an optimizer that is not from torch.optim."""
        if self.ends_by_call:
            self._state.begin_step()
            self._flops.end()
            self._finish_step()
            return
        steps = [self._engine.steps(optimizer) for optimizer in self._optimizers]
        if any(each.has_ended for each in steps):
            warn(
                "step() is only for optimizers whose steps cannot be detected. The steps of this one are already "
                "counted: remove the call"
            )
            return
        self._is_by_hand, self._last, has_begun = True, next(iter(self._optimizers), None), self._has_begun
        if not self._state.steps_have_ends:  # from now on a step may have several passes
            self._state.steps_have_ends = True
            self._state.step -= self._state.passes
        self._state.begin_step()  # if no pass was noticed
        for each in reversed(steps):  # the step is over with the first optimizer
            each.end_by_hand()
        self._has_begun = False
        if not has_begun:  # no pass will tell when the next step begins
            self._keep_parameters()

    def begin_pass_by_hand(self) -> None:
        """The user says that a pass begins; calls of layers do not begin one any more."""
        model = self._model()
        if model is None or inside_backward():
            return
        if self._is_announced is None:
            self._may_be_quiet = self._state.has_quiet_steps = self._state.is_quiet = False
            for optimizer in self._optimizers:
                self._engine.steps(optimizer).quiet = None
        kind = kind_of_pass(model)
        self.act_on_events(kind)
        begin = self.clock.enter()
        try:
            self._begin_pass(kind, in_graph=False)
            self._is_announced = True
        finally:
            self.clock.leave(begin)

    def _begin_passes_with(self, module: nn.Module) -> None:
        """From now on, a pass begins with the module that calls this layer: the model itself is never called."""
        if inside_backward():  # activation checkpointing is recomputing a pass from before the model was watched
            return
        if kind_of_pass(module) != TRAINING:  # in training another one may be called
            return
        model = self._model()
        own = set() if model is None else {*model.modules()}
        first = [called for called in calling_modules(sys._getframe()) if called in own][-1:] or [module]
        self._handles.append(first[0].register_forward_pre_hook(self._hook, with_kwargs=True))
        for part in () if model is None else called_parts(model):
            if part is not first[0]:
                self._handles.append(part.register_forward_pre_hook(PartHook(self, self._state), with_kwargs=True))
        self.act_on_events(kind_of_pass(module))
        self.begin_pass(kind_of_pass(module))

    def act_on_events(self, kind: int) -> None:
        """A pass is about to begin. If it is the first of a step, deliver events and stop if asked."""
        self.complete_step()
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
        """Begin a pass, unless it will be recomputed or is a recomputation; returns whether it counts.

        If the user announces passes, it only returns whether this is the first call since then.
        """
        if self._is_announced is not None:
            is_first, self._is_announced = self._is_announced, False
            return is_first
        return self._begin_pass(kind, in_graph=in_graph)

    def _begin_pass(self, kind: int, *, in_graph: bool) -> bool:
        if kind == TRAINING:
            self._engine.when_no_pass_has_begun = None
        if not self._passes.counts(has_grad=kind >= WITH_GRAD):
            if not inside_backward():  # it will be repeated with gradients
                self._state.pass_has_grad = True
            return False
        self._state.pass_has_grad = kind >= WITH_GRAD
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
            if self._is_by_hand and not self._has_begun:
                self._keep_parameters()
            self._has_begun = True
            if self._waits_for_a_step and not self._engine.steps(self._optimizers[0]).is_running:
                self._miss_a_step()
            elif self._optimizers and not self._state.passes % LONG:
                self._miss_later_steps()
        else:
            self._flops.spoil()
            self._state.begin_evaluation()
        return True

    def _begin_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._counts(args[0]):  # others may come after the end of the step
            self.complete_step()
            if not has_closure(args, kwargs):  # there may be a pass in it
                self._state.begin_step()

    def _counts(self, optimizer: Optimizer) -> bool:
        """Whether the steps of this one are those of the run."""
        return optimizer is self._optimizers[0] and not self.ends_by_call

    def _before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not has_closure(args, kwargs):
            self._end_count(args[0])
            self._engine.gradients.take_step(args[0])

    def _after_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = args[0]
        self._end_count(optimizer)
        if has_closure(args, kwargs):  # the closure has just computed the gradients that the optimizer used
            if self._counts(optimizer):
                self._state.begin_step()
            self._engine.gradients.take_step(optimizer)
        works = self._engine.step_scales.of(optimizer).works
        if works is not None:
            self.run_statistics.count_skipped(1 - works)
        self._end_step(optimizer)

    def _end_count(self, optimizer: Optimizer) -> None:
        """All operations of a step were seen; what the optimizer itself does is not counted."""
        if self._counts(optimizer):
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
            is_noticed = not self._is_by_hand and self._is_announced is None
            self._may_be_quiet = is_noticed and len(self._optimizers) == 1 and stepping_scaler() is None
        if self._may_be_quiet and not self._flops.is_wanted:
            self._may_be_quiet = False
            self._state.has_quiet_steps, self._engine.steps(optimizer).quiet = True, self._state
        self._is_ending |= self._counts(optimizer)
        if self._is_ending and optimizer is self._last:
            self._finish_step()
            return
        if self._is_ending:
            self._follower = optimizer
        elif self._state.is_between_steps and not self.ends_by_call:
            self._last = optimizer  # it has come after the end, and will again
        if not inside_backward():  # there may be one optimizer for each parameter
            self._engine.collect()

    def complete_step(self) -> None:
        """End a step that was kept open for other optimizers: none will step any more."""
        if self._is_ending and not inside_backward():
            self._last = self._follower
            self._finish_step()

    def _keep_parameters(self) -> None:
        """Keep a copy of the parameters for comparison, before a step that no hook announces."""
        for optimizer in self._optimizers:
            self._engine.steps(optimizer).begin_by_hand()

    def _finish_step(self) -> None:
        self._is_ending, self._follower = False, None
        self._engine.collect()
        self._is_uncollected = False
        self.run_statistics.end_step(self._state.step + 1)
        self._state.next_step()
        if not self._optimizers:
            return
        if not isinstance(self._optimizers[0], StandIn):  # its own work would be counted as well
            self._flops.begin()

    def _miss_a_step(self) -> None:
        """Warn if the model is trained, but no optimizer step is noticed."""
        model = self._model()
        if model is None or self._state.passes not in (1, STEPLESS, LONG):
            return
        versions = changes_of(model.parameters())
        if self._state.passes == 1:
            self._versions = versions
        is_missed = self._state.passes == STEPLESS and versions != self._versions
        if is_missed or self._state.passes == LONG:
            self._waits_for_a_step = False
            first, seen = self._optimizers[0], f"{self._state.passes} training passes have been seen"
            missed, cure = f"no call of {type(first).__name__}.step()", STEP_CURE
            if isinstance(first, StandIn):
                missed, cure = "no step", f"call {TELL_OF_STEPS}: steps of {first.kind} are not noticed otherwise"
            warn(f"{seen}, but {missed}, so no step is counted and nothing is shown; {cure}")

    def _miss_later_steps(self) -> None:
        """The same after the first step: warn if the model is trained, but its optimizer steps no more."""
        model, first = self._model(), self._optimizers[0]
        if model is None or isinstance(first, StandIn) or self.ends_by_call or self._is_by_hand:
            return
        owned = Owned(first)  # others may step in between
        look = self._state.step, changes_of(own for own in model.parameters() if own in owned)
        before, self._last_look = self._last_look, look
        # whoever plays many games between two steps changes no parameter meanwhile
        if before is None or before[0] != look[0] or before[1] == look[1] or self._engine.steps(first).is_running:
            return
        text = (
            f"no call of {type(first).__name__}.step() has been seen since step {look[0]}, though the model is trained"
        )
        if is_news(self._state, text):
            warn(f"{text}, so no step is counted and nothing is shown; {OPTIMIZER_CURE}; {STEP_CURE}")

    def _check_what_is_watched(self) -> None:
        """At the first step: warn if the optimizer trains something other than the watched model."""
        model = self._model()
        if model is None or not self._optimizers:
            return
        owned, kind = Owned(*self._optimizers), type(model).__name__
        if not any(parameter in owned for parameter in model.parameters()):
            cure = "watch the model after it is wrapped or moved, and pass the optimizer that trains it"
            seen = f"the optimizer made a step, but has no parameter of the watched {kind}"
            warn(f"{seen}; {cure}")
        elif not self._state.passes and self._engine.is_blind and not model.training:
            seen = f"the optimizer made a step, but the watched {kind} is in eval mode, so no pass counts as training"
            warn(f"{seen}; call model.train() before training")
        elif not self._state.passes and self._engine.is_blind:
            cure = "watch the module whose layers are called in training, or call watched.forward() before each pass"
            seen = f"the optimizer made a step, but no layer of the watched {kind} was called since watching began"
            warn(f"{seen}; {cure}")

    def _look_for_a_scaler(self) -> None:
        """At the first step: warn if a GradScaler that was not given makes it, and scaled gradients are shown."""
        if self._state.loss_scale is not None or not self._engine.takes_scaled_gradients:
            return
        scaler = stepping_scaler()
        scale = 1.0 if scaler is None else scaler.get_scale()
        if scale != 1 and is_news(self._state, UNKNOWN_SCALER):
            shown = "gradients" if self._engine.gradients.takes_scaled else "gradients of outputs"
            text = f"a GradScaler multiplies the loss by {scale:g}, so the {shown} shown are too large by that factor"
            warn(f"{text}; pass the scaler as grad_scaler=")
