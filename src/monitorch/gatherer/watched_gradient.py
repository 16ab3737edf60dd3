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
"""When the gradient of a parameter is read."""


class WatchedGradient:
    """One parameter of a module, looked up by name: frozen and replaced ones are hooked once they train."""

    def __init__(self, tap: Any, module: nn.Module, parameter: str) -> None:
        self._tap, self._parameter = tap, parameter
        self.module = weakref.ref(module)  # weak: its parameters hold this object in C++, unseen by the GC
        self.sites: list[Site] = []
        self.at_step = False
        self.kept: Tensor | None = None
        """A copy of the gradient at the end of the last backward pass, if needed."""
        self.is_kept = False
        self.hooked: Tensor | None = None
        self._content = 0
        """What the hooked parameter held: ``swap_tensors`` takes the hook away with it."""
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
        if parameter is None or not parameter.requires_grad or not parameter.is_leaf:
            self.unhook()
            return
        with torch._C.DisableTorchFunctionSubclass():  # an uninitialised one refuses nearly all methods
            if parameter is self.hooked and parameter._cdata == self._content:
                return
            self.unhook()
            others = parameter._post_accumulate_grad_hooks
            if others is not None and not others:  # after swap_tensors() torch would not call a hook put into these
                parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]
            self._handle = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            self.hooked, self._content = parameter, parameter._cdata

    def join(self, owned: Owned) -> None:
        """Measure at steps from now on, if an optimizer has the parameter.

        This is never undone: with fully_shard, parameters are for a while not the optimizer's own objects.
        """
        tensor = self.tensor
        self.at_step = self.at_step or (tensor is not None and tensor in owned)

    @property
    def moment(self) -> str:
        """When the gradient is read."""
        moment: str = self._tap.state.gradient if self.at_step else AT_BACKWARD
        return moment

    def unhook(self) -> None:
        """Remove the hook from the parameter."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self.hooked = None

    def interrupt(self) -> None:
        """Do not compare the next gradient with the last one."""
        for site in self.sites:
            site.interrupted = True

    def _accumulated(self, parameter: Tensor) -> None:
        """Called by autograd whenever it has added to the gradient."""
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
        """Copy the gradient as it is now: it may be clipped before it is measured."""
        parameter = self.tensor
        gradient = None if parameter is None else parameter.grad
        self.is_kept = gradient is not None
        if gradient is not None:
            self.kept = renewed(self.kept, gradient)

    def consumed(self, parameter: Tensor) -> Tensor | None:
        """The gradient to measure for a step that begins or has just ended."""
        if self._tap.state.gradient != BEFORE_CLIP or parameter.grad is None or inside_backward():
            return parameter.grad  # inside backward nothing is clipped yet
        is_kept, self.is_kept = self.is_kept, False
        return self.kept if is_kept else None
