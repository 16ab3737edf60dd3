"""Gradients of parameters: all that a backward pass, or an optimizer's step, brings are measured together."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parameter import is_lazy

from ..errors import SkippedSample
from ..numerical.length import as_dense
from ..numerical.notes import LEAD, Note
from ..preprocessor.parameters import locate_parameter
from .ownership import owns
from .site import Site, Subscription, subscribe

MAY_WAIT = 1 << 30
"""Bytes of gradients that may wait for each other: an optimizer that steps inside backward wants them freed."""


class WatchedGradient:
    """One parameter of a module, followed by name: frozen, replaced and shapeless ones are hooked once they train."""

    def __init__(self, tap: "GradientTap", module: nn.Module, parameter: str) -> None:
        self._tap, self._module, self._parameter = tap, module, parameter
        self.sites: list[Site] = []
        self.at_step = False
        self._hooked: Tensor | None = None
        self._handle: Any = None

    @property
    def tensor(self) -> Tensor | None:
        """The parameter as it is now."""
        direct = self._module._parameters.get(self._parameter)
        return locate_parameter(self._module, self._parameter) if direct is None else direct

    def refresh(self) -> None:
        """Look the parameter up, and hook it if it trains now."""
        parameter = self.tensor
        if parameter is self._hooked and (parameter is None or parameter.requires_grad):
            return
        self.unhook()
        if parameter is not None and is_lazy(parameter):
            self._handle = self._module.register_forward_hook(lambda *_: self.refresh())  # it has a shape then
        elif parameter is not None and parameter.requires_grad and parameter.is_leaf:
            self._handle = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            self._hooked = parameter

    def unhook(self) -> None:
        """Leave the parameter."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._hooked = None

    def interrupt(self) -> None:
        """The next gradient does not follow the last one."""
        for site in self.sites:
            site.interrupted = True

    def _accumulated(self, parameter: Tensor) -> None:
        if not self._tap.state.wants_data():
            self.interrupt()
        elif parameter.grad is not None and not self.at_step:
            self._tap.receive(self, parameter.grad)


class GradientTap:
    """Takes gradients when backward has accumulated them; those of a given optimizer when it steps."""

    def __init__(self, house: Any) -> None:
        self.state, self._house = house.state, house
        self._watched: dict[tuple[int, str], WatchedGradient] = {}
        self._waiting: list[tuple[WatchedGradient, Tensor, int]] = []
        self._waiting_bytes = 0
        self._is_resting = False

    @property
    def sites(self) -> list[Site]:
        """All that is measured here."""
        return [site for watched in self._watched.values() for site in watched.sites]

    def watch(self, module: nn.Module, parameter: str, name: str, gatherer: Any, preprocessor: Any) -> Subscription:
        """Measure the gradient of a parameter for a preprocessor from now on."""
        watched = self._watched.setdefault((id(module), parameter), WatchedGradient(self, module, parameter))
        watched.refresh()
        return subscribe(watched.sites, name, gatherer, preprocessor)

    def refresh(self) -> None:
        """Follow parameters that were replaced, frozen or given a shape; leave those nobody asks for any more."""
        if self._is_resting:
            return
        for place, watched in list(self._watched.items()):
            if watched.sites:
                watched.refresh()
            else:
                self._watched.pop(place).unhook()

    def begin_pass(self) -> None:
        """Follow the parameters, or leave them alone for a pass that is not recorded: a hook costs time even then."""
        rests, self._is_resting = self._is_resting, not self.state.wants_data()
        if not self._is_resting:
            self.refresh()
        elif not rests:
            for watched in self._watched.values():
                watched.interrupt()
                watched.unhook()

    def close(self) -> None:
        """Leave all parameters."""
        for watched in self._watched.values():
            watched.unhook()
            watched.sites = []
        self._watched, self._waiting = {}, []

    def follow(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Measure the parameters of ``optimizers`` at their steps: what they consume."""
        for watched in self._watched.values():
            tensor = watched.tensor
            watched.at_step = tensor is not None and any(owns(optimizer, tensor) for optimizer in optimizers)

    def take_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients that ``optimizer`` is about to consume, or has just consumed."""
        if not self.state.wants_data():
            return
        for watched in self._watched.values():
            tensor = watched.tensor
            if tensor is not None and owns(optimizer, tensor):
                if watched.at_step and tensor.grad is not None:
                    self._waiting.append((watched, tensor.grad, tensor.grad._version))
                watched.at_step = True  # one that joined the optimizer later was measured at backward once more
        self.flush()

    def receive(self, watched: WatchedGradient, gradient: Tensor) -> None:
        """Take a gradient inside backward; it waits for the others, so that one launch serves them all."""
        self._waiting.append((watched, gradient, gradient._version))
        self._waiting_bytes += gradient.numel() * gradient.element_size()
        if not self._house.may_wait or self._waiting_bytes > MAY_WAIT:
            self.flush()
        elif len(self._waiting) == 1:
            Variable._execution_engine.queue_callback(self.flush)

    def flush(self) -> None:
        """Measure all gradients that wait."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        entries: list[tuple[Note, Tensor, bool]] = []
        lead, step, gaps = self.state.lead, self.state.step, self.state.gaps
        for watched, gradient, version in waiting:
            for site in watched.sites:
                if not (lead and site.correlation is None):
                    x = site.guarded(self._untouched, gradient, version)
                    if x is not None:
                        follows = bool(site.guarded(site.follows, x, gaps))
                        entries.append((Note(site, LEAD if lead else 0, step), x, follows))
        self._house.measure_together("gradients", entries)

    def _untouched(self, gradient: Tensor, version: int) -> Tensor:
        """The gradient as it was accumulated."""
        if gradient._version != version:
            self._house.may_wait = False
            raise SkippedSample("its gradient was changed before backward had ended; from now on it is read at once")
        is_plain = gradient.layout is torch.strided and not gradient.requires_grad
        return gradient if is_plain else as_dense(gradient)
