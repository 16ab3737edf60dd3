"""What it takes to call a hook, which the hook itself cannot measure."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from torch import nn

from ..engine.torch_private import has_global_hooks

ENOUGH = 15
"""How often each of the two modules is called."""


class HookCall:
    """How much longer torch takes to call a module that has an empty hook than one that has none.

    It is measured between the first steps, where the processor's caches are as training leaves them: in a loop of its
    own the same call takes a fourth of the time.

    Args:
        clock: returns the time in seconds.

    >>> call = HookCall(clock=iter([0.0, 2.0, 2.0, 5.0]).__next__)
    >>> call.measure()
    >>> call.measure()
    >>> call.seconds
    1.0
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._modules = nn.Identity(), nn.Identity()
        self._modules[True].register_forward_pre_hook(_do_nothing, with_kwargs=True)
        self._plain: list[float] = []
        self._hooked: list[float] = []
        self.seconds = 0.0
        """The difference; 0 while it is not known."""

    def measure(self) -> None:
        """Call one of the two: the other one would find in the cache what this one has brought there."""
        if len(self._hooked) >= ENOUGH or has_global_hooks():
            return
        has_hook = len(self._hooked) < len(self._plain)
        begin = self._clock()
        self._modules[has_hook](None)
        (self._hooked if has_hook else self._plain).append(self._clock() - begin)
        if self._hooked:
            self.seconds = max(0.0, statistics.median_low(self._hooked) - statistics.median_low(self._plain))


def _do_nothing(*_: Any) -> None:
    pass
