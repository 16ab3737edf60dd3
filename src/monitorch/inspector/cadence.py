"""Which steps are observed: a fixed share of them, or as many as there is time for."""

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch

from ..errors import OptionError
from .cost import Cost
from .step_clock import AFTERMATH, Phase, StepClock

CHECK_STEPS = AFTERMATH + 1
"""When every step is observed, this many in a row are left idle now and then, to measure how long a step takes on its
own. The last of them is no longer slowed down by observed ones."""

CHECK, FIRST_CHECK = 8 * CHECK_STEPS, 8
"""How often, in steps, and when for the first time: seven of eight steps are observed."""

LOOK_AGAIN = 256
"""Recompute the costs after at most this many steps; they may have changed."""

LEAST = 1 / 6
"""The share of the budget reserved for observed steps. With tiny models, ticks and idle hooks alone can exceed the
budget. The overhead shown includes them, but some steps are still observed."""

GIFT, GIFT_EVERY = 2.0, 600.0
"""Extra seconds of observing granted when something unusual happens, and the shortest time between two grants."""

UNAGREED = 16  # steps after which processes observe half as often, and again after twice as many, until they agree
MEASURED = 64  # on CUDA, one idle step in this many is measured, which takes the host as long as several others
REMEMBERED = 4  # steps whose phase is remembered
ASKED = 64  # size of the cache for the user's function
LARGEST = 10_000


class Emptied(NamedTuple):
    """The account when it first ran empty: income so far, and seconds spent on observed steps."""

    income: float
    on_steps: float
    gifts: float


class Cadence:
    """Says which steps are observed.

    Steps are numbered from 1. At the end of each, call :meth:`end_step` and then ask for the :meth:`phase` of the next.
    The phase of a step never changes once it is decided, so a compiled graph can ask two steps ahead.

    With a budget, observing has an account. It begins with ``head_start`` seconds, and each step adds the share
    ``budget`` of the time that it takes by itself. A pair of steps, baseline and observed, begins when the account pays
    for both; then steps are observed as long as it pays for one more. What observing costs is subtracted (see
    :class:`Cost`). A sixth of the budget is always reserved for observed steps.

    Several processes observe the same steps: every ``common_n``-th. They agree on that number at ticks.

    Args:
        every: observe every n-th step, or those for which this function of the step's number is true; it is called once
            per step, sometimes one step ahead. With a budget: the smallest n that it may choose.
        budget: the share of training time that observing may cost, such as 0.02.
        head_start: seconds that observing may cost before the budget applies.
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
        head_start: float = 0.0,
        *,
        device: torch.device | str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        _check(every, budget, head_start)
        self.every, self.budget, self.head_start = every, budget, float(head_start)
        self._says = lru_cache(ASKED)(every) if callable(every) else None
        self._n = 1 if callable(every) else int(every)
        self.needs_baseline = True
        """Whether any lens compares consecutive steps; if none does, baseline steps are idle."""
        self._now = clock
        self.clock = StepClock(device, clock)
        self.cost = Cost(self.clock)
        self.restart()

    def __repr__(self) -> str:
        return f"Cadence(every={self.every!r}, budget={self.budget!r}, head_start={self.head_start!r})"

    def restart(self) -> None:
        """Forget all measurements."""
        self.clock.clear()
        self.cost.restart()
        self.common_n: int | None = None
        self.has_agreed = False
        """Whether the processes have agreed on that number; until then they observe ever fewer steps."""
        self._phases: dict[int, Phase] = {}
        self._last = Phase.IDLE
        self._ended = 0
        self._began: float | None = None
        self._first = 1  # the first step since then
        self._is_dense = self.head_start > 0
        self._look_at = 0
        self._busy_at = 0
        self._gifts, self._gift_at = 0.0, -math.inf
        self._emptied: Emptied | None = None
        self._unusual: set[str] = set()
        self._known: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """The account and the phases already decided. Durations are not saved; they are measured again."""
        account = {"gifts": self._gifts, "known": sorted(self._known), "is_dense": self._is_dense}
        account["emptied"] = None if self._emptied is None else tuple(self._emptied)
        decided = {step: int(phase) for step, phase in self._phases.items() if step > self._ended}
        return {**self.cost.state_dict(), **account, "decided": decided, "last": int(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.restart()
        self.cost.load_state_dict(state)
        self._gifts, self._known, self._is_dense = state["gifts"], set(state["known"]), state["is_dense"]
        self._emptied = None if state["emptied"] is None else Emptied(*state["emptied"])
        self._last = Phase(state["last"])
        self._phases = {step: Phase(phase) for step, phase in state["decided"].items()}

    def use(self, device: torch.device | str | None) -> None:
        """Measure on this device from now on."""
        self.clock.use(device)

    def phase(self, step: int) -> Phase:
        """What to do in this step; for the next step, or the one after it."""
        found = self._phases.get(step)
        if found is None:
            if self._began is None:
                self._began, self._first = self._now(), step
            found = self._last = self._phases[step] = self._decide(step)
            for old in [known for known in self._phases if known <= step - REMEMBERED]:
                del self._phases[old]
        return found

    def idle_until(self, step: int) -> int:
        """For an idle step: the first later step that may not be idle."""
        if self._unusual or self._says is not None:
            return step + 1
        if self.budget is None or self.common_n is not None:
            n = self._fixed_n(step)
            found = step + 1 if n == 1 else (step // n + 1) * n - self.needs_baseline
        else:
            found = max(step + 1, self._look_at)
        if self.clock.waits:
            return found
        if self.cost.lacks_idle_steps:  # any of them may be the first idle step that can be measured
            return step + 1
        place = (step - self._busy_at) % MEASURED
        return min(found, step + 1 if place in (1, 2) else step + 2 + (MEASURED - place) % MEASURED)

    def end_step(self, step: int, phase: Phase, coming: Phase | None = None) -> None:
        """A step of this phase has just ended; ``coming`` is the phase of the next one, if it is known."""
        self._ended = step
        if phase != Phase.IDLE:
            self._busy_at = step
        place = (step - self._busy_at) % MEASURED
        is_one_of_many = coming == Phase.IDLE and place != 2
        if is_one_of_many and not self.clock.waits and not self.cost.lacks_idle_steps:
            self.cost.end_step(phase, self.clock.skip())  # events cost time: some idle steps are enough
            if place == 1:  # this step may have waited for the one before, so measure the next one
                self.clock.mark(with_hooks=True)
            return
        self.cost.end_step(phase, self.clock.end(phase))
        if phase != Phase.IDLE:
            self.cost.settle()

    def notice(self, kind: str) -> None:
        """Something unusual has happened: the first of its kind is worth a closer look. Any thread may call this."""
        self._unusual.add(kind)

    def affordable_n(self, steps: int, promised: Sequence[int] = ()) -> int:
        """With a budget: the smallest n for which it can pay for every n-th step.

        Args:
            steps: how many steps.
            promised: the intervals already requested for the stretches before, each ``steps`` long.
        """
        if self.budget is None:
            return self._n
        if self._unusual:
            self._pay_for_a_look()
        bare, price, pair = self.cost.bare_step, self.cost.price(Phase.OBSERVE), self._price_of_pair()
        if bare is None or price is None:
            return self._n
        means = self._balance() + self.budget * bare * steps * (1 + len(promised))
        means -= sum(steps * (price if n == 1 else pair / n) for n in promised)
        if self._n == 1 and price * steps <= means:
            return 1
        n = math.ceil(pair * steps / means) if means > 0 else LARGEST
        return max(self._n, 2, min(n, LARGEST))

    def _decide(self, step: int) -> Phase:
        if self._says is not None:
            return self._by_rule(self._says, step)
        if self.budget is None or self.common_n is not None:
            n = self._fixed_n(step)
            if self._last == Phase.BASELINE:  # the processes may have agreed on another n since
                return Phase.OBSERVE
            if n == 1 and self.budget is not None and _is_check(step):
                return Phase.IDLE
            return self._by_rule(lambda number: number % n == 0, step)
        return self._by_account(step)

    def _fixed_n(self, step: int) -> int:
        n = self.common_n or self._n
        is_known = self.budget is None or self.has_agreed
        return n if is_known else n << (step // UNAGREED).bit_length()

    def _by_rule(self, is_observed: Callable[[int], Any], step: int) -> Phase:
        if is_observed(step):
            return Phase.OBSERVE
        return Phase.BASELINE if self.needs_baseline and is_observed(step + 1) else Phase.IDLE

    def _by_account(self, step: int) -> Phase:
        if self._last == Phase.BASELINE:
            return Phase.OBSERVE
        if self._unusual:
            self._pay_for_a_look()
        if step < self._look_at:
            return Phase.IDLE
        if self._is_dense and self._n == 1:
            if _is_check(step - self._first + 1) or self._is_slow_without_idle:
                return Phase.IDLE
            if self._balance() >= (self.cost.price(Phase.OBSERVE) or 0.0):
                return Phase.OBSERVE
            self._is_dense = False
        return self._begin_pair(step)

    def _begin_pair(self, step: int) -> Phase:
        """A baseline step, or an observed one if no lens compares steps, if the account can pay for the pair."""
        lead = int(self.needs_baseline)
        if (step + lead) % self._n:
            return Phase.IDLE
        if self.cost.lacks_idle_steps and self._ended - self._busy_at < 2:
            return Phase.IDLE  # the first pairs only measure the cost, which needs idle steps to compare with
        pair = self._price_of_pair()
        if self._balance() < pair:
            bare = self.cost.bare_step
            income = (self.budget or 0.0) * bare if bare else 0.0
            missing = math.ceil((pair - self._balance()) / income) if income else CHECK_STEPS
            self._look_at = step + max(1, min(missing, LOOK_AGAIN))
            return Phase.IDLE
        self._is_dense = True
        return Phase.BASELINE if lead else Phase.OBSERVE

    @property
    def _is_slow_without_idle(self) -> bool:
        """Whether the head start ran out before any idle step was measured."""
        return self.cost.lacks_idle_steps and self._now() - (self._began or 0.0) > self.head_start

    def _price_of_pair(self) -> float:
        observed = self.cost.price(Phase.OBSERVE) or 0.0
        if not self.needs_baseline:
            return observed
        baseline = self.cost.price(Phase.BASELINE)
        return observed + (observed if baseline is None else baseline)

    @property
    def is_spent(self) -> bool:
        """Whether the account has run empty once: the head start is used up."""
        return self._emptied is not None

    @property
    def shows_head_start(self) -> bool:
        """Whether the overhead still covers steps that the head start has paid for."""
        return self.cost.spent_before < self.head_start

    def _balance(self) -> float:
        """What will be left in the account after all steps decided so far."""
        self.cost.settle()
        income = (self.budget or 0.0) * self.cost.bare
        open_phases = [phase for step, phase in self._phases.items() if step > self._ended]
        promised = sum(self.cost.price(phase) or 0.0 for phase in open_phases)
        left = self.head_start + self._gifts + income - self.cost.spent
        if left <= 0 and self._emptied is None:
            self._emptied = Emptied(income, self.cost.on_steps, self._gifts)
        if self._emptied is not None:
            since = income - self._emptied.income, self.cost.on_steps - self._emptied.on_steps
            left = max(left, LEAST * since[0] - since[1] + self._gifts - self._emptied.gifts)
        return left - promised

    def _pay_for_a_look(self) -> None:
        unusual, self._unusual = self._unusual, set()
        new, self._known = unusual - self._known, self._known | unusual
        if new and self._now() - self._gift_at >= GIFT_EVERY:
            self._gift_at, self._look_at = self._now(), 0
            self._gifts += GIFT


def _is_check(step: int) -> bool:
    return step >= FIRST_CHECK and (step - FIRST_CHECK) % CHECK < CHECK_STEPS


def _check(every: Any, budget: Any, head_start: Any) -> None:
    if not callable(every) and (not isinstance(every, Integral) or isinstance(every, bool) or int(every) < 1):
        wanted = "a whole number of at least 1, or a function of the step's number"
        raise OptionError(f"every={every!r} must be {wanted}")
    if not isinstance(head_start, Real) or isinstance(head_start, bool) or not 0 <= float(head_start) < math.inf:
        raise OptionError(f"head_start={head_start!r} must be a number of seconds, at least 0")
    if budget is None:
        if head_start:
            raise OptionError(f"head_start={head_start!r} is for a budget: pass budget= too")
        return
    if not isinstance(budget, Real) or isinstance(budget, bool) or not 0 < float(budget) < 1:
        wanted = "a share of time between 0 and 1, such as 0.02 for two percent, or None"
        raise OptionError(f"budget={budget!r} must be {wanted}")
    if callable(every):
        cure = "leave one of them out, or pass the smallest n that the budget may choose as every"
        raise OptionError(f"budget and a function as every both choose the steps: {cure}")
