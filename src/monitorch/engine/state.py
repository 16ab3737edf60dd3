"""What the engine reads from the state of an inspector."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from .loss_scale import LossScale

if TYPE_CHECKING:
    from .origin import Origin


class HookClock(Protocol):
    """Measures how long hooks take."""

    spent: float
    """Seconds that they have taken in this step so far."""
    calling: float
    """Seconds that torch takes to call a module hook, which the hook cannot measure itself."""

    def enter(self) -> Any:
        """A hook begins."""

    def leave(self, begin: Any) -> None:
        """It ends; ``begin`` is what :meth:`enter` has returned."""


class QuietSteps(Protocol):
    """Counts steps in which nothing is measured and that nobody needs to hear about."""

    is_quiet: bool
    """Whether this step is one of them."""
    step: int
    """How many steps have ended."""

    @property
    def clock(self) -> HookClock:
        """Measures how long hooks take."""

    def end_quiet_step(self) -> bool:
        """A step ends; false if it is not quiet, so that all listeners must be told."""


class State(Protocol):
    """Says whether to measure now, and which step it is; reports what fails."""

    on_error: str
    """``"warn"`` or ``"raise"``."""
    told: Counter[str]
    """How often each problem has occurred."""
    step: int
    """How many steps have ended."""
    passes: int
    """How many training passes there were."""
    gaps: int
    """How many passes were not recorded: a tensor must not be compared with one from before such a gap."""
    is_baseline: bool
    """Whether this step is measured only to compare the next one with it."""
    is_steady: bool
    """Whether the answers change only with ticks and steps."""
    observing: bool
    """Whether to measure, as a plain attribute that torch.compile can read."""
    pass_has_grad: bool
    """Whether the current forward pass of the model began with gradients enabled."""
    per_rank: bool
    """Whether every process shows its own numbers."""
    averages: bool
    """Whether gradients are averaged over processes."""
    loss_share: float
    """The share of the global loss that this process computes."""
    loss_scale: LossScale | None
    """What losses are multiplied by, where that is known."""
    steps_have_ends: bool
    """Whether an optimizer or the user says when a step ends, so that it is counted then; otherwise it is counted when
    it begins."""
    first_not_finite: "Origin | None"
    """The first tensor that was not finite."""
    gradient: str
    """When gradients of the optimizers' parameters are read."""

    def wants_data(self) -> bool:
        """Whether hooks should do anything now."""

    def is_recording(self) -> bool:
        """The same, regardless of the phase of the step."""

    @property
    def clock(self) -> HookClock:
        """Measures how long hooks take."""

    def notice(self, kind: str) -> None:
        """Something unusual was measured, of this kind."""

    def close_tick_soon(self) -> None:
        """Something was found that should be shown soon."""

    @property
    def bare_step(self) -> float | None:
        """How many seconds a step takes that is not observed; None while not known."""

    def tell_of_origin(self, origin: "Origin") -> None:
        """Something was not finite, and this was the first."""

    def settle(self) -> bool:
        """Wait until earlier ticks are folded; False if this thread is doing that, and must not see later rows."""


def is_observed(state: State) -> bool:
    """Whether to measure now and not just as a baseline for the next step."""
    return state.wants_data() and not state.is_baseline
