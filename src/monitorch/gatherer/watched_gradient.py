"""One parameter whose gradient is watched."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..numerical.memory import renewed
from ..preprocessor.parameters import locate_parameter
from .ownership import Owned
from .recomputation import inside_backward
from .reports import tell
from .site import Site

AT_STEP, BEFORE_CLIP, AT_BACKWARD = "at_step", "before_clip", "at_backward"
"""When the gradient of a parameter is taken."""


class WatchedGradient:
    """One parameter of a module, followed by name: frozen and replaced ones are hooked once they train."""

    def __init__(self, tap: Any, module: nn.Module, parameter: str) -> None:
        self._tap, self._parameter = tap, parameter
        self.module = weakref.ref(module)  # its own parameters hold this object, out of the collector's sight
        self.sites: list[Site] = []
        self.at_step = False
        self.kept: Tensor | None = None
        """The gradient when the last backward pass had ended, where that is wanted."""
        self.is_kept = False
        self._hooked: Tensor | None = None
        self._handle: Any = None

    @property
    def tensor(self) -> Tensor | None:
        """The parameter as it is now."""
        module = self.module()
        if module is None:
            return None
        direct = module._parameters.get(self._parameter)
        return locate_parameter(module, self._parameter) if direct is None else direct

    def refresh(self) -> None:
        """Look the parameter up, and hook it if it trains now."""
        parameter = self.tensor
        if parameter is self._hooked and (parameter is None or parameter.requires_grad):
            return
        self.unhook()
        if parameter is not None and parameter.requires_grad and parameter.is_leaf:
            with torch._C.DisableTorchFunctionSubclass():  # one without a shape yet refuses nearly all its methods
                self._handle = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            self._hooked = parameter

    def join(self, owned: Owned) -> None:
        """Be measured at steps from now on if an optimizer has the parameter.

        This is never taken back: parameters of fully_shard are for a while not the optimizer's own objects.
        """
        tensor = self.tensor
        self.at_step = self.at_step or (tensor is not None and tensor in owned)

    @property
    def moment(self) -> str:
        """When the gradient is taken."""
        moment: str = self._tap.state.gradient if self.at_step else AT_BACKWARD
        return moment

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
        """Be called by autograd whenever it has added to the gradient."""
        state = self._tap.state
        try:
            if not state.wants_data():
                self.interrupt()
            elif parameter.grad is not None and not self.at_step:
                self._tap.receive(self, parameter.grad)
            elif state.gradient == BEFORE_CLIP:
                self._tap.keep_later(self)
        except Exception as error:
            tell(state, f"looking at the gradient of {self._parameter!r}", error)

    def keep(self) -> None:
        """Remember the gradient as it is now: it may be clipped before it is measured."""
        parameter = self.tensor
        gradient = None if parameter is None else parameter.grad
        self.is_kept = gradient is not None
        if gradient is not None:
            self.kept = renewed(self.kept, gradient)

    def consumed(self, parameter: Tensor) -> Tensor | None:
        """The gradient that stands for a step that begins or has just ended."""
        if self._tap.state.gradient != BEFORE_CLIP or parameter.grad is None or inside_backward():
            return parameter.grad  # inside backward nothing was clipped yet
        is_kept, self.is_kept = self.is_kept, False
        return self.kept if is_kept else None
