"""What is worth knowing of any run and need not be logged by hand."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Vitals:
    """Learning rates of the optimizers, and since the last reading: samples per second, and steps that were skipped.

    Args:
        optimizers: whose learning rates to tell.
        processes: how many train on batches of their own at the same speed.
        clock: the time in seconds.

    >>> from torch import nn
    >>> from torch.optim import SGD
    >>> vitals = Vitals([SGD(nn.Linear(1, 1).parameters(), lr=0.1)], clock=iter([0.0, 2.0]).__next__)
    >>> vitals.count(nn.Linear(1, 1).weight)
    >>> vitals.read()
    {'learning rate': 0.1, 'samples per second': 0.5}
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], processes: float = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._optimizers, self.processes, self._clock = tuple(optimizers), processes, clock
        self._samples, self._since = 0, clock()
        self._skipped: Any = None

    def count(self, batch: Any) -> None:
        """A batch is trained on: the first dimension of a tensor, or what cannot be counted."""
        if isinstance(batch, Tensor) and batch.dim():
            self._samples += batch.shape[0]

    def count_skipped(self, steps: Any) -> None:
        """So many steps were skipped because of an overflow; a tensor is not waited for."""
        self._skipped = steps if self._skipped is None else self._skipped + steps

    def read(self) -> dict[str, Any]:
        """The numbers by name, and begin to count anew."""
        rates = [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]
        names = ["learning rate"] if len(rates) == 1 else [f"learning rate {index}" for index in range(len(rates))]
        found = dict(zip(names, rates, strict=True))
        now = self._clock()
        if self._samples and now > self._since:
            found["samples per second"] = self.processes * self._samples / (now - self._since)
        if self._skipped is not None:
            found["skipped steps"], self._skipped = self._skipped, 0
        self._samples, self._since = 0, now
        return found
