"""Noticing that a loss is scaled before backward, by a GradScaler that nobody has told of."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..numerical.deferred import Deferred
from ..numerical.memory import is_capturing
from ..numerical.running_mean_var import RunningMeanVar

SMALLEST = 2.0**10
"""What scalers begin with is larger, but accumulating gradients divides it."""

MOST_PARTS = 64
"""Into so many micro-batches a step may be cut: a scaled loss is divided by their number."""

EXACTNESS = 1.2e-7
"""That of float32."""


class LossGradient:
    """The gradients of the losses of one tick: 1 where nothing is done to them before backward.

    It looks until it has seen some, and once; nothing waits for a device.
    """

    def __init__(self) -> None:
        self._seen: RunningMeanVar | None = RunningMeanVar()
        self._count = 0
        self._complete: RunningMeanVar | None = None
        self.failure: Exception | None = None
        """What went wrong inside backward; then it is over."""

    def watch(self, loss: Any) -> None:
        """Have the gradient of a loss noted, if it gets one."""
        if self._seen is None or type(loss) is not Tensor or loss.grad_fn is None or loss.numel() != 1:
            return
        if not torch._C._functorch.is_functorch_wrapped_tensor(loss):
            loss.register_hook(self._note)  # type: ignore[no-untyped-call]

    def accumulators(self) -> Iterator[Deferred]:
        """What a tick is to bring to the host."""
        return iter([] if self._seen is None else [self._seen])

    def end_tick(self) -> None:
        """What was seen until now is complete."""
        if self._count:
            self._complete, self._seen, self._count = self._seen, None, 0

    def scale(self) -> float | None:
        """What a scaler seems to have multiplied the losses of the last tick with; it is told once."""
        complete, self._complete = self._complete, None
        if complete is None or not complete.count:
            return None
        return complete.max_ if is_scale(complete.min_) and is_scale(complete.max_) else None

    def _note(self, gradient: Tensor) -> None:
        try:
            if self._seen is not None and not is_capturing(gradient.device):
                self._seen.append(gradient)
                self._count += 1
        except Exception as error:  # inside backward nothing may fail
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
