"""One call that watches a model: it chooses lenses and ticks by itself."""

# not called watch.py: importing that file would put a module in the place of the function monitorch.watching.watch

import atexit
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from difflib import get_close_matches
from functools import partial
from inspect import signature
from pathlib import Path
from time import perf_counter
from types import FrameType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..diagnosis import Finding, Symptom, verdict
from ..diagnosis.diagnose import chosen as chosen_symptoms
from ..diagnosis.notes import notes_of
from ..engine.gradients import AT_STEP
from ..engine.meter import AUTO
from ..engine.optimizers import BY_HAND, Optimizers
from ..engine.parameters import ParameterBank
from ..engine.ranks import several_processes
from ..engine.reports import tell
from ..engine.torch_private import is_traced
from ..errors import OptionError, TrainingStopped, say, warn
from ..inspector import ProbeReport, PyTorchInspector
from ..inspector.arguments import bank, check, trainer
from ..inspector.display import DisplaysRun
from ..inspector.inspector_state import EVALUATION, TRAINING_LOSS
from ..inspector.module_tree import callback_for, unwrap
from ..lens import AbstractLens, LossMetrics
from ..lens.base import Lens
from ..lens.diagnosis_signals import DiagnosisSignals
from ..lens.options import comparison
from ..store import DEFAULT_FOLDER, Event, Failure
from ..store.status import uncaught
from ..visualizer.record import Record
from ..visualizer.several import Several
from ..visualizer.store_visualizer import StoreVisualizer, store_in
from ..visualizer.trackers import Tracker, TrackerVisualizer, trackers_from
from .diagnosing import LiveDiagnosis
from .finding_text import finding_text
from .flight_recorder import DUMPING, FlightRecorder
from .lens_sets import STANDARD, checked, expanded
from .live_view import LiveView
from .run_options import RunOptions
from .tracking import begin_tracking, beside, end_tracking

FEW, OFTEN, DEAR = 10, 40, 0.5
"""Default ticks at the beginning: one every ``FEW`` steps, later every tenth of the steps so far; for at most ``OFTEN``
ticks, or until ticks have taken ``DEAR`` seconds."""

PAUSE, SHARE_OF_TICKS, MOST_TICKS = 0.25, 0.01, 2000
"""After that: the least seconds between ticks, the share of time that they may take, and the most ticks in a run: a
long run needs no more ticks than a short one."""

SHARE_OF_BUDGET, LEAST_OF_BUDGET = 1 / 4, 1 / 8
"""Ticks may take so much of what hooks of idle steps leave of a budget, and always so much of all of it."""

RECENT_TICKS = 3
"""The time of a tick is averaged over about this many: later ones may take longer than the first."""

BUDGET, HEAD_START = 0.03, 2.0
"""What watching may cost by default: a share of training time, and seconds before that share applies."""

NO_LOSS = (
    "monitorch: no loss was seen: pass the module that computes it as loss_fn=, return it as the model's output.loss, "
    "or call watched.push_loss(loss)"
)

NO_UPDATES = (
    "monitorch: parameter updates are not measured: pass the optimizer, of any kind, to watch(), or "
    '"by hand" if there is none'
)

NO_RUN = (
    "there is no run to report on: watch() stores one unless visualizer= is given; with several processes, only the "
    "first one does"
)

CLOSING, LIVE = "closing the watch", "drawing the live view"
COUNTS = ("ticks", "ticked_at", "due_after", "reported_at")


def watch(
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    loss_fn: nn.Module | None = None,
    lenses: str | Iterable[str | AbstractLens] = STANDARD,
    correlation: str = AUTO,
    every: int | Callable[[int], bool] | None = None,
    budget: float | None = None,
    head_start: float | None = None,
    tick_every: int | None = None,
    visualizer: Any = None,
    trackers: str | Tracker | Iterable[str | Tracker] | None = None,
    run: str | None = None,
    folder: str | os.PathLike[str] = DEFAULT_FOLDER,
    config: Any = None,
    capture: bool = True,
    resume: bool = False,
    max_size: int | None = None,
    diagnose: bool = True,
    symptoms: Iterable[Symptom] | None = None,
    **inspector_options: Any,
) -> "Watch":
    """Watch a model in training; the training loop stays as it is.

    Numbers go to a run on disk. ``monitorch ui`` shows it live; a printed line tells you where.

    A step is one step of the (first) optimizer; without an optimizer, one training pass of the model. The watch lasts
    until the ``with`` block ends; without a block, until :meth:`Watch.close` or until the model is deleted. Watching a
    model again closes its first watch. With ``MONITORCH=off`` in the environment nothing is watched.

    Args:
        model: what to watch.
        optimizer: the optimizer, or a list of them; if you use a GradScaler, pass it as ``grad_scaler=``. One that is
            not from torch.optim, or ``"by hand"`` if there is no object for it, needs a call of :meth:`Watch.step`
            after each step.
        parameters: tensors that are trained without belonging to the model, by name; without a model only these are
            watched, until the watch is closed, and :meth:`Watch.step` ends a step unless an optimizer of torch does.
        loss_fn: the module that computes the loss; without it, the ``loss`` field of the model's output, or what you
            pass to :meth:`Watch.push_loss`.
        lenses: what to look at: ``"standard"``; ``"all"`` for the standard lenses and every other signal that costs
            little; or a list of lenses, which may contain these names: ``["standard", Attention()]``.
        correlation: how the lenses of these sets compare gradients and parameters from step to step: ``"auto"`` with
            copies of them while these need little memory; ``"exact"`` always with copies; ``"sketch"`` without.
        every: observe every n-th step, or those for which this function of the step's number is true. If neither this
            nor a budget is given, ``budget=0.03`` and ``head_start=2.0``: nearly every step at first, then as many as
            fit into three percent of the time.
        budget: the share of training time that observing may cost, such as 0.02; steps are chosen to stay within it.
        head_start: seconds that observing may cost before the budget applies; 0 if only a budget is given.
        tick_every: show numbers every this many steps. None: every 10 steps at first, or sooner if they are slow.
            Later, and with only a budget from the start, by time: at least 0.25 seconds apart, and together at most one
            percent of the time or a quarter of the budget.
        visualizer: where to show the numbers instead of storing a run, as in PyTorchInspector.
        trackers: where to also write a digest of them: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``, ``"trackio"``, an
            object such as ``WandbTracker(project="gpt")`` from ``monitorch.visualizer.trackers``, or a list of these.
        run: name of the run; the date and time if None. A name that is taken gets a number.
        folder: the folder that holds all runs.
        config: settings to keep with the run: a dictionary, parsed arguments, a dataclass, or any object.
        capture: also keep the size of the model, the optimizers' options, the git commit, versions and the machine.
        resume: continue the run of that name, if it exists; :meth:`Watch.load_state_dict` says from which step.
        max_size: how many bytes a run may take; beyond that, only averages of its oldest ticks are kept.
        diagnose: look for what is wrong: :attr:`Watch.findings`.
        symptoms: thresholds other than the usual ones, such as ``DeadUnits(share=0.7)``, and symptoms of your own.
        **inspector_options: further options of PyTorchInspector, such as ``on_event`` and ``stop_on``.

    >>> model, loss_fn = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), nn.MSELoss()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, optimizer, loss_fn=loss_fn, tick_every=2, visualizer="dummy") as watched:
    ...     for step in range(5):
    ...         loss_fn(model(torch.ones(3, 2)), torch.ones(3, 1)).backward()
    ...         optimizer.step()
    ...     watched
    Watch(Sequential, tick_every=2, ticks=2)
    """
    check_options(inspector_options)
    check(diagnose=diagnose)
    if model is None:
        if parameters is None:
            raise OptionError("a model is a torch.nn.Module, not None; without one pass parameters={'name': tensor}")
        model, parameters, optimizer = bank(parameters), None, BY_HAND if optimizer is None else optimizer
    root = unwrap(model)
    training = trainer(
        optimizer, inspector_options.pop("grad_scaler", None), inspector_options.get("gradient", AT_STEP)
    )
    trained_by = training.optimizers
    _check_tick_every(tick_every)
    stored = RunOptions(run, folder, config, capture, resume, max_size)
    if visualizer is not None and stored.is_asked_for:
        raise OptionError(
            "run, folder, config, capture, resume and max_size are for a stored run: drop either these or visualizer="
        )
    tracked = [TrackerVisualizer(tracker) for tracker in trackers_from(trackers)]
    chosen = checked(lenses)
    has_set = any(isinstance(lens, str) for lens in chosen)
    if loss_fn is not None and not has_set:
        raise OptionError(
            "loss_fn is for 'standard' and 'all' lenses; put LossMetrics(loss_fn=...) into your list instead"
        )
    if loss_fn is not None and any(isinstance(lens, LossMetrics) and lens.loss_fn is None for lens in chosen):
        raise OptionError(
            "loss_fn does not reach the LossMetrics in your list, which replaces that of the set: also pass it there: "
            "LossMetrics(loss_fn=...)"
        )
    if comparison("correlation", correlation) != AUTO and not has_set:
        raise OptionError("correlation is for 'standard' and 'all' lenses; pass it to the lenses in your list instead")
    chosen = expanded(chosen, root, trained_by, loss_fn, inspector_options.get("depth", -1), correlation)
    looked_for = chosen_symptoms(symptoms)
    chosen += [DiagnosisSignals()] if diagnose and has_set else []
    is_stored, owns_visualizer = visualizer is None, visualizer is None or isinstance(visualizer, str)
    if visualizer is None:
        visualizer = stored.open(root, trained_by, per_rank=bool(inspector_options.get("per_rank")))
    # now, so that a wrong option leaves an earlier watch of the model open
    inspector = PyTorchInspector(
        chosen,
        visualizer=beside(visualizer, tracked),
        optimizer=trained_by,
        grad_scaler=training.grad_scaler,
        parameters=parameters,
        **_cadence(every, budget, head_start),
        **inspector_options,
    )
    if root in _watches:
        _watches[root].close()
    inspector.attach(model)
    if is_stored and (hint := stored.begin(visualizer, inspector)):
        say(hint)
    begin_tracking(tracked, inspector, config)
    is_advised = not _is_callback(sys._getframe(1)) and _advise_callback(root)
    hints = has_set and is_stored and inspector.is_main_process and not is_advised
    diagnosis = LiveDiagnosis(inspector, root, trained_by, loss_fn, looked_for) if diagnose else None
    return Watch(
        inspector,
        root,
        tick_every,
        owns_visualizer=owns_visualizer,
        trackers=tracked,
        hints=hints,
        diagnosis=diagnosis,
    )


class Watch(DisplaysRun):
    """A model that is being watched; what :func:`watch` returns.

    Methods that a training loop calls raise no errors: you get one warning, and training goes on.

    A tick comes every ``tick_every`` steps, or by time. What you report after a step and before the next training pass,
    such as a validation loss or a metric, belongs to that step, and an extra tick shows it if needed. If you report
    something after every step, ticks wait for it. Numbers that come only now and then keep their step and are shown
    with the next tick.

    Args:
        inspector: the inspector that the model is attached to.
        root: the model itself, without wrappers.
        tick_every: steps per tick; None for few at first, and by time later.
        owns_visualizer: whether to close the visualizer at the end.
        trackers: the parts of the visualizer that write to trackers; always closed at the end.
        hints: whether to print hints, such as how to show the loss.
        diagnosis: what looks for problems.
    """

    def __init__(
        self,
        inspector: PyTorchInspector,
        root: nn.Module,
        tick_every: int | None,
        *,
        owns_visualizer: bool = False,
        trackers: Sequence[TrackerVisualizer] = (),
        hints: bool = False,
        diagnosis: LiveDiagnosis | None = None,
    ) -> None:
        self.inspector = inspector
        self._diagnosis = inspector.state.diagnosis = diagnosis
        self._name, self._tick_every, self._owns_visualizer = type(root).__name__, tick_every, owns_visualizer
        self._bank = root if isinstance(root, ParameterBank) else None
        """Keeps the watched parameters alive if there is no model."""
        self._trackers = tuple(trackers)
        self._ticks, self._ticked_at = 0, 0
        self._began = self._last_tick = perf_counter()
        self._pause, self._plans_for_all = PAUSE, False
        self._timed_ticks, self._tick_seconds, self._in_ticks = 0, 0.0, 0.0
        self._due_after = 0
        """The step from which the steps of the current tick are counted."""
        self._began_after = 0
        """The step after which this watch began: that of the checkpoint, if it goes on from one."""
        self._reported_at: int | None = None
        """The last step after which something was reported."""
        self._reported_before = set[str]()
        """What was reported after that step."""
        self._waits_for_reports = False
        known = [part for lens in inspector.lenses if isinstance(lens, Lens) for part in lens.preprocessors]
        self._shows_evaluations = any(getattr(part, "record_eval", False) for part in known)
        self._known_overhead: tuple[float | None, bool] = None, False
        self._closed, self._was_told, self._hints = False, False, hints
        self._tells_of_updates = hints
        if not inspector.state.paused:  # MONITORCH=off pauses it from the start
            inspector.state.follow(self)
        self._plan_tick()
        _watches[root] = self
        # a training function may return, and its model be freed, before anyone closes the watch; the finalizer keeps
        # the watch alive until then
        self._with_model = weakref.finalize(root, _close_with_model, self)
        self._with_model.atexit = False
        self._recorder = self._new_recorder()
        self._live_view: LiveView | None = None
        self._handled = sys.exc_info()[1]  # an exception may be in flight already, as in a retry inside an except block
        self._call_off = _close_at_exit(self)

    def __repr__(self) -> str:
        return f"Watch({self._name}, tick_every={self._tick_every}, ticks={self._ticks}{', closed' * self._closed})"

    def __str__(self) -> str:
        """How the run is doing: the verdict, a note if it rests on little data, and each finding with what to try."""
        if self._diagnosis is None or not self._diagnosis.history.step:
            return verdict(None)
        return finding_text(self.findings, notes_of(self._diagnosis.history))

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self._close(failure_in(error), alone=error is not None)
        except Exception as failure:
            tell(self.inspector.state, CLOSING, failure)

    @property
    def visualizer(self) -> Any:
        """Where numbers are shown."""
        return self.inspector.visualizer

    @property
    def run(self) -> str | None:
        """The name of the stored run; None if there is none."""
        store = store_in(self.visualizer)
        return None if store is None or store.path is None else store.name

    def tick(self) -> None:
        """Show what was recorded since the last tick, and begin a new tick."""
        try:
            if self._is_open("tick"):
                self._regular_tick()
            self.inspector.state.stop_if_asked()
        except Exception as error:
            tell(self.inspector.state, "a tick", error)

    def step(self) -> None:
        """Say that a step has ended: for optimizers that are not from torch.optim, whose steps are not noticed.

        Call it after the step, while its gradients are still there. If the watch knows from the beginning that steps
        end like this, because it was given such an optimizer or ``"by hand"``, it also measures updates.
        """
        try:
            if self._is_open("step"):
                if self._tells_of_updates and not self.inspector.optimizers:
                    say(NO_UPDATES)
                self._tells_of_updates = False
                self.inspector.step()
        except Exception as error:
            tell(self.inspector.state, "ending a step", error)

    def forward(self) -> None:
        """Say that a pass begins: for models that are not called themselves, and for parameters without a model.

        Call it before each pass, of training or evaluation. From the first call on only these calls begin a pass.
        """
        try:
            if self._is_open("forward"):
                self.inspector.forward()
        except Exception as error:
            tell(self.inspector.state, "beginning a pass", error)

    def log(self, values: Any = None, /, *, step: int | None = None, **named: Any) -> None:
        """Log numbers by name, from a dictionary, as keywords, or both; the next tick shows them.

        Args:
            values: numbers by name.
            step: the step that they belong to; None for the last finished one.
            **named: the same as keywords.
        """
        try:
            if self._is_open("log"):
                self.inspector.log(values, step=step, **named)
        except Exception as error:
            tell(self.inspector.state, "logging", error)

    def push_loss(self, loss: Any, *, train: bool = True) -> None:
        """Add a loss that no module computes; ``train=False`` for a validation loss. Does not wait for the GPU."""
        try:
            if self._is_open("push_loss"):
                self.inspector.push_loss(loss, train=train)
        except Exception as error:
            tell(self.inspector.state, "adding a loss", error)

    def records(self) -> list[Record]:
        """The numbers of the last tick, one by one; also after the watch is closed."""
        return self.inspector.records()

    def postfix(self) -> dict[str, float | str]:
        """A few values for a progress bar: ``bar.set_postfix(watched.postfix())``.

        Never waits, neither for the GPU nor for a tick. What is not known yet is left out.

        Returns:
            ``loss`` and ``grad_norm`` of the last finished tick; ``overhead``, the recent cost of observing, once
            it no longer covers the head start; and ``verdict``, such as ``"1 problem since step 80"``.
        """
        try:
            by_curve = {curve: value for (_, curve), value in self.inspector.state.newest.items()}
            known = {
                "loss": by_curve.get(self.inspector.pushed.train_loss_str),
                "grad_norm": by_curve.get("gradient_norm"),
                "overhead": self._lasting_overhead,
                "verdict": None if self._diagnosis is None else self._diagnosis.last_verdict,
            }
            return {name: value for name, value in known.items() if value is not None}
        except Exception as error:
            tell(self.inspector.state, "the text for a progress bar", error)
            return {}

    def live(self, every: float = 1.0) -> None:
        """Show the state of the run here and keep it up to date: verdict, loss, gradient norm, problems.

        In a notebook this is a picture below the cell; elsewhere a line of text, at most every ten seconds. It is drawn
        from the stored run in a thread of its own, so training does not wait for it. The last one comes when the watch
        closes.

        Args:
            every: the fewest seconds between two pictures.
        """
        try:
            if self._is_open("live"):
                self._end_live_view()
                self._live_view = LiveView.of(self.visualizer, every)
        except Exception as error:
            tell(self.inspector.state, LIVE, error)

    def dump(self, reason: str = "asked for") -> Path | None:
        """Write the rows of the last observed steps and the last losses into the folder of the run.

        This happens by itself when an exception ends the run, and at SIGTERM. ``monitorch.store.read_flight_record``
        reads the file that this returns; None if the run is not stored.
        """
        try:
            if self._is_open("dump") and self._recorder is not None:
                return self._recorder.dump(reason)
        except Exception as error:
            tell(self.inspector.state, DUMPING, error)
        return None

    @property
    def findings(self) -> list[Finding]:
        """What is wrong so far, first causes first; also after the watch is closed."""
        return [] if self._diagnosis is None else self._diagnosis.findings

    def report(self, path: str | os.PathLike[str]) -> Path | None:
        """Write the stored run as one HTML file that opens in any browser; also after the watch is closed.

        ``monitorch report`` does the same later, and compares runs. Returns the path; None, with a warning, if no run
        is stored here or the file cannot be written.
        """
        try:
            store = store_in(self.visualizer)
            if store is not None and store.path is not None:
                from ..dashboard import report_html  # most runs are looked at in another process

                store.sync()
                return report_html(store.path).save(path)
            if not self.inspector.state.paused:
                warn(NO_RUN)
        except Exception as error:
            tell(self.inspector.state, "writing a report", error)
        return None

    def events(self) -> list[Event]:
        """What has happened so far: the newest 1,000 events, oldest first; also after the watch is closed."""
        return self.inspector.events()

    def probe(self, inputs: Any, targets: Any = None, **options: Any) -> ProbeReport:
        """Measure copies of the model with one batch: see :meth:`monitorch.PyTorchInspector.probe`."""
        return self.inspector.probe(inputs, targets, **options)

    def state_dict(self) -> dict[str, Any]:
        """The position of the run; save it with your checkpoint."""
        self.inspector.complete_step()
        reported = self.inspector.state.reported
        is_complete = bool(reported - {TRAINING_LOSS}) or (self._waits_for_reports and self._is_due)
        if is_complete and not (self._is_joint or self._closed):
            self._complete_step()  # otherwise both this run and the resumed one would show it
            reported.clear()
        own = {name: getattr(self, f"_{name}") for name in COUNTS}
        return {"inspector": self.inspector.state_dict(), "reported_before": sorted(self._reported_before), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state as if there had been no interruption."""
        if not isinstance(state, dict) or not {"inspector", "reported_before", *COUNTS} <= state.keys():
            raise OptionError("this is not the state of a watch: pass what its state_dict() returned")
        self.inspector.load_state_dict(state["inspector"])
        if self._diagnosis is not None:
            self._diagnosis.resume()
        for name in COUNTS:
            setattr(self, f"_{name}", state[name])
        self._timed_ticks, self._in_ticks = 0, 0.0  # the duration of earlier ticks is not saved
        self._reported_before = set(state["reported_before"])
        self._began_after = self._now
        self._plan_tick()

    def wait_for_reports(self) -> None:
        """Say that numbers such as the loss are reported after each step, by every process that trains.

        From now on the tick of a step comes when the next step begins. Without this call a watch finds out by itself,
        but then the loss of the first step causes an extra tick, and with several processes every loss comes one tick
        late.
        """
        self._waits_for_reports = True

    def begin_at(self, step: int) -> None:
        """Continue counting from this step, when the checkpoint has no saved watch state.

        Call it before the first step.
        """
        self.inspector.begin_at(step)
        if self._diagnosis is not None:
            self._diagnosis.resume()
        self._due_after = self._ticked_at = self._began_after = step
        self._plan_tick()

    def close(self) -> None:
        """Show what is left and remove all hooks from the model; calling it again does nothing.

        If it is called while an exception is handled, by ``finally`` or a framework, the run is marked as crashed.
        """
        try:
            handled = sys.exc_info()[1]
            self._close(None if handled is self._handled else failure_in(handled))
        except Exception as error:
            tell(self.inspector.state, CLOSING, error)

    def end(self, error: BaseException | None) -> None:
        """Close because the program ends: do not wait for a last tick with other processes."""
        try:
            self._close(error, alone=True)
        except Exception as failure:
            tell(self.inspector.state, CLOSING, failure)

    # called by the state of the inspector

    def step_is_over(self) -> None:
        """A step has ended. If something was reported after the previous step, expect that again and wait for it."""
        try:
            self.inspector.state.reported.clear()
            if self._now < self._due_after:  # passes were counted as steps until now
                self._due_after = self._now
                self._plan_tick()
            if self._is_due:
                is_report_expected = self._reported_at == self._now - 1 and not self._is_joint
                if is_report_expected or self._waits_for_reports:
                    self.inspector.state.is_quiet = False  # this tick wants to know when the next step begins
                else:
                    self._regular_tick()
        except Exception as error:
            tell(self.inspector.state, "a tick", error)

    def step_begins(self) -> None:
        """The next step begins: all reports for the last one have come."""
        try:
            self._complete_step()
        except Exception as error:
            tell(self.inspector.state, "a tick", error)

    def evaluation_begins(self) -> None:
        """The model is called for an evaluation."""
        if self._shows_evaluations:
            self.inspector.state.report(EVALUATION)

    def _complete_step(self) -> None:
        if not self.inspector.state.reported and not self._is_due:
            return
        reported, is_usual = set(self.inspector.state.reported), self._reported_at == self._now - 1
        was_shown = self._ticked_at == self._now
        is_late = self._is_joint and was_shown  # all processes have shown this step already
        rare = reported - {TRAINING_LOSS} - (self._reported_before if is_usual and not is_late else set())
        if reported:
            self._reported_at, self._reported_before = self._now, reported
        if self._is_due:
            self._regular_tick()
        elif rare and not self._is_joint and (EVALUATION in rare or not (is_usual or self._is_timed)):
            self._tick()
        elif was_shown and TRAINING_LOSS in reported and not self._is_joint:
            self._tick()  # from now on a tick waits for it
        elif rare:
            self.inspector.hold(rare)

    @property
    def _now(self) -> int:
        return self.inspector.state.step

    @property
    def _is_due(self) -> bool:
        if not self._is_time:
            return False
        if self._plans_for_all != self._is_joint:  # other processes were started since
            self._plan_tick()
        return self._is_time

    @property
    def _is_time(self) -> bool:
        state = self.inspector.state
        return state.step >= state.tick_step or (state.step > self._due_after and perf_counter() >= state.tick_time)

    def _plan_tick(self) -> None:
        """Say when the next tick is due: by steps, or by time."""
        state, self._plans_for_all = self.inspector.state, self._is_joint
        state.tick_step = state.tick_time = math.inf
        if self._tick_every is not None:
            state.tick_step = self._due_after + self._tick_every
        elif self._plans_for_all:
            state.tick_step = self._due_after + (state.steps_to_next_tick or FEW)
        else:
            state.tick_time = self._last_tick + self._pause
            if self._is_early:
                state.tick_step = self._due_after + max(self._due_after // 10, FEW)

    @property
    def _is_early(self) -> bool:
        """Whether ticks still come by steps: no longer if they are expensive or the budget cannot pay for them."""
        cadence = self.inspector.state.cadence
        if self._ticks >= OFTEN or cadence.cost.in_ticks > DEAR:
            return False
        return cadence.budget is None or (cadence.head_start > 0 and not cadence.is_spent)

    @property
    def _is_timed(self) -> bool:
        """Whether ticks come by time only, as many as the budget pays for: a report has to wait for the next one."""
        return self._tick_every is None and not self._is_early

    @property
    def _is_joint(self) -> bool:
        """Whether a tick needs all processes, which must then tick at the same step."""
        return several_processes() and not self.inspector.state.per_rank

    @property
    def _has_reports(self) -> bool:
        return bool(self.inspector.state.reported)

    def _regular_tick(self) -> None:
        self._due_after = self._now
        self._tick()

    def _tick(self) -> None:
        self.inspector.state.reported.clear()
        self.inspector.state.wished_tick = self._steps_to_next_tick()
        self._ticked_at = self._now
        self.inspector.show_tick()
        self._last_tick = perf_counter()
        self._ticks += 1
        least = self._usual_tick() / self._share_of_ticks()
        self._pause = max(PAUSE, least, (self._last_tick - self._began) / MOST_TICKS)
        self._plan_tick()
        self._note_overhead()
        may_loss_be_late = self._now <= self._began_after + 1  # that of the first step may be pushed after its tick
        if self._hints and not may_loss_be_late and (self.inspector.state.is_settled or not self._is_joint):
            self._hints = False
            _hint_at_loss(self.inspector)

    def _share_of_ticks(self) -> float:
        """The share of time that ticks may take."""
        cadence = self.inspector.state.cadence
        if cadence.budget is None:
            return SHARE_OF_TICKS
        left = cadence.budget - cadence.cost.idle_overhead
        return min(SHARE_OF_TICKS, max(SHARE_OF_BUDGET * left, LEAST_OF_BUDGET * cadence.budget))

    def _usual_tick(self) -> float:
        """Update and return the usual duration of a tick; call it once after each tick."""
        before, self._in_ticks = self._in_ticks, self.inspector.state.cadence.cost.in_ticks
        self._timed_ticks += 1
        took = max(0.0, self._in_ticks - before)
        self._tick_seconds += (took - self._tick_seconds) / min(self._timed_ticks, RECENT_TICKS)
        return self._tick_seconds

    def _steps_to_next_tick(self) -> int:
        """In how many steps this process wants the next tick."""
        steps = self._now - self._ticked_at
        if not self._is_timed or steps < 1:
            return self._tick_every or max(FEW, self._now // 10 if self._is_early else steps)
        # at most ten times as many steps as in this tick
        took = max(perf_counter() - self._last_tick, self._pause / 10)
        return math.ceil(self._pause * steps / took)

    @property
    def _lasting_overhead(self) -> float | None:
        """What observing costs; None while that covers the head start, which says nothing about the rest of the run."""
        overhead, cadence = self.inspector.overhead, self.inspector.state.cadence
        if overhead is None or (cadence.shows_head_start and overhead > (cadence.budget or 0.0)):
            return None
        return overhead

    def _note_overhead(self) -> None:
        """Note in the run what observing costs, whenever that has changed."""
        overhead, store = self._lasting_overhead, store_in(self.inspector.visualizer)
        known = None if overhead is None else round(overhead, 3), self.inspector.overhead_is_lower_bound
        if overhead is not None and known != self._known_overhead and store is not None:
            self._known_overhead = known
            store.note(overhead=known[0], overhead_at_least=known[1])

    def _is_open(self, method: str) -> bool:
        """Whether the watch is open; if not, warn once."""
        if self._closed and not self._was_told:
            self._was_told = True
            text = f"this watch is closed, so {method}() does nothing: call monitorch.watch(model) again"
            warn(text)
        return not self._closed

    def _close(self, error: BaseException | None, *, alone: bool = False) -> None:
        if self._closed:
            return
        try:
            self.inspector.complete_step()
            if self.inspector.state.attached and self._is_something_left(alone=alone):
                if not self._is_joint and self.inspector.state.engine is not None:
                    self.inspector.state.engine.find_origin()  # before its effect on the loss is reported
                self._tick()
        finally:
            if error is not None:
                self._dump(error)
            self._closed = True
            try:
                self._leave(error)
            finally:
                self._end_live_view()

    def _new_recorder(self) -> FlightRecorder | None:
        store, engine = store_in(self.visualizer), self.inspector.state.engine
        return None if store is None or engine is None else FlightRecorder(self.inspector, engine, store)

    def _dump(self, error: BaseException) -> None:
        was_recorded = isinstance(error, TrainingStopped) and getattr(error.event, "severity", "") == "error"
        try:
            if self._recorder is not None and not was_recorded:
                self._recorder.dump(f"the run was ended by {Failure.of(error).line}", error)
        except Exception as failure:
            tell(self.inspector.state, DUMPING, failure)

    def _is_something_left(self, *, alone: bool) -> bool:
        if not self._is_joint:
            return self._now > self._ticked_at or self._has_reports
        if alone or self._now > self._ticked_at:  # all processes count the same steps
            return not alone
        # but perhaps only one process evaluated
        self.inspector.state.settle()
        return self.inspector.state.meeting.end(has_more=self._has_reports, shows=self.inspector.is_main_process)

    def _leave(self, error: BaseException | None) -> None:
        self._call_off()
        if self._recorder is not None:
            self._recorder.close()
        self.inspector.state.settle()
        if self._diagnosis is not None:
            self._diagnosis.close()
        self.inspector.state.call_back()
        self._bank = None
        if left := self._with_model.detach():
            _watches.pop(left[0], None)
        visualizer = self.inspector.visualizer
        if self.inspector.state.attached:
            self.inspector.leave()  # detach() clears figures, and the user still wants them
        status = "finished" if error is None else "crashed"
        shown = visualizer[0] if self._trackers and isinstance(visualizer, Several) else visualizer
        if self._owns_visualizer and isinstance(shown, StoreVisualizer):
            shown.close(status, error)
        elif self._owns_visualizer and hasattr(shown, "close"):
            shown.close()
        end_tracking(self._trackers, store_in(visualizer), status)

    def _end_live_view(self) -> None:
        view, self._live_view = self._live_view, None
        if view is not None and (failure := view.close()) is not None:
            tell(self.inspector.state, LIVE, failure)


_watches: WeakKeyDictionary[nn.Module, Watch] = WeakKeyDictionary()
"""The watch of each model, to close it when the model is watched again."""


def _close_with_model(watch: Watch) -> None:
    """The model is gone: show what is left, unless tensors cannot be read just now."""
    watch.inspector.state.on_error = "warn"  # nobody could catch an error
    if _can_read_tensors():
        # the garbage collector may run while a context variable is being set, and setting another one then crashes
        # Python
        copy_context().run(watch.end, None)
    else:
        watch.inspector.drop()


def _can_read_tensors() -> bool:
    """Whether tensors can be read here and now: the garbage collector may run at any time and in any thread."""
    if threading.current_thread() is not threading.main_thread() or is_traced():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def failure_in(error: BaseException | None) -> BaseException | None:
    """The exception, unless it is one that ends a program or a generator normally."""
    is_fine = isinstance(error, (GeneratorExit, StopIteration, StopAsyncIteration))
    return None if is_fine or (isinstance(error, SystemExit) and error.code in (None, 0)) else error


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options that neither ``watch`` nor an inspector has, and suggest the name that was probably meant."""
    known = (signature(PyTorchInspector).parameters.keys() | signature(watch).parameters.keys()) - {"module"}
    for name in given.keys() - known:
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}=?" if near else f"; the options are {', '.join(sorted(known))}"
        raise TypeError(f"watch() has no option {name!r}{hint}")


def _check_tick_every(steps: Any) -> None:
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise OptionError(f"tick_every={steps!r} must be a whole number of steps, at least 1, or None")


def _cadence(every: Any, budget: float | None, head_start: float | None) -> dict[str, Any]:
    """What an inspector is told about which steps to observe; ``watch`` has a budget and a head start by default."""
    if every is None and budget is None:
        budget, head_start = BUDGET, HEAD_START if head_start is None else head_start
    return {
        "every": 1 if every is None else every,
        "budget": budget,
        "head_start": 0.0 if head_start is None else head_start,
    }


def _is_callback(caller: FrameType) -> bool:
    """Whether one of our callbacks for a framework calls."""
    return str(caller.f_globals.get("__name__", "")).startswith(f"{__package__.partition('.')[0]}.integration.")


def _advise_callback(model: nn.Module) -> bool:
    """If a Trainer fits such models, say what to use there; returns whether it was said."""
    framework = callback_for(model)
    if framework is not None:
        cure = f"pass it callbacks=[MonitorchCallback()] of monitorch.integration.{framework}, and do not call watch()"
        reason = "a watch alone cannot recognise the loss, accumulated batches or the sanity check"
        warn(f"if a Trainer fits this {type(model).__name__}, {cure}: {reason}")
    return framework is not None


def _hint_at_loss(inspector: PyTorchInspector) -> None:
    """If no loss was seen, say how to show it."""
    if not any(record.lens == "LossMetrics" for record in inspector.records()):
        say(NO_LOSS)


def _close_at_exit(watch: Watch) -> Callable[[], None]:
    """Close the watch when Python exits, so that its last steps are shown; returns a function that cancels this."""
    known = weakref.ref(watch)

    def close() -> None:
        found = known()
        if found is not None:
            found.end(uncaught())

    atexit.register(close)
    weakref.finalize(watch, atexit.unregister, close).atexit = False
    return partial(atexit.unregister, close)
