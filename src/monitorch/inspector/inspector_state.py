"""The state that hooks and lenses share while training runs."""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import torch

from ..engine.engine import Engine
from ..engine.gradients import AT_STEP
from ..engine.loss_scale import LossScale
from ..engine.meeting import LONG_PATIENCE, Meeting
from ..engine.origin import Origin
from ..engine.ranks import several_processes
from ..engine.reports import is_news, tell
from ..engine.torch_private import inside_backward
from ..errors import ExchangeError, OptionError, warn
from ..numerical.waiting import Pending
from ..store.types import Event
from .agreements import LATENESS, Agreement, Agreements
from .cadence import Cadence
from .events import Events
from .hook_call import HookCall
from .step_clock import Phase
from .tick_finisher import TickFinisher

COUNTS = ("counter", "ticks", "step", "gaps")
ERROR_MODES = ("warn", "raise")

TRAINING_LOSS, EVALUATION = "the loss of training", "an evaluation"
"""What can be reported besides named numbers: see ``InspectorState.report``."""

STOP_NEEDS_ALL = "with several processes, stop_on needs all of them to agree, but this one works on its own"
BEHIND = "the other processes are behind by several ticks"
ALL_OR_NONE = "The parameters of this model are spread over several processes: watch it in each of them"


class Follower(Protocol):
    """An object that is told when steps and evaluations begin and end."""

    def step_is_over(self) -> None:
        """A step has ended and was counted; what comes before the next one begins still belongs to it."""

    def step_begins(self) -> None:
        """The first training pass of a step begins; the step is not counted yet."""

    def evaluation_begins(self) -> None:
        """A forward pass begins that is not a training pass."""


class Diagnosis(Protocol):
    """Looks at each tick."""

    def pending(self) -> list[Pending]:
        """What a tick should copy to the CPU for it."""

    def end_tick(self) -> None:
        """All numbers of a tick are folded."""


class InspectorState:
    """Counts ticks and says whether hooks record now.

    Args:
        is_active_fn: record only in ticks whose number is a multiple of this, or for which this function is true.
        on_error: on an error inside a hook ``"warn"`` once and continue without that layer, or ``"raise"``.
        cadence: which steps are observed; all of them by default.

    >>> state = InspectorState(is_active_fn=3)
    >>> [state.is_active, state.tick(), state.tick(), state.is_active]
    [False, 2, 3, True]
    """

    def __init__(
        self, is_active_fn: int | Callable[[int], bool] = 1, on_error: str = "warn", cadence: Cadence | None = None
    ) -> None:
        if isinstance(is_active_fn, int) and is_active_fn < 1:
            raise OptionError(f"is_active_fn={is_active_fn!r} must be at least 1, or a function of the tick's number")
        if not callable(is_active_fn) and not isinstance(is_active_fn, int):
            raise OptionError(
                f"is_active_fn={is_active_fn!r} must be a whole number or a function of the tick's number"
            )
        if on_error not in ERROR_MODES:
            raise OptionError.unknown("on_error", on_error, ERROR_MODES)
        self.is_active_fn: Callable[[int], bool] = is_active_fn if callable(is_active_fn) else EveryNth(is_active_fn)
        self.is_steady = not callable(is_active_fn)  # then is_active changes only with ticks and steps
        self.on_error = on_error
        self.cadence = cadence or Cadence()
        self.clock = self.cadence.clock
        """Measures how long hooks and steps take."""
        self.tick_step = self.tick_time = math.inf
        """The step after which a tick is due, or the time on ``time.perf_counter``, whichever comes first."""
        self.wished_tick: int | None = None
        """With several processes, in how many steps this one wants the next tick."""
        self.steps_to_next_tick: int | None = None
        """After how many steps all of them tick; None while they have not agreed."""
        self._paused = self._is_stopped = False
        self.attached = False
        self.loss_share = 1.0
        self.averages = False
        """Whether gradients are averaged over processes."""
        self.per_rank = False
        """Whether every process shows its own numbers, instead of one process showing those of all."""
        self.gradient = AT_STEP
        """When gradients of the optimizers' parameters are read."""
        self.loss_scale: LossScale | None = None
        """What losses are multiplied by (the GradScaler's scale), where that is known."""
        self.told: Counter[str] = Counter()
        """How often each problem occurred; the user is told once."""
        self.meeting = Meeting()
        """Where this inspector meets the inspectors of the other processes."""
        self.agreements = Agreements()
        """What the processes have agreed on."""
        self.engine: Engine | None = None
        """What measures for all lenses, while a model is attached."""
        self.diagnosis: Diagnosis | None = None
        """Looks for problems at each tick; None if nothing does."""
        self.events = Events(self)
        """What happened in this run."""
        self.first_not_finite: Origin | None = None
        """The first tensor that was not finite."""
        self.newest: Mapping[tuple[str, str], float] = {}
        """Losses and other numbers of the whole run from the last ticks that are done, by plot and curve. It is
        replaced, never changed: whoever must not wait for a tick may read it at any time."""
        self.agreed_stop = False
        """Whether all processes know that training is to be stopped."""
        self._hook_call = HookCall()
        self._finisher = TickFinisher(self.cadence.cost.spend_on_tick)
        self._followers: list[weakref.ref[Follower]] = []
        self.restart()

    def restart(self) -> None:
        """Start counting from the beginning."""
        self.counter = 1
        self.ticks = 0
        self.step = 0
        self.wished_at = 0
        """The step of the last tick with other processes."""
        self.observed = 0
        """How many training passes of this process were in observed steps; not saved in a checkpoint."""
        self.gaps = 0
        """How many passes were not recorded: a tensor must not be compared with one from before such a gap."""
        self.passes = 0
        """How many training passes there were."""
        self.pass_has_grad = True
        """Whether the current forward pass of the model began with gradients enabled."""
        self.steps_have_ends = False
        """Whether an optimizer or the user says when a step ends; otherwise each training pass is a step."""
        self.step_has_ended = True
        """Whether the last step has ended, and none has begun since."""
        self.is_evaluating = False
        """Whether the last pass was an evaluation."""
        self.phase, self._coming, self.is_baseline = Phase.IDLE, Phase.IDLE, False
        self.has_quiet_steps = False
        """Whether idle steps may end without telling anyone else; the step counter sets this."""
        self.is_quiet = False
        """Whether this step is idle and nobody needs to know when it begins or ends."""
        self._idle_until = 0
        self.reported = set[str]()
        """Names of the numbers reported since the last step ended; they belong to that step."""
        self.begin()

    def begin(self, device: torch.device | None = None, *, compares: bool = True) -> None:
        """Decide on the first step, if it has not begun; ``compares``: whether a lens compares consecutive steps."""
        if not self.step:
            self.cadence.restart()  # forget what was decided before the lenses were known
        self.cadence.needs_baseline = compares
        self._share_cadence()
        self.cadence.use(device)
        if not self.step:
            self._enter(self.cadence.phase(1))

    def _share_cadence(self) -> None:
        """With several processes, observe steps by their numbers: all the same ones."""
        if several_processes() and not self.per_rank:
            self.cadence.common_n = self.cadence.common_n or self.cadence.affordable_n(0)

    def tick(self, n_ticks: int = 1) -> int:
        """Begin the next tick and return its number."""
        self.counter += n_ticks
        self.ticks += n_ticks
        self._refresh()
        return self.counter

    def state_dict(self) -> dict[str, Any]:
        """The position in the run."""
        counts = {name: getattr(self, name) for name in COUNTS}
        phases = [int(self.phase), int(self._coming)]
        origin = None if self.first_not_finite is None else list(self.first_not_finite)
        kept = {"reported": sorted(self.reported), "first_not_finite": origin}
        return {**counts, "phases": phases, "cadence": self.cadence.state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name in COUNTS:
            setattr(self, name, state[name])
        self.cadence.load_state_dict(state["cadence"])
        self.wished_at = self.step
        self._share_cadence()
        self.reported = set(state["reported"])
        origin = state["first_not_finite"]
        self.first_not_finite = None if origin is None else Origin(*origin)
        self._enter(*map(Phase, state["phases"]))
        self.clock.interrupt()  # no step has begun yet

    def begin_at(self, step: int) -> None:
        """Count on from this step."""
        self.step = self.wished_at = step
        self.cadence.restart()  # it has decided about other steps
        self._share_cadence()
        self._enter(self.cadence.phase(step + 1))

    def finish_tick(self, tick: Callable[[], None], *, later: bool) -> None:
        """Show a tick, now or in another thread."""
        if later:
            self._finisher.start(tick)
        else:
            tick()

    def rest(self) -> None:
        """Called by a tick between two parts: on a device, training goes on for a while first; a CPU is busy anyway."""
        if not self.clock.waits:
            self._finisher.rest()

    def end_tick(self, begin: Any, elsewhere: float) -> None:
        """End a tick that began at ``begin``; the visualizer's threads took ``elsewhere`` seconds since the last."""
        self.cadence.cost.spend_on_tick(elsewhere, self.clock.end_pause(begin))

    def settle(self) -> bool:
        """Wait until earlier ticks are shown; call this before reading any number.

        False if this thread is showing a tick: then it must not see later numbers.
        """
        if self._finisher.is_this_thread:
            return False
        try:
            self._finisher.wait()
        except Exception as error:
            tell(self, "showing a tick", error)
        return True

    @property
    def is_settled(self) -> bool:
        """Whether all ticks are shown."""
        return self._finisher.is_done

    def take_agreement(self) -> None:
        """A tick with other processes begins: apply what all agreed on some ticks ago.

        If that has not arrived, the others are far behind, and this process goes on alone.
        """
        has_come = True
        try:
            has_come = self._finisher.wait(LATENESS - 1, self.meeting.patience)
        except Exception as error:
            tell(self, "showing a tick", error)
        if self.per_rank:
            return
        if not has_come:
            self.meeting.leave()
            self.work_alone()
            if self.on_error == "raise":
                raise ExchangeError(BEHIND)
            warn(f"{BEHIND}. From now on this one shows only its own numbers")
            return
        agreement = self.agreements.due()
        if agreement is not None:
            self.apply(agreement)

    def apply(self, agreement: Agreement) -> None:
        """Do what all processes have agreed on."""
        self.cadence.common_n, self.cadence.has_agreed = agreement.every, True
        self.steps_to_next_tick = agreement.tick_in
        if agreement.stop is not None:
            self.events.stop, self.agreed_stop = agreement.stop, True

    def average_over(self, processes: int) -> None:
        """Set over how many processes gradients are averaged; 0 if they are not."""
        self.averages, self.loss_share = processes > 0, 1 / max(processes, 1)

    def meet_as(self, what: str, *, is_spread: bool = False) -> None:
        """Meet the inspectors of the other processes that watch the same kind of model.

        Args:
            what: the class of the watched model.
            is_spread: whether its parameters are spread over processes: then measuring needs collectives, and all
                processes must watch the model.
        """
        self.meeting.leave()
        self.meeting, self.agreements, self._is_stopped = Meeting(what), Agreements(), False
        self._refresh()
        if is_spread and several_processes():
            try:
                self.meeting.meet(self.step, patience=LONG_PATIENCE)
            except ExchangeError as error:
                if self.on_error == "raise":
                    raise
                self.stop_recording()
                warn(f"nothing is recorded: {error}. {ALL_OR_NONE}")

    def stop_recording(self) -> None:
        """Record nothing until another model is attached: numbers of this one would be wrong."""
        self._is_stopped = True
        self._refresh()

    def work_alone(self) -> None:
        """From now on every process shows its own numbers."""
        self.per_rank, self.cadence.common_n = True, None
        if self.engine is not None:
            self.engine.joins = False

    def next_step(self, *, begins: int = 0, in_graph: bool = False) -> None:
        """End a step and begin the next one.

        Args:
            begins: 1 if the new step is counted now, 0 if it is counted when it ends.
            in_graph: whether the step begins in a compiled graph, which must know one step ahead what to record.
        """
        number, cadence = self.step + 2 - begins, self.cadence
        self._hook_call.measure()
        self.clock.calling = self._hook_call.seconds
        if number == 1:
            phase = cadence.phase(number)  # the first step begins, and none has ended
        elif self.wants_data():
            cadence.end_step(number - 1, self.phase)
            phase = cadence.phase(number)
        else:
            phase = cadence.phase(number)
            cadence.end_step(number - 1, Phase.IDLE, phase)
        if begins:
            self._begin_step()  # not before the end of the last step is measured: there may be a tick now
        self.step += 1
        coming = phase
        if in_graph:
            phase, coming = phase if self._coming > 0 else Phase.IDLE, cadence.phase(number + 1)
        if phase != self.phase or coming != self._coming or not self.is_steady:
            self._enter(phase, coming)
        self.is_quiet = self.has_quiet_steps and self.is_steady and self._is_active and coming == Phase.IDLE == phase
        if self.is_quiet:
            self.is_quiet = not (self.clock.times_hooks or (self.engine is not None and self.engine.checks_steps))
        self._idle_until = cadence.idle_until(number) if self.is_quiet else 0
        if not begins:
            self.end_step()

    def notice(self, kind: str) -> None:
        """Something unusual was seen, which is worth a closer look; another thread may call this."""
        self.cadence.notice(kind)
        self.is_quiet = False

    def close_tick_soon(self) -> None:
        """Something was found that should be shown soon: end the tick after this step.

        With several processes all tick at the same steps, so it ends when they have agreed to. If the user makes the
        ticks, nothing happens.
        """
        are_planned = min(self.tick_step, self.tick_time) < math.inf
        if are_planned and (self.per_rank or not several_processes()):
            self.tick_time, self.is_quiet = -math.inf, False

    @property
    def bare_step(self) -> float | None:
        """How many seconds a step takes that is not observed; None while not known."""
        return self.cadence.cost.bare_step

    def tell_of_origin(self, origin: Origin) -> None:
        """Something was not finite, and this was the first; another thread may call this."""
        self.first_not_finite = origin
        self.events.add(origin.step, "not finite", "error", layer=origin.layer or None, text=origin.text)

    def tell_of_number(self, event: Event) -> None:
        """A number that was shown is not finite. If the first such tensor is known, this is only a consequence."""
        if self.first_not_finite is None:
            self.events.put(event)

    def end_quiet_step(self) -> bool:
        """End a step cheaply if it is quiet and the next one is idle too; False if there is more to do."""
        now, step, clock = perf_counter(), self.step + 1, self.clock
        if not self.is_quiet or step + 1 >= self._idle_until or step >= self.tick_step or self.events.waiting:
            return False
        if now >= self.tick_time:
            return False
        self.step, self.step_has_ended = step, True
        clock.end_quietly(now)
        # the optimizer's hooks; strictly, this time belongs to the next step
        clock.spent = perf_counter() - now + clock.calling
        return True

    def end_step(self) -> None:
        """End a step; what comes before the next training pass still belongs to it."""
        self.step_has_ended = True
        for follower in self._following():
            follower.step_is_over()
        self.call_back()

    @property
    def is_between_steps(self) -> bool:
        """Whether no step has begun that has not ended; without known ends, each training pass is a step."""
        return self.step_has_ended or not self.steps_have_ends

    def call_back(self) -> None:
        """Pass events to the user's function; that time does not count as overhead."""
        if self.events.waiting and not inside_backward():  # inside backward, other optimizers may not have stepped yet
            begin = self.clock.begin_pause()
            self.events.call_back()
            self.clock.end_pause(begin)

    def stop_if_asked(self) -> None:
        """Between two steps: stop training, if an event asks for it. With several processes all stop at one tick."""
        if self.events.stop is None or not self.is_between_steps or inside_backward():
            return
        if not several_processes():
            self.events.raise_stop()
        elif self.agreed_stop:
            self.agreed_stop = False
            self.events.raise_stop()
        elif self.per_rank and is_news(self, "stop_on"):
            warn(f"training is not stopped: {STOP_NEEDS_ALL}")

    def report(self, name: str) -> None:
        """A number came from an evaluation, or the user pushed or logged it."""
        self.reported.add(name)
        self.is_quiet = False

    def follow(self, follower: Follower) -> None:
        """Notify this object of steps; only a weak reference to it is kept."""
        self._followers.append(weakref.ref(follower))

    def open_step(self) -> int | None:
        """The step that new numbers belong to; None if each training pass is a step."""
        if not self.steps_have_ends:
            return None
        return self.step if self.step_has_ended else self.step + 1

    def finished_step(self) -> int | None:
        """During a step, the number of the step before it, which left the model as it is now.

        None between steps: numbers that arrive then belong to the last step anyway.
        """
        return None if self.is_between_steps else self.step

    def begin_step(self) -> None:
        """Begin a step if none has begun: an optimizer may step without a pass of the model."""
        if self.step_has_ended:
            self._begin_step()

    def _begin_step(self) -> None:
        self.step_has_ended = False
        for follower in self._following():
            follower.step_begins()

    def _following(self) -> list[Follower]:
        return [follower for known in self._followers if (follower := known()) is not None]

    def begin_pass(self) -> None:
        """A training pass begins."""
        self.passes += 1
        self.is_evaluating = False
        self.begin_step()
        if not self.wants_data():
            self.gaps += 1
        elif not self.is_baseline:
            self.observed += 1

    def begin_evaluation(self) -> None:
        """A forward pass begins that is not a training pass."""
        self.cadence.cost.has_evaluated = self.is_evaluating = True
        for follower in self._following():
            follower.evaluation_begins()

    def wants_data(self) -> bool:
        """Whether hooks should do anything now."""
        return self._is_wanted if self.is_steady else self.phase != Phase.IDLE and self.is_active

    def is_recording(self) -> bool:
        """The same as ``is_active``, for hooks."""
        return self._is_active if self.is_steady else self.is_active

    @property
    def paused(self) -> bool:
        """Whether recording is paused."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._refresh()
        self.clock.interrupt()  # a pause may last any time

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause recording inside a ``with`` block; a tick that is due by time is put off by as long."""
        before, self.paused, begin = self.paused, True, perf_counter()
        try:
            yield
        finally:
            self.tick_time += 0.0 if before else perf_counter() - begin
            self.paused = before

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Run something in a ``with`` block that takes time and uses the device, but is not part of training.

        Hooks stay in place, so steps before and after can be compared. The watched model must not run inside.
        """
        begin, paused = self.clock.begin_pause(), self._paused
        self._paused, self.is_quiet = True, False
        try:
            yield
        finally:
            self._paused = paused
            self.clock.end_pause(begin, computes=True)
            self.clock.interrupt()  # it may have been in the middle of a step

    def _enter(self, phase: Phase, coming: Phase | None = None) -> None:
        self.phase, self.is_baseline = phase, phase == Phase.BASELINE
        self._coming = phase if coming is None else coming
        self._refresh()

    def _refresh(self) -> None:
        self.is_quiet = False
        active = self._is_active = self.is_active
        self._is_wanted = active and self.phase != Phase.IDLE
        self.observing = active and self._coming != Phase.IDLE
        """A plain attribute, so that torch.compile makes one graph for True and one for False."""
        if self.engine is not None and self.engine.is_awake != self._is_wanted and (self._is_wanted or self.is_steady):
            begin = perf_counter()
            if self._is_wanted:
                self.engine.wake()
            else:
                self.engine.rest()
            took = perf_counter() - begin
            self.cadence.cost.spend(took)
            self.clock.leave_out(took)

    @property
    def is_active(self) -> bool:
        """Whether to record now; checked in every hook, so it may change within a tick."""
        return not (self._paused or self._is_stopped) and bool(self.is_active_fn(self.counter))


class EveryNth:
    """The function behind an integer ``is_active_fn``; a class, so that it can be pickled."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, counter: int) -> bool:
        """Whether ``counter`` is a multiple of n."""
        return counter % self.n == 0
