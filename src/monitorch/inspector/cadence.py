"""Which steps are observed, and what that costs."""

import math
import time
from collections.abc import Callable
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import torch

from ..errors import OptionError
from .step_clock import KEPT, Phase, StepClock

ENOUGH = 3  # durations of each phase that a choice needs
CALIBRATION = 40  # steps before the first choice
CALIBRATION_EVERY = 4  # two idle steps, one baseline and one observed step in a row
REVIEW = 64  # steps between two choices
STALE = 512  # steps without an idle one, after which idle steps are measured again
LARGEST = 10_000


class Cadence:
    """Says which steps are observed: a fixed share of them, or as many as a budget allows.

    Steps are numbered from 1. At the end of each, :meth:`stamp` it and then ask for the :meth:`phase` of the next.

    With a budget the first steps are a calibration. Then it chooses the smallest n at which observing every n-th step
    stays within the budget, and revises it from time to time: only after an observed step, so that every observed step
    has its baseline step, and to no less than half of the current n. If no step is idle (n = 1), there is nothing to
    compare with, so the calibration is repeated now and then.

    Args:
        every: observe every n-th step, or those for which this function of the step's number is true; it is called once
            for each step, for some of them one step ahead. With a budget: the smallest n that it may choose.
        budget: the share of training time that observing may cost, such as 0.02.
        device: where the steps run.
        clock: returns the time in seconds.

    >>> cadence = Cadence(every=4)
    >>> [cadence.phase(step).name for step in range(1, 6)]
    ['IDLE', 'IDLE', 'BASELINE', 'OBSERVE', 'IDLE']
    """

    def __init__(
        self,
        every: int | Callable[[int], bool] = 1,
        budget: float | None = None,
        *,
        device: torch.device | str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        _check(every, budget)
        self.every, self.budget = every, budget
        self._says = lru_cache(KEPT)(every) if callable(every) else None
        self._smallest_n = 1 if callable(every) else int(every)
        self.needs_baseline = True
        """Whether any lens compares consecutive steps; if none does, baseline steps are idle."""
        self.clock = StepClock(device, clock)
        self._until_review = self._since_idle = self._idle_steps = 0
        self.restart()

    def __repr__(self) -> str:
        return f"Cadence(every={self.every!r}, budget={self.budget!r}, n={self.n})"

    def restart(self) -> None:
        """Forget all measurements."""
        self._counts = dict.fromkeys(Phase, 0)
        self.n = self._smallest_n
        """Every n-th step is observed, unless ``every`` is a function."""
        self.common_n: int | None = None  # the same in all processes, which agree on it at ticks
        self._calibrate()

    def state_dict(self) -> dict[str, Any]:
        """What was chosen so far; durations are measured again."""
        counts = {phase.name: count for phase, count in self._counts.items()}
        return {"n": self.n, "counts": counts, "calibrating": self._calibrating, "until_review": self._until_review}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.n, self._calibrating, self._until_review = state["n"], state["calibrating"], state["until_review"]
        self._counts = {Phase[name]: count for name, count in state["counts"].items()}

    def use(self, device: torch.device | str | None) -> None:
        """Measure on this device from now on."""
        self.clock.use(device)

    def phase(self, step: int) -> Phase:
        """What to do in this step."""
        if self._is_observed(step):
            return Phase.OBSERVE
        return Phase.BASELINE if self.needs_baseline and self._is_observed(step + 1) else Phase.IDLE

    def stamp(self, phase: Phase, coming: Phase | None = None) -> None:
        """A step of this phase has just ended. Of many idle steps in a row only some are measured, to save time."""
        self._idle_steps = self._idle_steps + 1 if phase == Phase.IDLE else 0
        if self._idle_steps > 1 and coming == Phase.IDLE:
            self.clock.interrupt()
        else:
            self.clock.stamp(phase)
        self._counts[phase] += 1
        self._until_review -= 1
        self._since_idle += 1
        if phase == Phase.IDLE:
            self._since_idle = 0
        if self.budget is not None and self._until_review <= 0 and phase == Phase.OBSERVE:
            self._review(self.budget)

    def spend(self, seconds: float) -> None:
        """Add CPU time that hooks took in the current step."""
        self.clock.spend(seconds)

    @property
    def overhead(self) -> float | None:
        """The time that observing adds, relative to the time of the same steps without it; None while not known.

        It is computed from the median times of observed, baseline and idle steps. If no step is idle, there is nothing
        to compare with: then it is the share of CPU time inside hooks, from :meth:`spend`, which leaves out the GPU
        kernels that hooks launch.
        """
        observed, baselines, steps = self._mix()
        share = self._share(observed, baselines, steps)
        return self.clock.spent_share if share is None and steps == observed + baselines else share

    def _is_observed(self, step: int) -> bool:
        return step % (self.common_n or self.n) == 0 if self._says is None else bool(self._says(step))

    def _mix(self) -> tuple[int, int, int]:
        """How many steps are observed and how many are baseline steps, out of how many."""
        if self._says is None:
            n = self.common_n or self.n
            return 1, int(self.needs_baseline and n > 1), n
        return self._counts[Phase.OBSERVE], self._counts[Phase.BASELINE], sum(self._counts.values())

    def _share(self, observed: int, baselines: int, steps: int) -> float | None:
        """What these observed and baseline steps add to the time of all steps, as a share."""
        idle, baseline, observe = map(self.clock.median, Phase)
        if not idle or observe is None or (baselines and baseline is None):
            return None
        extra = observed * (observe - idle)
        if baselines and baseline is not None:
            extra += baselines * (baseline - idle)
        return max(0.0, extra / (steps * idle))

    def _calibrate(self) -> None:
        self.clock.clear()
        if self.budget is not None:
            self.n = max(self._smallest_n, CALIBRATION_EVERY)
        self._calibrating, self._until_review, self._since_idle = True, CALIBRATION, 0

    def _review(self, budget: float) -> None:
        """Choose n; while too little is measured, keep it and try again after the next observed step."""
        if self._since_idle >= STALE:
            self._calibrate()
            return
        needed = [phase for phase in Phase if phase != Phase.BASELINE or self.needs_baseline]
        wanted = self._wanted(budget) if all(self.clock.samples(phase) >= ENOUGH for phase in needed) else None
        if wanted is not None:
            slowest = 1 if self._calibrating else math.ceil(self.n / 2)
            self.n = max(self._smallest_n, min(max(wanted, slowest), LARGEST))
            self._calibrating, self._until_review = False, REVIEW

    def _wanted(self, budget: float) -> int | None:
        """The smallest n within the budget; None while not known."""
        alone, with_baseline = self._share(1, 0, 1), self._share(1, int(self.needs_baseline), 1)
        if alone is None or with_baseline is None:
            return None
        return 1 if alone <= budget and self._smallest_n == 1 else max(2, math.ceil(with_baseline / budget - 1e-9))


def _check(every: Any, budget: Any) -> None:
    if not callable(every) and (not isinstance(every, Integral) or isinstance(every, bool) or int(every) < 1):
        wanted = "a whole number of at least 1, or a function of the step's number"
        raise OptionError(f"every={every!r} must be {wanted}")
    if budget is None:
        return
    if not isinstance(budget, Real) or isinstance(budget, bool) or not 0 < float(budget) < 1:
        wanted = "a share of time between 0 and 1, such as 0.02 for two percent, or None"
        raise OptionError(f"budget={budget!r} must be {wanted}")
    if callable(every):
        cure = "leave one of them out, or pass the smallest n that the budget may choose as every"
        raise OptionError(f"budget and a function as every both choose the steps: {cure}")
