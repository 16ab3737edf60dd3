"""How long torch takes to call a hook, which the hook itself cannot measure."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from ..engine.compilation import inside_graph
from ..engine.torch_private import NO_TASK, graph_task, has_global_hooks

ENOUGH = 15
"""How often each of the two modules is called."""


class Rehearsal:
    """A hook that does what ours do in idle steps before and after what they measure, and nothing else."""

    def __init__(self) -> None:
        self.is_quiet, self.spent, self.calling = True, 0.0, 0.0

    @inside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called by the module."""
        if is_dynamo_compiling() or not (self.is_quiet and module.training):
            return
        begin, is_taken = time.perf_counter(), False
        try:
            is_taken = graph_task() == NO_TASK and torch.is_grad_enabled()
        finally:
            self.spent += time.perf_counter() - begin + self.calling * is_taken


class HookCall:
    """How much longer torch takes to call a module that has an idle hook than one that has none.

    It is measured between the first steps, where the processor's caches are as training leaves them: in a tight loop
    the same call takes a quarter of the time.

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
        self._modules[True].register_forward_pre_hook(Rehearsal(), with_kwargs=True)
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
