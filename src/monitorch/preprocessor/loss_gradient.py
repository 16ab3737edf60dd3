"""Notices that a loss is scaled before backward by a GradScaler that the inspector does not know."""

import math
from typing import Any

from torch import Tensor

from ..engine.allocation import is_capturing
from ..engine.torch_private import is_transformed
from ..numerical.series import Series
from ..numerical.waiting import Pending, as_sample

SMALLEST = 2.0**10
"""Scalers start with a larger scale, but gradient accumulation divides it."""

MOST_PARTS = 64
"""The most micro-batches per step: a scaled loss may be divided by their number."""

ENOUGH = 4
"""Gradients that are looked at."""

EXACTNESS = 1.2e-7
"""The precision of float32."""


class LossGradient:
    """The gradients of the losses of one tick: 1 if nothing was done to the loss before backward.

    It watches losses until it has seen some gradients; nothing waits for the GPU.
    """

    def __init__(self) -> None:
        self._seen: Series | None = Series()
        self._complete: Series | None = None
        self._to_see = ENOUGH
        self.failure: Exception | None = None
        """The error inside backward, if there was one; it stops then."""

    def watch(self, loss: Any) -> None:
        """Note the gradient of a loss, if it gets one."""
        if self._to_see <= 0 or self._seen is None:
            return
        if type(loss) is Tensor and loss.grad_fn is not None and loss.numel() == 1 and not is_transformed(loss):
            loss.register_hook(self._note)  # type: ignore[no-untyped-call]

    def end_tick(self) -> None:
        """Close the set of gradients of this tick."""
        if self._seen is not None and self._seen.used_keys():
            self._complete, self._seen = self._seen, None

    def pending(self) -> list[Pending]:
        """What a tick should copy to the CPU."""
        return [] if self._complete is None else self._complete.pending()

    def finish(self) -> None:
        """Take what was copied."""
        if self._complete is not None:
            self._complete.finish()

    def scale(self) -> float | None:
        """The scale that a scaler seems to have multiplied the losses of the last tick with; returned only once."""
        complete, self._complete = self._complete, None
        if complete is None:
            return None
        complete.settle()
        row = complete.moments.row(0)
        return row.high if row.finite and is_scale(row.low) and is_scale(row.high) else None

    def _note(self, gradient: Tensor) -> None:
        try:
            if self._seen is not None and not is_capturing(gradient.device):
                self._to_see -= 1
                self._seen.add("", as_sample(gradient.detach().clone()))
        except Exception as error:  # nothing may raise inside backward
            self.failure, self._seen = error, None


def is_scale(number: float) -> bool:
    """Whether it is a large power of two, or one divided by a number of micro-batches.

    >>> [is_scale(x) for x in (65536.0, 65536 / 3, 1.0, 0.25, 1000.0, 3000.0)]
    [True, True, False, False, False, False]
    """
    if not SMALLEST <= number < math.inf:
        return False
    mantissas = (math.frexp(number * parts)[0] for parts in range(1, MOST_PARTS + 1, 2))
    return any(mantissa - 0.5 < EXACTNESS or 1 - mantissa < EXACTNESS for mantissa in mantissas)
