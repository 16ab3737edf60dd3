"""Steps that a GradScaler leaves out: its optimizer is never called then, so no hook of the optimizer tells."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer


class ScalerSteps:
    """Stands in for the ``step`` of a scaler, and tells whenever one of the optimizers was not stepped.

    Copies and pickles of the scaler get their own ``step`` back.

    Args:
        skipped: is called with the optimizer.
    """

    def __init__(self, scaler: Any, optimizers: Sequence[Optimizer], skipped: Callable[[Optimizer], None]) -> None:
        self._scaler, self._step, self._optimizers = scaler, scaler.step, tuple(optimizers)
        self._skipped: Callable[[Optimizer], None] | None = skipped
        self._has_stepped = False
        self._handles = [optimizer.register_step_post_hook(self._note_step) for optimizer in optimizers]
        self._replaced = vars(scaler).get("step")
        scaler.step = self

    def __call__(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Be the scaler's ``step``."""
        self._has_stepped = False
        result = self._step(optimizer, *args, **kwargs)
        if self._skipped is not None and not self._has_stepped and any(optimizer is own for own in self._optimizers):
            self._skipped(optimizer)
        return result

    def remove(self) -> None:
        """Give the scaler its own ``step`` back; where somebody else has replaced it since, only pass calls on."""
        self._skipped = None
        while self._handles:
            self._handles.pop().remove()
        if vars(self._scaler).get("step") is self:
            before = self._replaced
            while isinstance(before, ScalerSteps) and before._skipped is None:  # it was removed earlier
                before = before._replaced
            if before is None:
                del self._scaler.step
            else:
                self._scaler.step = before

    def _note_step(self, *_: Any) -> None:
        self._has_stepped = True

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._scaler, "step")  # of the copy, which has no attribute of that name yet
