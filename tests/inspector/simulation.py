"""Training whose time passes only as a test says, so that what observing really costs is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from monitorch.inspector import inspector_state
from monitorch.inspector.cadence import CHECK_STEPS, Cadence, Phase
from monitorch.inspector.hook_call import HookCall
from monitorch.inspector.inspector_state import InspectorState
from monitorch.inspector.tick_finisher import REST
from tests.inspector.fake_time import FakeDevice, Time

IDLE, BASELINE, OBSERVE = Phase
PARTS = 10  # of a step, after each of which the device has something new to do


@dataclass(kw_only=True)
class Prices:
    """What things cost, in seconds; three numbers are for an idle, a baseline and an observed step."""

    hooks: tuple[float, float, float] = (0.0, 0.0, 0.0)
    kernels: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """How much longer a step takes besides the time inside hooks."""
    resting: float | None = None
    """Hooks of an idle step that is quiet or comes after another one, if these are fewer: those of layers are off."""
    switch: float = 0.0
    """To put hooks on, or to take them off."""
    tick: float = 0.0
    aftermath: tuple[float, ...] = ()
    """How much longer the idle steps right after an observed one take: their caches are empty."""
    store: float = 0.0
    """What another thread spends on a tick, while training waits for it."""


def observing(seconds: float, **others: Any) -> Prices:
    """An observed step takes so much longer, and a baseline step half of that; most of it is seen in hooks."""
    hooks, kernels = (0.0, 0.3 * seconds, 0.6 * seconds), (0.0, 0.2 * seconds, 0.4 * seconds)
    return Prices(**{"hooks": hooks, "kernels": kernels, **others})


@dataclass
class Simulation:
    """A training loop with a real cadence.

    Args:
        bare: how long a step takes by itself, or a function of its number.
        options: of the cadence.
        tick_every: seconds between ticks.
        in_graph: whether steps begin inside a compiled graph, which asks two steps ahead.
        quiet: whether idle steps go by with nobody told.
        between: called before each step with the simulation.
        device: where events are recorded; the host does not wait for it, and sees them ``lag`` seconds later.
    """

    bare: float | Callable[[int], float]
    prices: Prices
    options: dict[str, Any]
    tick_every: float | None = None
    in_graph: bool = False
    quiet: bool = False
    between: Callable[["Simulation"], None] = lambda simulation: None
    device: FakeDevice | None = None
    lag: float = 0.0
    phases: list[Phase] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time = Time()
        self.begin()
        self.trained, self.began, self.ticked_at, self.left_out = 0.0, self.time.now, self.time.now, 0.0
        self._history = [(0.0, 0.0)]

    def begin(self) -> None:
        """Make a new inspector's state, as in another process."""
        self.cadence = Cadence(clock=self.time, **self.options)
        self.state = InspectorState(cadence=self.cadence)
        self.state._hook_call = HookCall(self.time)  # calling a real hook takes none of this time
        self.state.follow(self)
        self.state.has_quiet_steps = self.quiet
        self.cadence.use(None if self.device is None else "cuda")
        self.cost = self.cadence.cost

    @property
    def number(self) -> int:
        """The number of the step that comes next."""
        return len(self.phases) + 1

    @property
    def took(self) -> float:
        """How long the run has lasted, without what :meth:`leave_out` was told."""
        return self.time.now - self.began - self.left_out

    @property
    def spent(self) -> float:
        """What observing has really cost."""
        return self.took - self.trained

    @property
    def ratio(self) -> float:
        """How long the run has lasted, relative to the same run without observing."""
        return self.took / self.trained

    def run(self, seconds: float = float("inf"), steps: float = float("inf")) -> "Simulation":
        """Train until the run has lasted so long, or for so many steps."""
        last = self.number + steps
        while self.took < seconds and self.number < last:
            self.step()
        return self

    def step(self) -> None:
        self.between(self)
        if self.in_graph:
            self.state.next_step(begins=1, in_graph=True)
        phase, number = self.state.phase, self.number
        bare = self.bare(number) if callable(self.bare) else self.bare
        self.trained += bare
        self.train(bare + self.prices.kernels[phase] + (self.after_a_busy_step() if phase == IDLE else 0.0))
        is_quiet = self.quiet and self.state.is_quiet
        is_resting = phase == IDLE and (is_quiet or self.phases[-1:] == [IDLE]) and self.prices.resting is not None
        hooks = self.prices.resting if is_resting else self.prices.hooks[phase]
        self.in_hook(hooks)
        self.phases.append(phase)
        if not self.in_graph and not (self.quiet and self.ends_quietly()):
            self.state.next_step()
        if (self.state.phase == IDLE) != (phase == IDLE):
            self.pass_time(self.prices.switch)
            self.cost.spend(self.prices.switch)
            self.cadence.clock.mark()
        self._history.append((self.took, self.trained))

    def after_a_busy_step(self) -> float:
        for place, seconds in enumerate(self.prices.aftermath, 1):
            if len(self.phases) >= place and self.phases[-place] != IDLE:
                return seconds
        return 0.0

    def ends_quietly(self) -> bool:
        self.state.tick_time = self.ticked_at + (math.inf if self.tick_every is None else self.tick_every)
        with patch.object(inspector_state, "perf_counter", self.time):
            return self.state.end_quiet_step()

    # called by the state

    def step_begins(self) -> None:
        self.tick_if_due()

    def step_is_over(self) -> None:
        self.tick_if_due()

    def evaluation_begins(self) -> None:
        pass

    def tick_if_due(self) -> None:
        if self.tick_every is not None and self.time.now - self.ticked_at >= self.tick_every:
            self.tick()

    def tick(self) -> None:
        hook = self.cadence.clock.enter()
        begin = self.cadence.clock.begin_pause()
        self.pass_time(self.prices.tick)
        self.state.tick()
        self.state.end_tick(begin, self.prices.store)
        self.cadence.clock.leave(hook)
        self.store()
        self.cadence.clock.mark()
        self.ticked_at = self.time.now

    def store(self) -> None:
        """Another thread finishes a tick, and stops this one meanwhile."""
        self.pass_time(self.prices.store)

    def in_hook(self, seconds: float) -> None:
        if seconds:
            begin = self.cadence.clock.enter()
            self.pass_time(seconds)
            self.cadence.clock.leave(begin)

    def train(self, seconds: float) -> None:
        """The model and the optimizer run, and so do our kernels."""
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.time.now += seconds
        if self.device is not None:
            self.device.submitted, self.device.done = self.time.now, self.time.now - self.lag

    def leave_out(self, seconds: float) -> None:
        """Time passes that is no part of any step, nor of observing, such as an evaluation or a compilation."""
        self.pass_time(seconds)
        self.left_out += seconds

    def recent_overheads(self, seconds: float = 10.0, steps: int = 100) -> list[float]:
        """What was really added in stretches of at least so long: how far back the shown number looks is its choice."""
        took, trained = self._history[-1]
        back = steps
        while back < len(self._history) and took - self._history[-1 - back][0] < seconds:
            back += 1
        begins = self._history[-1 - 3 * back // 2 : -back] or self._history[:1]
        return [(took - before) / (trained - own) - 1 for before, own in begins]

    def observed_after(self, step: int) -> float:
        """Of how many steps one was observed since this one."""
        later = self.phases[step:]
        return len(later) / max(1, later.count(OBSERVE))

    @property
    def dense_until(self) -> int:
        """The number of steps before more idle ones in a row than it takes to measure how long they are."""
        few = CHECK_STEPS + 1
        runs = (n for n in range(len(self.phases) - few) if self.phases[n : n + few] == [IDLE] * few)
        return next(runs, len(self.phases))


@dataclass
class DeviceBehind(Simulation):
    """The same with a device that takes longer than the host, which goes ahead: it does not notice all that hooks take.

    Args:
        host: how long the host takes for a step by itself.
        ahead: how far it may go ahead before it has to wait.
    """

    host: float = 0.0
    ahead: float = 0.0

    def __post_init__(self) -> None:
        self.free_at = self.left_to_store = 0.0
        super().__post_init__()

    @property
    def took(self) -> float:
        """Until the device has done all that it was given."""
        return max(self.time.now, self.free_at) - self.began - self.left_out

    def store(self) -> None:
        """The other thread takes its time."""
        self.left_to_store += self.prices.store

    def train(self, seconds: float) -> None:
        for _ in range(PARTS):
            stopped = min(self.left_to_store, self.host / PARTS / REST)
            self.left_to_store -= stopped
            self.pass_time(self.host / PARTS + stopped)
            self.free_at = max(self.free_at, self.time.now) + seconds / PARTS
            self.pass_time(max(0.0, self.free_at - self.ahead - self.time.now))

    def pass_time(self, seconds: float) -> None:
        self.time.now += seconds
        self.device.submitted, self.device.done = max(self.time.now, self.free_at), self.time.now
