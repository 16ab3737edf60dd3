"""The inspector: the object that a user creates and holds."""

import atexit
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from .. import visualizer as visualizers
from ..engine.compilation import drop_graphs, warn_if_blind
from ..engine.engine import Engine
from ..engine.optimizers import Optimizers, StandIn
from ..engine.origin import Origin
from ..engine.ranks import own_rank, several_processes
from ..engine.reports import tell
from ..engine.tensors import has_no_numbers
from ..engine.torch_private import without_modes_of_others
from ..errors import LifecycleError, OptionError, short_repr, warn
from ..lens.abstract_lens import AbstractLens
from ..lens.base import Lens, warn_of_twins
from ..lens.logged_scalars import LoggedScalars
from ..lens.loss_metrics import LossMetrics
from ..lens.options import old_names
from ..lens.parameter_lens import warn_of_other_names
from ..preprocessor import ExplicitCall
from ..store import Event
from ..visualizer.record import Record
from ..visualizer.store_visualizer import StoreVisualizer
from . import checkpoint
from .arguments import bank, check, positive, trainer
from .cadence import Cadence
from .display import DisplaysRun
from .events import check as check_event_options
from .inspector_state import STOP_NEEDS_ALL, TRAINING_LOSS, InspectorState
from .module_tree import LayersOf, NamedModule, aliases, averaging_processes, description, is_spread, scripted, unwrap
from .probe import Probe, ProbeReport
from .step_counter import StepCounter
from .tick import RankExchange, Tick

Item = TypeVar("Item")

A_TICK = "a tick"
LATE_GROUP = (
    "the process group was initialised after watching began, so this process has stored a run of its own. Only the "
    "first process goes on: its run has the numbers of all. Watch after init_process_group()"
)


class PyTorchInspector(DisplaysRun):
    """Shows a model in training through lenses.

    Args:
        lenses: what to look at.
        visualizer: where to show it: ``"print"``, ``"matplotlib"``, ``"tensorboard"``, ``"store"``, ``"dummy"``, an
            object, or a list of these.
        module: the model; may also be given to :meth:`attach` later.
        parameters: tensors that are trained beside the model, by name.
        depth: how many levels of modules to go down; -1 is all.
        module_name_prefix: what separates the parts of a layer's name.
        train_loss_str: name of the training loss.
        non_train_loss_str: name of the validation loss.
        is_active_fn: record only every n-th tick, or those for which this function of the tick's number is true.
        master_rank: the rank of the process that shows the numbers.
        on_error: when a layer cannot be observed, ``"warn"`` once and continue without it, or ``"raise"``.
        optimizer: the optimizer, or several. With one, a step is a step of the (first) optimizer, gradients are
            measured as it uses them, and learning rates and speed are logged. Without one, a step is a training pass.
            One that is not from torch.optim, or ``"by hand"`` if there is no object for it, needs calls of
            :meth:`step`.
        grad_scaler: the GradScaler, if you use one: then all gradients are shown unscaled, and skipped steps are
            counted.
        gradient: ``"at_step"`` for gradients as the optimizer uses them, or ``"before_clip"`` for gradients as backward
            left them, unscaled; this takes memory for a copy of the gradients.
        every: observe every n-th step, or those for which this function of the step's number is true.
        budget: the share of training time that observing may cost, such as 0.02: steps are chosen to stay within it.
        head_start: seconds that observing may cost before the budget applies, so that nearly all first steps are
            observed.
        per_rank: with several processes, each shows its own numbers, instead of one showing those of all.
        on_event: a function that is called with each event, a :class:`monitorch.store.Event`, between two steps, by the
            thread that trains.
        stop_on: ``"error"`` or ``"warning"`` raises :class:`monitorch.errors.TrainingStopped` between two steps after
            an event of that severity or worse; None only reports.
        peak_flops: the most FLOP/s that the device can do, in the precision of the model: then, with an optimizer, the
            share that the model uses is logged. None looks the card up; on a CPU nothing is shown.

    With ``MONITORCH=off`` in the environment nothing is attached and nothing recorded.

    >>> from monitorch.lens import ParameterNorm
    >>> inspector = PyTorchInspector([ParameterNorm()], module=nn.Linear(2, 1), visualizer="dummy")
    >>> for epoch in inspector.range(3):
    ...     pass  # train
    >>> inspector.state.counter
    4
    """

    @old_names(vizualizer="visualizer")
    def __init__(
        self,
        lenses: Iterable[AbstractLens],
        *,
        visualizer: Any = "print",
        module: nn.Module | None = None,
        depth: int = -1,
        module_name_prefix: str = ".",
        train_loss_str: str = "train_loss",
        non_train_loss_str: str = "val_loss",
        is_active_fn: int | Callable[[int], bool] = 1,
        master_rank: int = 0,
        on_error: str = "warn",
        optimizer: Optimizers = None,
        grad_scaler: Any = None,
        gradient: str = "at_step",
        every: int | Callable[[int], bool] = 1,
        budget: float | None = None,
        head_start: float = 0.0,
        per_rank: bool = False,
        on_event: Callable[[Event], object] | None = None,
        stop_on: str | None = None,
        peak_flops: float | None = None,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> None:
        check(lenses=lenses, depth=depth, module_name_prefix=module_name_prefix, master_rank=master_rank)
        check(per_rank=per_rank, train_loss_str=train_loss_str, non_train_loss_str=non_train_loss_str)
        if train_loss_str == non_train_loss_str:
            raise OptionError(f"train_loss_str and non_train_loss_str are both {train_loss_str!r}: give them two names")
        check_event_options(on_event, stop_on)
        self._peak_flops = positive("peak_flops", peak_flops)
        self.lenses = lenses if isinstance(lenses, Sequence) else list(lenses)
        self._trainer = trainer(optimizer, grad_scaler, gradient)
        self.optimizers = self._trainer.optimizers
        self._bank = None if parameters is None else bank(parameters)
        self.state = InspectorState(is_active_fn, on_error, Cadence(every, budget, head_start))
        self.on_event, self.state.events.stop_on = on_event, stop_on
        self.state.events.call(self)
        self.state.paused = self._is_off = os.environ.get("MONITORCH", "").lower() == "off"
        self.depth, self.module_name_prefix, self.master_rank = depth, module_name_prefix, master_rank
        self.is_main_process = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == master_rank
        self.state.per_rank, self.aliases = per_rank, dict[str, list[str]]()
        self.pushed = ExplicitCall(train_loss_str, non_train_loss_str)
        """The losses and metrics that were pushed since the last tick."""
        self.pushed.open_step, self.pushed.finished_step = self.state.open_step, self.state.finished_step
        self._logged = LoggedScalars()
        self._refused = set[str]()
        self._checks_sight: bool | None = None
        """Whether to check, once a tick is shown, that it has seen something; None before the first observed step."""
        self._shown_step, self._last_records = 0, list[Record]()
        self._last_overhead: float | None = None
        self._last_is_lower_bound = True
        self._busy_seconds = 0.0
        self._steps: StepCounter | None = None
        self._layers: LayersOf | None = None
        self._model: weakref.ref[nn.Module] | None = None
        self._shown_epoch, self._adopted, self._handles = 0, list[AbstractLens](), list[Any]()
        # deleting the inspector removes its hooks: the finalizer shares what it needs, but does not hold the inspector
        weakref.finalize(self, _release_dropped, self._adopted, self._handles, self.state).atexit = False
        self.visualizer = visualizer
        if on_event is not None:
            _call_back_at_exit(self)
        if module is not None:
            self.attach(module)

    @property
    def visualizer(self) -> Any:
        """Where numbers are shown; assign another object or name at any time."""
        return self._visualizer

    @visualizer.setter
    def visualizer(self, visualizer: Any) -> None:
        self.state.settle()
        if not (self.is_main_process or self.state.per_rank):
            visualizer = "dummy"
        self._visualizer = visualizers.resolve(visualizer)
        parts = getattr(self._visualizer, "parts", (self._visualizer,))
        self.state.events.show_in(parts)
        for part in parts:
            if getattr(part, "deferred", False):
                part.wait_for_ticks = self.state.settle
            if isinstance(part, StoreVisualizer):
                part.report_event, part.rank = self.state.tell_of_number, own_rank()
        for lens in self._adopted:
            lens.introduce_tags(self._visualizer)
        self._adopt_lenses()
        self._introduce_layers()

    vizualizer = visualizer  # the spelling of earlier releases

    @property
    def layers(self) -> list[str]:
        """The names of all modules of the watched model, in model order."""
        return self._layers.names if self._layers is not None else []

    @property
    def overhead(self) -> float | None:
        """What observing has cost recently: 0.05 means five percent of the time of the same steps without it.

        Hooks, kernels, ticks and the threads that store numbers all count. None while not known. If every step is
        observed there is nothing to compare with, and it is the least that observing can have cost: see
        :attr:`overhead_is_lower_bound`. After :meth:`detach` it keeps its last value.
        """
        return self.state.cadence.cost.overhead if self.state.attached else self._last_overhead

    @property
    def overhead_is_lower_bound(self) -> bool:
        """Whether :attr:`overhead` may be too small.

        No step was idle, observed steps have slowed idle ones down, or a GPU waits for Python in idle steps.
        """
        return self.state.cadence.cost.overhead_is_lower_bound if self.state.attached else self._last_is_lower_bound

    @property
    def gradient_moments(self) -> dict[str, str]:
        """When the gradient of each watched parameter is read: ``"at_backward"`` if no given optimizer has it."""
        engine = self.state.engine
        return {} if engine is None else engine.gradients.moments(self.module_name_prefix)

    @property
    def first_not_finite(self) -> Origin | None:
        """The first tensor that was NaN or infinite in training, with step and layer; None while there was none.

        It is found among what the lenses measure. Infinite outputs that do no damage, such as masked attention scores,
        and steps that a GradScaler skips do not count.
        """
        self.state.settle()
        if self.state.engine is not None:
            self.state.engine.find_origin()
        return self.state.first_not_finite

    def attach(self, module: nn.Module) -> "PyTorchInspector":
        """Watch ``module``, after detaching from the previous model, if there is one."""
        model = unwrap(module)
        if self.state.events.stop_on is not None and self.state.per_rank and several_processes():
            raise OptionError(f"stop_on={self.state.events.stop_on!r} and per_rank=True: {STOP_NEEDS_ALL}")
        if self.state.attached:
            self.detach()
        self.state.events.forget()
        self._shown_step, self._last_records, self._model = 0, [], weakref.ref(model)
        self._checks_sight = None
        self.state.first_not_finite = None
        self.state.average_over(averaging_processes(module))
        self._tell_stand_ins(model)
        self._adopt_lenses()
        if not self._is_off:
            self.state.meet_as(type(model).__name__, is_spread=is_spread(model))
            self._layers = LayersOf(model, self.depth, self.module_name_prefix, self._bank)
            self.aliases = aliases(model, self.module_name_prefix)
            self._introduce_layers()
            self.state.engine = Engine.of(model, self.state)
            self.state.engine.norms.layers = self._layers
            self.state.gradient = self._trainer.gradient
            self.state.engine.gradients.follow(self.optimizers)  # before lenses look at parameters
            layers = list(self._layers)
            try:
                for lens in self._adopted:
                    self._show_model(lens, layers)
            except Exception:
                _release(self._adopted, self._handles, self.state)  # never leave a model half watched
                raise
            self._pass_over(scripted(model))
            self._steps = StepCounter(self.state, self.state.engine, model, self._trainer, self._peak_flops)
            self._handles.append(self._steps)
            warn_of_other_names(self._adopted)
            warn_of_twins(self._adopted)
            drop_graphs(module)
        self.state.attached = True
        return self

    def detach(self) -> "PyTorchInspector":
        """Stop watching the model: removes all hooks, restarts the counter and clears figures."""
        self.leave()
        if hasattr(self.visualizer, "reset_fig"):
            self.visualizer.reset_fig()
        return self

    def leave(self) -> None:
        """The same, but figures stay."""
        if not self.state.attached:
            raise LifecycleError("there is nothing to detach from: attach() a model first")
        self._last_records = self.records()
        self._last_overhead, self._last_is_lower_bound = self.overhead, self.overhead_is_lower_bound
        if self.state.engine is not None:
            self.state.engine.find_origin()
        self.state.call_back()
        self.state.events.stop = None  # there is nothing left to stop
        _release(self._adopted, self._handles, self.state)
        self.state.meet_as("")
        self._layers = self._steps = self._model = None
        self.aliases = {}
        self.pushed.reset()
        self.state.restart()
        self.state.attached = False

    def drop(self) -> None:
        """Remove all hooks and show nothing. Computes nothing, so the garbage collector may call it."""
        _release_dropped(self._adopted, self._handles, self.state)

    def step(self) -> None:
        """Say that a step has ended, if no optimizer's ``step()`` does.

        Call it after each step of an optimizer that is not from torch.optim, or that is stepped by another method, and
        before gradients are set to zero: they are read now. Updates are measured from the first pass of the step until
        now; if no pass was noticed, from the last call.
        """
        try:
            if self._steps is not None:
                if not self.optimizers:
                    self._follow_hand(self._steps)
                self._steps.end_step()
            self.state.stop_if_asked()
        except Exception as error:
            tell(self.state, "ending a step", error)

    def complete_step(self) -> None:
        """Say that no other optimizer will step in this step; a pass, a tick or a report implies it."""
        try:
            if self._steps is not None:
                self._steps.complete_step()
        except Exception as error:
            tell(self.state, "ending a step", error)

    def end_steps_by_call(self) -> None:
        """Let only calls of :meth:`step` end a step, for optimizers that take turns. Call it before the first step."""
        if self._steps is not None:
            self._steps.ends_by_call = True

    def forward(self) -> None:
        """Say that a pass begins, if no call of the model does: from now on only these calls count.

        It is a training pass if the model is in train mode and gradients are enabled, as always.
        """
        try:
            if self._steps is not None:
                self._steps.begin_pass_by_hand()
        except Exception as error:
            tell(self.state, "beginning a pass", error)

    def push_metric(self, name: str, value: Any, *, running: bool = True) -> None:
        """Add a metric's value; LossMetrics shows it if it is among its ``metrics``."""
        try:
            self.complete_step()
            push = self.pushed.push_running if running else self.pushed.push_memory
            self._take("push_metric", name, value, partial(push, name, value), name)
        except Exception as error:
            tell(self.state, f"adding to the metric {name!r}", error)

    def push_loss(self, value: Any, *, train: bool, running: bool = True) -> None:
        """Add a loss; does not wait for the GPU. ``running=False`` keeps every value, for medians and quartiles."""
        try:
            self.complete_step()
            push = partial(self.pushed.push_loss, value, train=train, running=running)
            report: str | None = TRAINING_LOSS if train else self.pushed.non_train_loss_str
            if not train and self.state.finished_step() is not None:
                report = None  # its step is given
            self._take("push_loss", "loss", value, push, report)
        except Exception as error:
            tell(self.state, "adding a loss", error)

    def log(self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
        """Log numbers by name, from a dictionary, as keywords, or both; names need not be declared.

        Args:
            values: numbers by name; ``{"val": {"loss": 1}}`` is shown as ``val.loss``.
            step: the step that they belong to; None for the last finished one.
            **named: the same as keywords.
        """
        try:
            self.complete_step()
            if not isinstance(values, Mapping | None):
                self._refuse(f"log({short_repr(values)}) is left out: write log(name=number)", "log()")
                values = None
            after_evaluation = self.state.finished_step() if self.state.is_evaluating else None
            label = self._label(after_evaluation if step is None else step)
            for name, value in _flat({**(values or {}), **named}):
                report = name if label is None else None  # otherwise its step is known
                self._take("log", name, value, partial(self._logged.numbers.push, name, value, label), report)
            self._show_logged()
        except Exception as error:
            tell(self.state, "logging", error)

    def tick_epoch(self, epoch: int | None = None) -> None:
        """End an epoch: show what was recorded since the last tick. ``epoch`` is the number of this epoch."""
        if epoch is not None:
            check(epoch=epoch)
        try:
            self.show_tick(epoch, "epoch")
            self.state.stop_if_asked()
        except Exception as error:
            tell(self.state, A_TICK, error)

    def tick(self, epoch: int | None = None) -> None:
        """The same for a tick that is not an epoch: the x axis of figures counts steps."""
        if epoch is not None:
            check(epoch=epoch)
        try:
            self.show_tick(epoch)
            self.state.stop_if_asked()
        except Exception as error:
            tell(self.state, A_TICK, error)

    def show_tick(self, epoch: int | None = None, axis: str | None = None) -> None:
        """The same, but an event does not stop training here: for callers with more to do at the end of a step.

        Args:
            epoch: the number of the tick; None for the next one.
            axis: what ticks are counted in, ``"epoch"``, ``"step"`` or ``"tick"``; None for steps, if there is a model.
        """
        try:
            with without_modes_of_others():
                self.complete_step()
                self._tick(epoch, axis or ("step" if self.state.attached else "tick"))
        except Exception as error:
            tell(self.state, A_TICK, error)
        self.state.call_back()

    def iter(self, iterable: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``iterable`` and tick after each item; an item left by ``break`` gets no tick."""
        for index, item in enumerate(iterable):
            if index:
                self.tick_epoch()
            yield item
        self.tick_epoch()

    def range(self, *args: Any, **kwargs: Any) -> Iterator[int]:
        """``range`` that ticks after each number."""
        return self.iter(range(*args, **kwargs))

    def hold(self, names: Collection[str]) -> None:
        """Assign what was collected under these names to the last step, even if the next tick comes later."""
        with without_modes_of_others():
            for source in (self.pushed, self._logged.numbers):
                source.hold(self.state.step, names)
            for lens in self._adopted:
                if isinstance(lens, LossMetrics):
                    lens.hold(self.state.step, names)

    def state_dict(self) -> dict[str, Any]:
        """The position of the run, as plain data and tensors; save it with your checkpoint."""
        self.complete_step()
        return checkpoint.save(self._parts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state as if there had been no interruption; attach the model first."""
        checkpoint.load(self._parts, state)
        self._tell_of_step()
        self._show_logged()

    def begin_at(self, step: int) -> None:
        """Continue counting from this step if there is no saved state to load. Call it before the first step."""
        checkpoint.count_on(self.state, step)
        self._tell_of_step()

    def records(self) -> list[Record]:
        """The numbers of the last active tick, one by one; also after :meth:`detach`."""
        self.complete_step()
        self.state.settle()
        known = [lens for lens in self._adopted if isinstance(lens, Lens)]
        return [record for lens in known for record in lens.records(self._shown_epoch)] or self._last_records

    def events(self) -> list[Event]:
        """What has happened since the model was attached: the newest 1,000 events, oldest first."""
        self.state.settle()
        return self.state.events.kept()

    def probe(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        loss_fn: Callable[..., Any] | None = None,
        noise: bool = True,
        overfit: int = 0,
        sharpness: bool = False,
        mixing: bool = False,
        iterations: int = 100,
        tolerance: float = 0.01,
    ) -> ProbeReport:
        """Run copies of the model with one batch, to measure what training itself does not show.

        Training is not affected: the model, its gradients, the optimizer and the random state stay as they are. Nothing
        is recorded. Errors of the model are raised. It needs memory for a second model with gradients.

        Args:
            inputs: what the model is called with: a dictionary holds keyword arguments, a tuple or list several
                arguments, anything else is the only one.
            targets: what ``loss_fn`` gets after the output.
            loss_fn: computes the loss, as a module or function. None: the ``loss_fn`` of LossMetrics, if there are
                targets; else the ``loss`` field of the output.
            noise: compare the gradients of two halves of the batch. Samples are along the first dimension.
            overfit: train this many steps on this batch alone, with new optimizers of the same class and options.
            sharpness: also find the largest eigenvalue of the Hessian.
            mixing: also check that in eval mode no output depends on the inputs of other samples.
            iterations: the most Hessian-vector products, for the sharpness.
            tolerance: the relative error at which these end.

        >>> model, loss_fn = nn.Linear(2, 1), nn.MSELoss()
        >>> inspector = PyTorchInspector([], module=model, visualizer="dummy")
        >>> report = inspector.probe(torch.eye(2), torch.ones(2, 1), loss_fn=loss_fn, mixing=True)
        >>> report.train_loss == report.eval_loss, report.mixing
        (True, 0.0)
        """
        model = None if self._model is None else self._model()
        if model is None:
            raise LifecycleError("there is no model to probe: attach() one first")
        if loss_fn is None and targets is not None:
            modules = (lens.loss_fn for lens in self.lenses if isinstance(lens, LossMetrics))
            loss_fn = next((module for module in modules if module is not None), None)
        options: dict[str, Any] = {"noise": noise, "overfit": overfit, "sharpness": sharpness, "mixing": mixing}
        with self.state.set_aside(), self._steps.run_statistics.set_aside() if self._steps else nullcontext():
            found = Probe(
                model,
                inputs,
                targets,
                loss_fn=loss_fn,
                optimizers=self.optimizers,
                separator=self.module_name_prefix,
            )
            return found.report(**options, iterations=iterations, tolerance=tolerance)

    def paused(self) -> AbstractContextManager[None]:
        """Record nothing inside a ``with`` block."""
        return self.state.pause()

    @property
    def _parts(self) -> checkpoint.InspectorParts:
        """What a checkpoint holds; the lens of logged numbers, which is made when needed, is not one of the user's."""
        lenses = [lens for lens in self._adopted if lens is not self._logged]
        return checkpoint.InspectorParts(self.state, self.pushed, self._logged, lenses)

    def _tell_of_step(self) -> None:
        """Pass the step number on to everything that counts steps."""
        if self._steps is not None:
            self._steps.run_statistics.begin_at(self.state.step)
        if hasattr(self.visualizer, "continue_from"):
            self.visualizer.continue_from(self.state.step)

    def _adopt_lenses(self) -> None:
        """Set up the lenses in the list, also those added later, and drop those that were removed from it."""
        for lens in [lens for lens in self._adopted if lens is not self._logged]:
            if not any(lens is listed for listed in self.lenses):
                lens.detach_from_module()
                self._adopted.remove(lens)
        for lens in self.lenses:
            if not isinstance(lens, AbstractLens):
                hint = f"write {lens.__name__}()" if isinstance(lens, type) else "see monitorch.lens"
                raise OptionError(f"lenses holds {lens!r}, which is not a lens: {hint}")
            if not any(lens is known for known in self._adopted):
                self._adopt(lens)

    def _adopt(self, lens: AbstractLens) -> None:
        self._adopted.append(lens)
        lens.register_foreign_preprocessor(self.pushed, self.state)
        lens.introduce_tags(self.visualizer)
        if self._is_off:
            lens.detach_from_module()
        elif self.state.attached:
            self._show_model(lens, self._layers or ())

    def _show_logged(self) -> None:
        """Show logged numbers from now on, if this or another process has logged any."""
        if not self._logged.numbers.is_empty and not any(lens is self._logged for lens in self._adopted):
            self._adopt(self._logged)

    def _take(self, call: str, name: str, value: Any, push: Callable[[], None], report: str | None) -> None:
        """Take a number from the training loop; warn once per name about what is not a number."""
        try:
            if self.state.is_active:
                if has_no_numbers(value):
                    raise ValueError("tensors on the meta device have no numbers")
                push()
                if report is not None:
                    self.state.report(report)
        except (TypeError, ValueError, OverflowError) as error:
            if self.state.on_error == "raise":
                raise
            self._refuse(f"{call}() takes numbers, so {name}={short_repr(value)} is left out: {error}", name)
        except Exception as error:  # other numbers of the same call are still taken
            tell(self.state, f"{call}() of {name!r}", error)

    def _refuse(self, text: str, name: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            warn(f"{text}. Training goes on")

    def _label(self, step: Any) -> int | None:
        """The given step, limited to the range from the last tick to now: earlier ticks were shown already."""
        if step is None:
            return None
        try:
            wanted = int(step)
        except Exception:
            self._refuse(
                f"log(step={short_repr(step)}): this is not a step number, so the last finished step is used", "step="
            )
            return None
        now = self.state.step if self.state.attached else self.state.counter
        nearest = min(max(wanted, self._shown_step), now + 1)
        if nearest != wanted:
            where = f"the run is at step {now} and has shown its numbers up to step {self._shown_step}"
            self._refuse(f"log(step={wanted}): {where}, so these are shown at step {nearest}", "step=")
        return nearest

    def _tick(self, epoch: int | None, axis: str) -> None:
        state, begin = self.state, self.state.clock.begin_pause()
        number = state.counter if epoch is None else epoch
        try:
            active = state.is_active
            if active:
                self._adopt_lenses()
                self._end_tick(number, axis)
            state.counter = number
            if state.engine is not None:
                self._follow_layers()
                for lens in self._adopted:
                    if isinstance(lens, Lens):
                        lens.refresh()
                state.engine.refresh()
        finally:
            state.counter = number
            state.tick()
            busy, before = getattr(self.visualizer, "busy_seconds", 0.0), self._busy_seconds
            self._busy_seconds = busy
            state.end_tick(begin, max(0.0, busy - before))

    def _show_model(self, lens: AbstractLens, layers: Iterable[NamedModule]) -> None:
        for layer in layers:
            self._show_layer(lens, *layer)
        lens.finish_attach()
        self._let_optimizers_step()

    def _follow_layers(self) -> None:
        """Watch layers that were added to the model since the last tick, and drop those that were removed."""
        gone, new = (set(), []) if self._layers is None else self._layers.changes()
        if not gone and not new:
            return
        known = [lens for lens in self._adopted if isinstance(lens, Lens)]
        for lens in known:
            lens.leave(gone)
            for layer in new:
                self._show_layer(lens, *layer)
            lens.forget_layers()
        self._introduce_layers()
        self._let_optimizers_step()

    def _show_layer(self, lens: AbstractLens, name: str, module: nn.Module, is_leaf: bool) -> None:
        register = lens.register_leaf_module if is_leaf else lens.register_non_leaf_module
        register(module, name, self.state)

    def _pass_over(self, parts: list[str]) -> None:
        if parts:
            text = f"torch.jit calls no hooks, so scripted parts of the model are not watched: {', '.join(parts[:3])}"
            warn(text + (f" and {len(parts) - 3} more" if len(parts) > 3 else ""))

    def _introduce_layers(self) -> None:
        if self._layers is not None and hasattr(self.visualizer, "describe_layers"):
            self.visualizer.describe_layers(description(self._layers))
        elif self._layers is not None and hasattr(self.visualizer, "introduce_layers"):
            self.visualizer.introduce_layers(self.layers)

    def _run_statistics(self) -> dict[str, Any]:
        return self._steps.run_statistics.read(self.state.step) if self.optimizers and self._steps else {}

    def _end_tick(self, number: int, axis: str) -> None:
        """Show the tick; where the visualizer allows it, in another thread, so that training does not wait."""
        state, is_joint = self.state, several_processes() and not self.state.per_rank
        if is_joint:
            self._find_main_process()
            state.take_agreement()
            is_joint = not state.per_rank
        if not is_joint or state.is_settled:
            self._settle()
        self._last_records = []
        for name, value in self._run_statistics().items():
            if name not in self._logged.numbers:  # a number that the user logs under that name wins
                self._logged.numbers.push(name, value)
        for lens in self._adopted:
            if isinstance(lens, Lens):
                lens.collect()
        exchange = RankExchange(state, self.master_rank) if is_joint else None
        if not is_joint:
            self._show_logged()
        others = [lens for lens in self._adopted if lens is not self._logged]
        lenses = [*others, self._logged] if is_joint else self._adopted
        state.counter = number  # not earlier: collect() above still needs the old number
        tick = Tick(lenses, self.pushed, state, axis, exchange, self._with_logged)
        self._shown_epoch, self._shown_step = tick.number, tick.step
        shows = self.is_main_process or state.per_rank
        can_wait = getattr(self.visualizer, "deferred", False) if shows else is_joint
        later = can_wait and all(map(_is_own, self._adopted))
        if not later:
            self._settle()
        if self._checks_sight is None and state.observed > 0:
            self._checks_sight = True
        state.finish_tick(partial(tick.show, self.visualizer if shows else None), later=later)
        if not later:
            self._settle()

    def _find_main_process(self) -> None:
        """Processes that were started after this inspector was made: only one of them goes on to show numbers."""
        if self.is_main_process and own_rank() != self.master_rank:
            self.is_main_process = False
            warn(LATE_GROUP)

    def _with_logged(self) -> list[AbstractLens]:
        """The lenses to show, after it is known what other processes have logged."""
        self._show_logged()
        return self._adopted

    def _settle(self) -> None:
        """Wait until the last tick is shown; after the first one, warn if it has seen nothing."""
        self.state.settle()
        if self._checks_sight and self.state.engine is not None:
            self._checks_sight = False
            warn_if_blind(self.state.engine)

    def _tell_stand_ins(self, model: nn.Module) -> None:
        for optimizer in self.optimizers:
            if isinstance(optimizer, StandIn):
                optimizer.trains(model, *([] if self._bank is None else [self._bank]))

    def _follow_hand(self, steps: StepCounter) -> None:
        """No optimizer was given, but the user calls step(): from now on, read gradients there."""
        model, stand_in = None if self._model is None else self._model(), StandIn()
        self.optimizers = (stand_in,)
        if model is not None:
            self._tell_stand_ins(model)
        steps.follow(stand_in)
        self._let_optimizers_step()

    def _let_optimizers_step(self) -> None:
        engine = self.state.engine
        if engine is not None:
            engine.gradients.follow(self.optimizers)
            engine.norms.follow(self.optimizers)
            self.state.begin(engine.device, compares=engine.compares)


def _call_back_at_exit(inspector: PyTorchInspector) -> None:
    """Pass the last events to the user's function when Python exits."""
    known = weakref.ref(inspector)

    def call_back() -> None:
        found = known()
        if found is not None:
            found.state.settle()
            found.state.call_back()

    atexit.register(call_back)
    weakref.finalize(inspector, atexit.unregister, call_back).atexit = False


def _is_own(lens: AbstractLens) -> bool:
    """Whether the lens is part of this package, so that another thread may read it."""
    return type(lens).__module__.startswith(f"{__package__.partition('.')[0]}.")


def _flat(values: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Names and numbers; ``{"val": {"loss": 1}}`` is ``val.loss``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _release(lenses: list[AbstractLens], handles: list[Any], state: InspectorState) -> None:
    """Remove all hooks of an inspector from a model and its optimizers.

    The garbage collector may call this at any moment, also while torch traces or captures another model: nothing here
    computes.
    """
    try:
        for lens in lenses:
            if getattr(lens, "_state", state) is state:  # the lens may belong to another inspector now
                lens.detach_from_module()
    finally:  # a lens written by the user may fail
        while handles:
            handles.pop().remove()
        if state.engine is not None:
            state.engine.close()
            state.engine = None


def _release_dropped(lenses: list[AbstractLens], handles: list[Any], state: InspectorState) -> None:
    """The same for a garbage-collected inspector, where nobody could catch an error."""
    try:
        _release(lenses, handles, state)
    except Exception as error:
        state.on_error = "warn"
        tell(state, "leaving the model", error)
