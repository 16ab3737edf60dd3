"""What observing costs, and how long the same steps take without it."""

from collections import deque
from typing import Any

from .step_clock import Pause, Phase, StepClock

RECENT_SECONDS, RECENT_STEPS = 10.0, 100
"""The overhead shown covers at least this many seconds and this many steps."""

BLOCK = 1.0
"""Seconds of training between two points of that history."""


class Cost:
    """Adds up the seconds that observing takes, and those that the same steps take without it.

    An observed step costs the time it takes beyond an idle one: hooks and kernels. It is charged the usual cost first,
    and its own once measured, limited to twice the usual: a larger excess has another cause. On a CPU it also slows
    down the next idle steps, which find cold caches; that is charged too. An idle step costs the time inside its hooks.
    Time that the clock does not see is passed to :meth:`spend`: ticks, threads that store numbers, adding and removing
    hooks.

    If no step is idle, there is nothing to compare with. The result is then a lower bound: the time inside hooks and,
    on CUDA, of their kernels.

    >>> clock = StepClock(clock=iter([0.0, 1.0, 2.0, 5.0, 8.0, 11.0]).__next__)
    >>> cost = Cost(clock)
    >>> clock.mark()
    >>> for phase in (Phase.IDLE, Phase.IDLE, Phase.OBSERVE, Phase.OBSERVE, Phase.OBSERVE):
    ...     cost.end_step(phase, clock.end(phase))
    >>> cost.settle()
    >>> cost.bare, cost.spent, cost.overhead
    (5.0, 6.0, 1.2)
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Begin from nothing."""
        self.spent = self.bare = 0.0
        """Seconds that observing has taken so far, and seconds that the same steps would have taken without it."""
        self.on_steps = 0.0
        """The part of ``spent`` caused by observed and baseline steps."""
        self.on_idle = 0.0
        """The part caused by hooks of idle steps."""
        self.in_ticks = 0.0
        """Seconds that ticks have taken so far, in all threads."""
        self.has_evaluated = False
        """Whether the model was evaluated since the last step, so that hooks may have taken much longer than usual."""
        self._elsewhere: list[float] = []
        self._in_idle_hooks = 0.0
        self._pauses: list[Pause] = []
        self._unpaid = dict.fromkeys(Phase, 0)  # steps that are not in the sums yet
        self._steps = 0
        self._history: deque[tuple[int, float, float]] = deque([(0, 0.0, 0.0)])

    def state_dict(self) -> dict[str, Any]:
        """The sums so far; durations are measured again."""
        self.settle()
        return {"spent": self.spent, "bare": self.bare, "on_steps": self.on_steps, "on_idle": self.on_idle}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.restart()
        self.spent, self.bare, self.on_steps = state["spent"], state["bare"], state["on_steps"]
        self.on_idle = state.get("on_idle", 0.0)  # older states lack it
        self._history = deque([(0, self.spent, self.bare)])

    def spend(self, seconds: float) -> None:
        """Add time that observing took outside of steps, or in another thread, from which this may be called."""
        self._elsewhere.append(seconds)

    def spend_on_tick(self, seconds: float, pause: Pause | None = None) -> None:
        """The same for a tick; ``pause`` is the time that training waited for it."""
        self.in_ticks += seconds
        self.spend(seconds)
        if pause is not None:
            self.in_ticks += pause.seconds
            self._pauses.append(pause)

    def end_step(self, phase: Phase, in_hooks: float) -> None:
        """A step of this phase has ended, with this time inside hooks."""
        self._unpaid[phase] += 1
        evaluated, self.has_evaluated = self.has_evaluated, False
        if phase == Phase.IDLE:
            self._in_idle_hooks += in_hooks
        elif evaluated:
            self.spent += max(0.0, in_hooks - self._clock.usual_in_hooks(phase))

    @property
    def lacks_idle_steps(self) -> bool:
        """Whether no idle step was measured, so there is nothing to compare with."""
        return not self._clock.has_measured(Phase.IDLE)

    @property
    def overhead_is_lower_bound(self) -> bool:
        """Whether the true overhead may be higher.

        No step was idle, observed ones have slowed idle ones down, or a device waits for the host in idle ones.
        """
        return self.lacks_idle_steps or self._clock.is_never_calm or self._clock.device_waits

    @property
    def bare_step(self) -> float | None:
        """Seconds of a step that is not observed; None if not known yet."""
        idle = self._clock.usual(Phase.IDLE)
        if idle is not None:
            return idle
        observed, own = self._clock.usual(Phase.OBSERVE), self._clock.usual_share(Phase.OBSERVE)
        return None if observed is None or own is None else max(0.0, observed - own)

    def price(self, phase: Phase) -> float | None:
        """What a step of this phase costs; None while not known."""
        if phase == Phase.IDLE:
            return 0.0  # the time in its hooks is added directly
        extra = self._clock.usual_extra(phase)
        if extra is None:
            took, bare = self._clock.usual(phase), self.bare_step
            extra = None if took is None or bare is None else took - bare
        return None if extra is None else max(extra, self._least(phase))

    def _least(self, phase: Phase) -> float:
        return self._clock.usual_in_hooks(phase) if self._clock.waits else 0.0

    def settle(self) -> None:
        """Bring the sums up to date."""
        elsewhere, self._elsewhere = self._elsewhere, []
        quiet_steps, in_quiet_hooks = self._clock.take_quiet_steps()
        in_idle_hooks, self._in_idle_hooks = self._in_idle_hooks + in_quiet_hooks, 0.0
        on_idle = in_idle_hooks * self._clock.idle_share
        self.on_idle += on_idle
        self.spent += sum(elsewhere) * self._clock.host_share + on_idle
        self.spent += sum(pause.noticed or 0.0 for pause in self._pauses)
        self._pauses = [pause for pause in self._pauses if pause.noticed is None]
        self._unpaid[Phase.IDLE] += quiet_steps
        bare = self.bare_step
        if bare is None:
            return
        for phase, steps in self._unpaid.items():
            price = self.price(phase) if steps else None
            if price is not None:
                self._unpaid[phase] = 0
                self._steps += steps
                self.bare += steps * bare
                self._pay(steps * price)
        for phase, extra in self._clock.take_extras():
            price, least = self.price(phase) or 0.0, self._least(phase)
            self._pay(min(max(extra, least), 2 * price - least) - price)
        self._pay(self._clock.take_aftermaths())
        if self.bare + self.spent - sum(self._history[-1][1:]) >= BLOCK:
            self._history.append((self._steps, self.spent, self.bare))
            while len(self._history) > 1 and self._is_old(self._history[1]):
                self._history.popleft()

    def _pay(self, seconds: float) -> None:
        self.spent += seconds
        self.on_steps += seconds

    def _is_old(self, point: tuple[int, float, float]) -> bool:
        steps, spent, bare = point
        return self._steps - steps >= RECENT_STEPS and self.spent + self.bare - spent - bare >= RECENT_SECONDS

    @property
    def overhead(self) -> float | None:
        """What observing has recently added to the time of steps, relative to it; None while not known."""
        self.settle()
        if self._unpaid[Phase.OBSERVE]:
            return None  # steps were observed whose cost is not known yet
        _, spent, bare = self._history[0]
        return (self.spent - spent) / (self.bare - bare) if self.bare > bare else None

    @property
    def idle_overhead(self) -> float:
        """The time that hooks of idle steps have taken, relative to that of all steps; 0 while not known."""
        self.settle()
        return self.on_idle / self.bare if self.bare else 0.0

    @property
    def spent_before(self) -> float:
        """The part of ``spent`` before the steps that ``overhead`` covers."""
        self.settle()
        return self._history[0][1]

    @property
    def recent_steps(self) -> int:
        """How many steps ``overhead`` covers."""
        self.settle()
        return self._steps - self._history[0][0]
