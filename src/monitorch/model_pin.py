"""What tells a watch of each call of its model."""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .gatherer.compilation import inside_graph, is_compiled, is_traced
from .gatherer.doorway import Door
from .gatherer.hook_on_module import HookOnModule
from .gatherer.reports import tell


class Counts(Protocol):
    """A watch, as far as it matters here."""

    def count_call(self, trains: bool) -> None:
        """A call of the model begins."""

    def count_step(self) -> None:
        """A step of the optimizer has ended."""

    def close(self) -> None:
        """Leave the model."""


class Pin(HookOnModule):
    """What stands on a watched model: keeps the watch alive as long as the model, and tells it of each call."""

    def __init__(self, watch: Counts, device: torch.device, state: Any) -> None:
        self.watch: Counts | None = watch
        self._state = state
        self._door = Door(device, self._receive, state)

    @inside_graph
    def __call__(self, module: nn.Module, args: Any) -> None:
        """Be the hook; while the model is being compiled, leave an operator that will be."""
        trains = module.training and torch.is_grad_enabled()
        if is_compiled():
            self._door.pass_outside(int(trains))
            return
        try:
            if not is_traced():
                self._receive(self._door.ghost, int(trains))
        except Exception as error:
            tell(self._state, "counting a pass of the model", error)

    def close(self) -> None:
        """Close the watch."""
        if self.watch is not None:
            self.watch.close()

    def _receive(self, _: Tensor, trains: int) -> None:
        if self.watch is not None:
            self.watch.count_call(bool(trains))


def step_counter(watch: Counts) -> Callable[..., None]:
    """What an optimizer calls after its steps; it may outlive the watch."""
    known = weakref.ref(watch)

    def count(*_: Any) -> None:
        found = known()
        if found is not None:
            found.count_step()

    return count
