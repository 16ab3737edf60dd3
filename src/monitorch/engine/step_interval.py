"""The interval between two steps of an optimizer, in which its gradients accumulate."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from .state import is_observed

if TYPE_CHECKING:
    from .engine import Engine


class StepInterval:
    """Tells when a step of an optimizer has ended, and whether all passes since the last one were observed.

    Args:
        ended: called right after each step, with whether it is observed. Quiet steps of the first optimizer are not
            reported.
    """

    def __init__(self, engine: "Engine", optimizer: Optimizer, ended: Callable[[bool], None]) -> None:
        self._state, self._steps, self._ended = engine.state, engine.steps(optimizer), ended
        self._gaps = engine.state.gaps
        self._steps.after.insert(0, self._after_step)

    @property
    def is_whole(self) -> bool:
        """Whether all training passes since the last step were observed: otherwise it is unknown what they added."""
        # with quiet steps, each step is observed completely or not at all
        return self._steps.quiet is not None or self._gaps == self._state.gaps

    def remove(self) -> None:
        """Leave the optimizer."""
        if self._after_step in self._steps.after:
            self._steps.after.remove(self._after_step)

    def _after_step(self, *_: Any) -> None:
        try:
            self._ended(is_observed(self._state))
        finally:
            self._gaps = self._state.gaps
