"""How long steps take, by phase."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

from ..engine.kernels.launch import number_of_kernels
from ..engine.torch_private import number_of_graphs

KEPT = 63  # recent durations of each phase; odd, so that the middle one is neither high nor low
JUST_NOW = 5  # idle steps that others are compared with
PAUSES = 3  # recent ones: while all steps are observed a device waits for the host, and soon after no more
IDLE_HOOKS = 9  # recent idle steps whose hooks were measured on the device
TIME_HOOKS_EVERY = 16  # steps
AFTER_COMPILING = 2  # steps after one that compiled something: they still allocate, tune and capture
MOST_OF_IDLE = 0.5  # of an idle step, as far as hooks are believed to have made it longer
AFTERMATH = 2  # idle steps after an observed one on a CPU: they find little in its caches, and take longer
CLOSE = 32  # idle steps between observed ones: among fewer, even the last may not have recovered
DISTURBED = 0.25  # of an idle step: if the first one after an observed one takes so much longer, others suffer, too
LONG = 1.0  # seconds of an idle step: beside it such beginnings are short, and leaving steps out is dear


class Phase(IntEnum):
    """What is done in a step."""

    IDLE = 0
    """Nothing."""
    BASELINE = 1
    """Only records what the observed step after it is compared with."""
    OBSERVE = 2
    """Everything."""


class Pause:
    """A time in which training has waited.

    Args:
        seconds: how long the host took.
        events: at both ends, where a device goes on with what it was given before.
    """

    def __init__(self, seconds: float, events: tuple[Any, Any] | None = None) -> None:
        self.seconds, self._events = seconds, events
        self.noticed: float | None = seconds if events is None else None
        """How much longer training takes for it; None while not known."""

    def has_passed(self) -> bool:
        """Whether a device has come to its end: then what it has noticed is known."""
        if self.noticed is None and self._events is not None and self._events[1].query():
            begin, end = self._events
            self.noticed = min(self.seconds, begin.elapsed_time(end) / 1000)
        return self.noticed is not None


class StepClock:
    """How long recent steps took, by phase; never waits for a device.

    On CUDA an event is recorded at each boundary and read once it has passed by itself. Steps that compile a graph or a
    kernel, and the first ones of a phase, are left out.

    Args:
        device: where the steps run.
        clock: returns the time in seconds.

    >>> clock = StepClock(clock=iter([0.0, 1.0, 2.0, 4.0]).__next__)
    >>> clock.mark()
    >>> for _ in range(3):
    ...     _ = clock.end(Phase.IDLE)
    >>> clock.usual(Phase.IDLE), clock.usual(Phase.OBSERVE)
    (1.0, None)
    """

    def __init__(
        self, device: torch.device | str | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock, self._device = clock, _cuda(device)
        self.calling = 0.0
        """Seconds that it takes torch to call a hook of a module, for hooks that measure themselves."""
        self.clear()

    @property
    def waits(self) -> bool:
        """Whether the host waits for the steps themselves: then time inside hooks makes a step longer."""
        return self._device is None

    def use(self, device: torch.device | str | None) -> None:
        """Measure on this device from now on."""
        if _cuda(device) != self._device:
            self._device = _cuda(device)
            self.clear()

    def clear(self) -> None:
        """Forget all durations."""
        self._durations: dict[Phase, deque[float]] = {phase: deque(maxlen=KEPT) for phase in Phase}
        self._idle = self._durations[Phase.IDLE]
        self._in_hooks: dict[Phase, deque[float]] = {phase: deque(maxlen=KEPT) for phase in Phase}
        self._extra: dict[Phase, deque[float]] = {phase: deque(maxlen=KEPT) for phase in Phase}
        self._new_extras: list[tuple[Phase, float]] = []
        self._after: list[deque[float]] = [deque(maxlen=KEPT) for _ in range(AFTERMATH)]
        self._since_busy, self._stretch = AFTERMATH, CLOSE
        self._calm = 0  # for so many more steps those that came long enough after an observed one stand for all
        self._aftermaths = 0
        self._to_skip = {Phase.IDLE: 0, Phase.BASELINE: 1, Phase.OBSERVE: 2}
        self._compiled = _compiled()
        self._pending: deque[tuple[Phase, Any, Any, float]] = deque(maxlen=KEPT)
        self.spent = 0.0
        """Seconds that hooks have taken in the current step so far."""
        self.is_in_hook = False
        """Whether one of our hooks is running."""
        self._entered = self._ended = -math.inf  # when it began, and when a step has ended in one
        self._quiet_steps = 0
        self._in_quiet_hooks: deque[float] = deque(maxlen=KEPT)
        self._on_device: dict[Phase, deque[float]] = {phase: deque(maxlen=KEPT) for phase in Phase}
        self._spans: list[tuple[Any, Any]] | None = None
        self._spans_pending: deque[tuple[Phase, list[tuple[Any, Any]], float]] = deque(maxlen=KEPT)
        self._untimed = 0
        self._pauses: deque[Pause] = deque(maxlen=KEPT)
        self._shares: deque[float] = deque(maxlen=PAUSES)
        self._hook_shares: deque[float] = deque(maxlen=IDLE_HOOKS)
        self.interrupt()

    def interrupt(self) -> None:
        """Forget where the step began: its duration is not measured."""
        self._began: Any = None

    def mark(self, *, with_hooks: bool = False) -> None:
        """The current step is counted from here on; on a device ``with_hooks``, these are measured there, too."""
        if self._device is None:
            self._began = self._clock()
        elif torch.cuda.is_current_stream_capturing():
            self._began = None  # events of a graph that is being captured cannot be read
        else:
            self._began = self._event()
            if with_hooks:
                self._spans = []

    def end(self, phase: Phase) -> float:
        """A step of this phase ends here, and the next one begins; returns the time that hooks took in it."""
        began, spent = self._began, self._take_spent()
        self.mark()
        if phase != Phase.IDLE:
            self._stretch = self._since_busy or self._stretch
            self._since_busy = 0
        compiled = _compiled()
        if compiled != self._compiled:
            self._compiled, self._to_skip[phase] = compiled, 1 + AFTER_COMPILING
        elif self._to_skip[phase] and (self.usual(Phase.IDLE) or 0.0) > LONG:
            self._to_skip[phase] = 0
        if self._to_skip[phase]:
            self._to_skip[phase] -= 1
        elif began is not None and self._began is not None:
            self._time_hooks(phase, spent)
            if self._device is None:
                self._keep(phase, self._began - began, spent)
            else:
                self._pending.append((phase, began, self._began, spent))
                self._read_events()
        return spent

    def end_quietly(self, now: float) -> None:
        """The same for an idle step before another one; on a device it is not measured, since events cost time."""
        began, spent = self._began, self.spent
        self._quiet_steps += 1
        self._in_quiet_hooks.append(spent)
        self.spent = 0.0
        if self._device is not None:
            self._began = None
            return
        self._began = now
        if began is not None:
            self._keep_idle(now - began - spent)

    def take_quiet_steps(self) -> tuple[int, float]:
        """How many steps have ended quietly since the last call, and the time that hooks usually take in so many.

        On a busy machine a hook that was interrupted seems to take long. So do other parts of steps, and of their
        durations the median counts, too.
        """
        steps, self._quiet_steps = self._quiet_steps, 0
        return steps, steps * statistics.median_low(self._in_quiet_hooks) if steps else 0.0

    def skip(self) -> float:
        """A step ends that is not measured; returns the time that hooks took in it."""
        self.interrupt()
        return self._take_spent()

    def _take_spent(self) -> float:
        """The time that hooks took in the step that ends now; of one that is running, the rest is of the next step."""
        spent, self.spent = self.spent, 0.0
        if self.is_in_hook:
            now = self._clock()
            spent += now - max(self._entered, self._ended)
            self._ended = now
        return spent

    def enter(self) -> Any:
        """A hook begins; pass what this returns to :meth:`leave`."""
        self.is_in_hook = True
        self._entered = begin = self._clock()
        if self._spans is None or torch.cuda.is_current_stream_capturing():
            return begin
        return begin, self._event()

    def leave(self, begin: Any) -> None:
        """A hook ends."""
        self.is_in_hook = False
        if isinstance(begin, tuple):
            begin, event = begin
            if self._spans is not None:
                self._spans.append((event, self._event()))
        self.spent += self._clock() - max(begin, self._ended)

    def leave_out(self, seconds: float) -> None:
        """What took so long until now is part of no step, and of no hook, even if one is running."""
        if self.is_in_hook:
            self.spent -= seconds
        self.mark()

    def begin_pause(self) -> Any:
        """Training waits from here on; pass what this returns to :meth:`end_pause`."""
        may_record = self._device is not None and not torch.cuda.is_current_stream_capturing()
        return self._clock(), self._event() if may_record else None, _compiled()

    def end_pause(self, begin: Any, *, computes: bool = False) -> Pause:
        """Training goes on: it is part of no step and of no hook, even if one is running.

        It took no time if something was compiled in it. A pause that ``computes`` on the device does not tell whether
        steps suffer while the host is busy.
        """
        then, event, compiled = begin
        seconds: float = self._clock() - then
        self.leave_out(seconds)
        if compiled != _compiled():
            return Pause(0.0)
        if event is None or self._began is None or computes:
            return Pause(seconds)
        pause = Pause(seconds, (event, self._began))
        self._pauses.append(pause)
        return pause

    @property
    def host_share(self) -> float:
        """How much longer steps get for each second that the host spends on something else.

        On a CPU it is 1. A device that has always work to do does not notice.
        """
        return min(self._pause_share, self.idle_share)

    @property
    def idle_share(self) -> float:
        """How much longer idle steps get for each second inside their hooks, and by the kernels of those."""
        return statistics.median_low(self._hook_shares) if self._hook_shares else self._pause_share

    @property
    def _pause_share(self) -> float:
        return statistics.fmean(self._shares) if self._shares else 1.0

    def has_measured(self, phase: Phase) -> bool:
        """Whether the duration of a step is known."""
        self._read_events()
        return bool(self._durations[phase])

    def usual(self, phase: Phase) -> float | None:
        """The median duration of a step in seconds, without hooks if it is idle; None while not known."""
        self._read_events()
        return statistics.median_low(self._durations[phase]) if self._durations[phase] else None

    def usual_extra(self, phase: Phase) -> float | None:
        """The median of how much longer a step took than idle ones just then; None while not known.

        Steps may all become slower. Observed ones are rare, so old ones must not be compared with new idle ones.
        """
        return statistics.median_low(self._extra[phase]) if self._extra[phase] else None

    def take_extras(self) -> list[tuple[Phase, float]]:
        """How much longer each step took than idle ones just then, of those that were measured since the last call."""
        self._read_events()
        found, self._new_extras = self._new_extras, []
        return found

    def take_aftermaths(self) -> float:
        """How much longer idle steps took than others because one was observed before; of those since the last call.

        As far as it is known: where all idle steps come right after others, none tells how fast they would be.
        """
        number, self._aftermaths = self._aftermaths, 0
        usual = (statistics.median_low(extras) for extras in self._after if extras)
        return number * sum(max(0.0, extra) for extra in usual)

    @property
    def is_never_calm(self) -> bool:
        """Whether idle steps seem to take longer than bare ones do, since all come soon after an observed one."""
        if self._device is not None or not self._idle:
            return False
        if not self._calm:
            return True
        extras = self._after[0]
        is_disturbed = bool(extras) and statistics.median_low(extras) > DISTURBED * statistics.median_low(self._idle)
        return self._stretch < CLOSE and is_disturbed

    def usual_in_hooks(self, phase: Phase) -> float:
        """The median CPU time inside hooks of a step; 0 while not known."""
        return statistics.median_low(self._in_hooks[phase]) if self._in_hooks[phase] else 0.0

    def usual_share(self, phase: Phase) -> float | None:
        """The part of a step's duration that hooks and their kernels take for sure; None while not known.

        On CUDA this is the time between events at both ends of each hook, in some of the steps: that of kernels if the
        device has always work to do, and that of the hooks if it waits for them.
        """
        found = self._in_hooks[phase] if self._device is None else self._on_device[phase]
        return statistics.median_low(found) if found else None

    def _keep(self, phase: Phase, seconds: float, spent: float) -> None:
        self._in_hooks[phase].append(spent)
        if phase == Phase.IDLE:
            # a hook that waits for what others have started seems to take the time of those
            self._keep_idle(max(0.0, seconds - min(spent * self.idle_share, MOST_OF_IDLE * seconds)))
            return
        self._durations[phase].append(seconds)
        if self._idle:
            extra = self._beyond_idle(seconds)
            self._extra[phase].append(extra)
            self._new_extras.append((phase, extra))

    def _beyond_idle(self, seconds: float) -> float:
        return seconds - statistics.median_low(list(self._idle)[-JUST_NOW:])

    def _keep_idle(self, seconds: float) -> None:
        """Keep how long an idle step took by itself; one right after an observed one only while there are no others."""
        place, self._since_busy = self._since_busy, self._since_busy + 1
        is_disturbed = place < AFTERMATH and self._device is None
        if is_disturbed and self._calm and len(self._idle) >= JUST_NOW:
            self._calm -= 1
            self._aftermaths += place == 0
            self._after[place].append(self._beyond_idle(seconds))
            return
        if not is_disturbed:
            if not self._calm:
                self._idle.clear()
            self._calm = KEPT
        self._idle.append(seconds)

    def _time_hooks(self, phase: Phase, spent: float) -> None:
        """Measure hooks on the device: in some idle steps, and in some others as long as none is idle."""
        if self._device is None:
            return
        if self._spans:
            self._spans_pending.append((phase, self._spans, spent))
        self._spans = None
        if not self._idle:
            self._untimed += 1
            if self._untimed >= TIME_HOOKS_EVERY:
                self._spans, self._untimed = [], 0

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _read_events(self) -> None:
        if not (self._spans_pending or self._pauses or self._pending) or torch.cuda.is_current_stream_capturing():
            return  # a question to the device would end the capture of a graph
        while self._spans_pending and all(end.query() for _, end in self._spans_pending[0][1]):
            phase, spans, spent = self._spans_pending.popleft()
            self._on_device[phase].append(sum(begin.elapsed_time(end) for begin, end in spans) / 1000)
            if phase == Phase.IDLE and spent > 0:
                self._hook_shares.append(self._on_device[phase][-1] / spent)
        while self._pauses and self._pauses[0].has_passed():
            pause = self._pauses.popleft()
            self._shares.append((pause.noticed or 0.0) / pause.seconds if pause.seconds > 0 else 1.0)
        while self._pending:
            phase, before, after, spent = self._pending[0]
            if not (before.query() and after.query()):
                return
            self._pending.popleft()
            self._keep(phase, before.elapsed_time(after) / 1000, spent)


def _compiled() -> int:
    """How many graphs and kernels there are so far."""
    return number_of_graphs() + number_of_kernels()


def _cuda(device: torch.device | str | None) -> torch.device | None:
    """The device if it is a CUDA device, whose time is measured by events."""
    found = None if device is None else torch.device(device)
    return found if found is not None and found.type == "cuda" else None
