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
PAUSES = 3  # recent pauses kept: a device waits for the host while all steps are observed, and no longer soon after
IDLE_HOOKS = 9  # recent idle steps whose hooks were measured on the device
TIME_HOOKS_EVERY = 16  # steps
AFTER_COMPILING = 2  # steps after one that compiled something: they still allocate, tune and capture
MOST_OF_IDLE = 0.5  # the most of an idle step's time that is attributed to hooks
AFTERMATH = 2  # on a CPU, idle steps after an observed one that are slower because of cold caches
CLOSE = 32  # with fewer idle steps between observed ones, even the last may still be slow
DISTURBED = 0.15  # of an idle step: if the first after an observed one takes this much longer, later ones may as well
FEW = 3  # such first steps; from fewer it is not known
MOST_NOTICED = 0.5  # if a device notices more of idle hooks' time, it waits for the host
LONG = 1.0  # if idle steps take longer than this many seconds, warm-up hardly matters and skipping steps is costly


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
        """How much it delayed training; None if not known yet."""

    def has_passed(self) -> bool:
        """Whether the device has reached the end of the pause, so that its delay is known."""
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
        """Whether the host runs the steps itself (CPU), so that time inside hooks makes a step longer."""
        return self._device is None

    @property
    def times_hooks(self) -> bool:
        """Whether hooks of the current step are timed on the device too: then none may skip :meth:`enter`."""
        return self._spans is not None

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
        self._calm = 0  # for this many more disturbed steps, only those long enough after an observed one are kept
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
        self._spans: list[tuple[Any, Any, float]] | None = None
        self._spans_pending: deque[tuple[Phase, list[tuple[Any, Any, float]]]] = deque(maxlen=KEPT)
        self._untimed = 0
        self._pauses: deque[Pause] = deque(maxlen=KEPT)
        self._shares: deque[float] = deque(maxlen=PAUSES)
        self._hook_shares: deque[float] = deque(maxlen=IDLE_HOOKS)
        self.interrupt()

    def interrupt(self) -> None:
        """Forget where the step began: its duration is not measured."""
        self._began: Any = None

    def mark(self, *, with_hooks: bool = False) -> None:
        """The current step starts here. With ``with_hooks``, hooks are also timed on the device."""
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
            self._time_hooks(phase)
            if self._device is None:
                self._keep(phase, self._began - began, spent)
            else:
                self._pending.append((phase, began, self._began, spent))
                self._read_events()
        return spent

    def end_quietly(self, now: float) -> None:
        """The same for an idle step followed by another one. On a device it is not measured, since events cost time."""
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
        """How many steps ended quietly since the last call, and the time that hooks usually take in that many steps.

        On a busy machine, a hook that was preempted seems slow. So the median is used, as for step durations.
        """
        steps, self._quiet_steps = self._quiet_steps, 0
        return steps, steps * statistics.median_low(self._in_quiet_hooks) if steps else 0.0

    def skip(self) -> float:
        """A step ends that is not measured; returns the time that hooks took in it."""
        self.interrupt()
        return self._take_spent()

    def _take_spent(self) -> float:
        """The time that hooks took in the step that ends now; the rest of a running hook counts for the next step."""
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
        return begin, self._event(), self._clock()

    def leave(self, begin: Any) -> None:
        """A hook ends."""
        self.is_in_hook = False
        if isinstance(begin, tuple):
            begin, event, then = begin
            if self._spans is not None:
                self._spans.append((event, self._event(), self._clock() - then))
        self.spent += self._clock() - max(begin, self._ended)

    def leave_out(self, seconds: float) -> None:
        """The last ``seconds`` belong to no step and to no hook, even if one is running."""
        if self.is_in_hook:
            self.spent -= seconds
        self.mark()

    def begin_pause(self) -> Any:
        """Training waits from here on; pass what this returns to :meth:`end_pause`."""
        may_record = self._device is not None and not torch.cuda.is_current_stream_capturing()
        return self._clock(), self._event() if may_record else None, _compiled()

    def end_pause(self, begin: Any, *, computes: bool = False) -> Pause:
        """Training goes on. The pause belongs to no step and to no hook, even if one is running.

        If something was compiled during it, it counts as zero. A pause that ``computes`` on the device says nothing
        about how steps suffer from a busy host.
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

        1 on a CPU; 0 on a device that always has queued work.
        """
        return min(self._pause_share, self.idle_share)

    @property
    def idle_share(self) -> float:
        """How much longer an idle step gets for each second inside its hooks, kernels included."""
        return statistics.median_low(self._hook_shares) if self._hook_shares else self._pause_share

    @property
    def device_waits(self) -> bool:
        """Whether a device waits for the host, so that idle steps get longer by time that no hook can see.

        Measured are hooks and their calls. What they push out of the host's caches makes the code after them slower.
        """
        return self._device is not None and bool(self._hook_shares) and self.idle_share > MOST_NOTICED

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

        All steps may become slower over time. Observed steps are rare, so an old one must not be compared with new idle
        ones.
        """
        return statistics.median_low(self._extra[phase]) if self._extra[phase] else None

    def take_extras(self) -> list[tuple[Phase, float]]:
        """How much longer each step measured since the last call took than the idle steps around it."""
        self._read_events()
        found, self._new_extras = self._new_extras, []
        return found

    def take_aftermaths(self) -> float:
        """How much idle steps were slowed down by an observed step before them, since the last call.

        Not known if every idle step comes right after an observed one.
        """
        number, self._aftermaths = self._aftermaths, 0
        usual = (statistics.median_low(extras) for extras in self._after if extras)
        return number * sum(max(0.0, extra) for extra in usual)

    @property
    def is_never_calm(self) -> bool:
        """Whether all idle steps come so soon after an observed one that they are probably slower than bare ones."""
        if self._device is not None or not self._idle:
            return False
        if not self._calm:
            return True
        if self._stretch >= CLOSE:
            return False
        first = self._after[0]
        return len(first) < FEW or statistics.median_low(first) > DISTURBED * statistics.median_low(self._idle)

    def usual_in_hooks(self, phase: Phase) -> float:
        """The median CPU time inside hooks of a step; 0 while not known."""
        return statistics.median_low(self._in_hooks[phase]) if self._in_hooks[phase] else 0.0

    def usual_share(self, phase: Phase) -> float | None:
        """The part of a step that hooks and their kernels certainly take; None if not known yet.

        On CUDA this is the time between events around each hook, in some steps: kernel time if the device always has
        queued work, host time if it waits for the hooks.
        """
        found = self._in_hooks[phase] if self._device is None else self._on_device[phase]
        return statistics.median_low(found) if found else None

    def _keep(self, phase: Phase, seconds: float, spent: float) -> None:
        self._in_hooks[phase].append(spent)
        if phase == Phase.IDLE:
            # a hook that waits for work started elsewhere seems to take that time itself
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
        """Keep the duration of an idle step; one right after an observed step only while there are no others."""
        place, self._since_busy = self._since_busy, self._since_busy + 1
        is_disturbed = place < AFTERMATH and self._device is None
        if is_disturbed and self._calm:
            self._calm -= 1
            self._aftermaths += place == 0
            self._after[place].append(self._beyond_idle(seconds))
            return
        if not is_disturbed:
            if not self._calm:
                self._idle.clear()
            self._calm = KEPT
        self._idle.append(seconds)

    def _time_hooks(self, phase: Phase) -> None:
        """Time hooks on the device: in some idle steps, or in some observed ones while there are no idle ones."""
        if self._device is None:
            return
        if self._spans:
            self._spans_pending.append((phase, self._spans))
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
            return  # querying an event would end a graph capture
        while self._spans_pending and all(end.query() for _, end, _ in self._spans_pending[0][1]):
            phase, spans = self._spans_pending.popleft()
            on_device = sum(begin.elapsed_time(end) for begin, end, _ in spans) / 1000
            on_host = sum(seconds for *_, seconds in spans)  # between the same events, which take time themselves
            self._on_device[phase].append(on_device)
            if phase == Phase.IDLE and on_host > 0:
                self._hook_shares.append(on_device / on_host)
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
