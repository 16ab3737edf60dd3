"""Notices the steps that a GradScaler skips. It does not call the optimizer then, so no optimizer hook fires."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from ..engine.optimizers import OptimizerSteps
from ..engine.reports import tell


class ScalerSteps:
    """Replaces the ``step`` of a scaler, and reports when an optimizer was not stepped.

    Copies and pickles of the scaler get their own ``step`` back.

    Args:
        steps: the steps of the optimizers.
        skipped: called with the optimizer whose step was skipped.
        state: the state of the inspector, which reports errors.
    """

    def __init__(
        self, scaler: Any, steps: Sequence[OptimizerSteps], skipped: Callable[[Optimizer], None], state: Any
    ) -> None:
        self._scaler, self._step, self._steps, self._state = scaler, scaler.step, tuple(steps), state
        self._skipped: Callable[[Optimizer], None] | None = skipped
        self._replaced = vars(scaler).get("step")
        scaler.step = self

    def __call__(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Run the scaler's ``step``."""
        steps = next((steps for steps in self._steps if steps.optimizer is optimizer), None)
        had_ended = steps is not None and steps.has_ended
        if steps is not None:
            steps.has_ended = False
        result = self._step(optimizer, *args, **kwargs)
        try:
            if steps is not None and not steps.has_ended:
                steps.has_ended = had_ended
                if self._skipped is not None:
                    self._skipped(optimizer)
        except Exception as error:
            tell(self._state, "noticing that a step was skipped", error)
        return result

    def remove(self) -> None:
        """Restore the scaler's own ``step``; if other code has replaced it since, only pass calls on."""
        self._skipped = None
        if vars(self._scaler).get("step") is self:
            before = self._replaced
            while isinstance(before, ScalerSteps) and before._skipped is None:  # it was removed before
                before = before._replaced
            if before is None:
                del self._scaler.step
            else:
                self._scaler.step = before

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._scaler, "step")  # of the copy, which has no attribute of that name yet
