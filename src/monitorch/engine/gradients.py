"""Gradients of parameters: all of one backward pass or optimizer step are measured together."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle, unserializable_hook

from ..errors import SkippedSample
from ..numerical.norms import as_dense
from .allocation import renewed
from .buffers import BASELINE, Entry, Info
from .distributed_tensors import local_part
from .loss_scale import Unscaling
from .meter import GRADIENT, LEFT_OUT, TRAINED, Measured, Meter, Reporter, Subscription
from .optimizers import Owned
from .parameters import locate_parameter
from .passes import Reach, reach
from .reports import tell
from .torch_private import (
    NO_TASK,
    after_backward,
    content_of,
    forget_empty_hooks,
    graph_task,
    inside_backward,
    without_modes_of_others,
    without_overrides,
)

if TYPE_CHECKING:
    from .engine import Engine

AT_STEP, BEFORE_CLIP, AT_BACKWARD = "at_step", "before_clip", "at_backward"
"""When the gradient of a parameter is read."""

MAY_WAIT = 1 << 30
"""Bytes of gradients that may wait to be measured together: an optimizer that steps inside backward frees them."""


NO_HOOKS = False, False
"""Neither of the two hooks is set."""

Listener: TypeAlias = Callable[[Tensor, Tensor], None]
"""Called with a parameter and what a backward pass is about to add to its gradient, which must not be kept."""


class WatchedGradient:
    """One parameter of a module, looked up by name: frozen and replaced ones are hooked once they train."""

    def __init__(self, tap: "GradientTap", module: nn.Module, parameter: str) -> None:
        self._tap, self._parameter = tap, parameter
        self.module = weakref.ref(module)  # weak: its parameters hold this object in C++, unseen by the GC
        self.meters: list[Meter] = []
        self.listeners: OrderedDict[int, Listener] = OrderedDict()
        self.at_step = False
        self.kept: Tensor | None = None
        """A copy of the gradient at the end of the last backward pass, if needed."""
        self.is_kept = False
        self.followed: Tensor | None = None
        """The parameter as it was when the last pass began, if it trains."""
        self._content = 0
        """Identifies its content: ``swap_tensors`` moves the hooks away with it."""
        self._handles: list[Any] = []
        self._hooks = NO_HOOKS
        """Which of the two hooks it has: the one that is called after, and the one before backward adds to it."""

    @property
    def tensor(self) -> Tensor | None:
        """The parameter as it is now."""
        module = self.module()
        return None if module is None else locate_parameter(module, self._parameter)

    def refresh(self) -> None:
        """Look the parameter up, and hook it if it trains now: to read its gradient before a step, or to listen."""
        parameter, needed = self.tensor, (self.moment != AT_STEP and bool(self.meters), bool(self.listeners))
        is_known = type(parameter) is nn.Parameter and parameter is self.followed and parameter.requires_grad
        is_ready = needed == self._hooks
        if parameter is not None and is_known and is_ready and content_of(parameter) == self._content:
            return  # nearly always
        if parameter is None or not parameter.requires_grad or not parameter.is_leaf:
            self.unhook()
            return
        with without_overrides():  # an uninitialised one refuses nearly all methods
            if parameter is self.followed and is_ready and content_of(parameter) == self._content:
                return
            self.unhook()
            if any(needed):
                forget_empty_hooks(parameter)
            if needed[0]:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))  # type: ignore[no-untyped-call]
            if needed[1]:
                self._handles.append(parameter.register_hook(self._arrives))  # type: ignore[no-untyped-call]
            self._hooks = needed
            self.followed, self._content = parameter, content_of(parameter)

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
        """Remove the hooks from the parameter; if no hooks remain, autograd need not look for any."""
        while self._handles:
            self._handles.pop().remove()
        if any(self._hooks) and self.followed is not None and not inside_backward():  # it may be calling them
            with without_overrides():
                forget_empty_hooks(self.followed)
        self.followed, self._hooks = None, NO_HOOKS

    def listen(self, listener: Listener) -> RemovableHandle:
        """Tell a listener what each backward pass adds, after the next :meth:`refresh`."""
        handle = RemovableHandle(self.listeners)
        self.listeners[handle.id] = listener
        return handle

    def interrupt(self) -> None:
        """Do not compare the next gradient with the last one."""
        for meter in self.meters:
            meter.interrupt()

    @unserializable_hook  # type: ignore[untyped-decorator]
    def _arrives(self, gradient: Tensor | None) -> None:
        """Called by autograd before it adds to the gradient, and whenever it computes what could be added."""
        state = self._tap.state
        try:
            if gradient is None or gradient.is_meta:  # a function of the user has none for it, or there are no numbers
                return
            parameter = self.followed
            if parameter is not None and state.wants_data():
                with without_modes_of_others():
                    if self._tap.adds_to(parameter):
                        gradient = gradient.detach() if gradient.requires_grad else gradient
                        for listener in list(self.listeners.values()):
                            listener(parameter, gradient)
        except Exception as error:
            tell(state, f"looking at what backward adds to the gradient of {self._parameter!r}", error)

    def _accumulated(self, parameter: Tensor) -> None:
        """Called by autograd whenever it has added to the gradient."""
        state = self._tap.state
        try:
            if not state.wants_data():
                self.interrupt()
            elif parameter.grad is not None and not self.at_step:
                with without_modes_of_others():
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


class GradientTap:
    """Reads gradients when backward has accumulated them; those of a given optimizer when it steps."""

    def __init__(self, engine: "Engine") -> None:
        self.state, self._engine = engine.state, engine
        self._watched: dict[tuple[int, str], WatchedGradient] = {}
        self._waiting: list[tuple[WatchedGradient, Tensor | None, int]] = []
        self._waiting_bytes = 0
        self._is_resting = False
        self._optimizers: tuple[Optimizer, ...] = ()
        self._owned = Owned()
        self._to_keep: list[WatchedGradient] = []
        self._adding: tuple[int, bool] = NO_TASK, False
        """The last backward pass, and whether it adds to gradients."""

    @property
    def meters(self) -> list[Meter]:
        """All that is measured here."""
        return [meter for watched in self._watched.values() for meter in watched.meters]

    @property
    def parameters(self) -> list[Tensor]:
        """All watched parameters, as they are now."""
        return [tensor for watched in self._watched.values() if (tensor := watched.tensor) is not None]

    @property
    def followed(self) -> list[Any]:
        """The parameters whose gradients are expected: the objects in place when the last pass began."""
        return [watched.followed for watched in self._watched.values() if watched.followed is not None]

    @property
    def takes_scaled(self) -> bool:
        """Whether gradients are read before a GradScaler unscales them for a step."""
        early = [own.tensor for own in self._watched.values() if own.meters and own.moment != AT_STEP]
        return any(tensor is not None and tensor.requires_grad for tensor in early)

    def watch(
        self, module: nn.Module, parameter: str, name: str, gatherer: Reporter, preprocessor: Measured
    ) -> Subscription:
        """Measure the gradient of a parameter for a preprocessor from now on."""
        watched = self._at(module, parameter)
        subscription = self._engine.subscribe(watched.meters, name, gatherer, preprocessor, GRADIENT, parameter)
        if not self._is_resting:
            watched.refresh()
        return subscription

    def listen(self, module: nn.Module, parameter: str, listener: Listener) -> RemovableHandle:
        """Tell a listener what each backward pass of observed steps adds to the gradient of a parameter.

        The listener gets the object currently in the parameter's place: during a pass, ``fully_shard`` puts others
        there.
        """
        watched = self._at(module, parameter)
        handle = watched.listen(listener)
        if not self._is_resting:
            watched.refresh()
        return handle

    def _at(self, module: nn.Module, parameter: str) -> WatchedGradient:
        watched = self._watched.get((id(module), parameter))
        if watched is None or watched.module() is not module:  # another object may have had the same id
            watched = self._watched[id(module), parameter] = WatchedGradient(self, module, parameter)
            watched.join(self._owned)  # before any hook is added: torch keeps looking where one has ever been
        return watched

    def adds_to(self, parameter: Any) -> bool:
        """Whether the running backward pass adds to gradients; ``autograd.grad()`` returns them instead."""
        task = graph_task()
        if self._adding[0] != task:
            self._adding = task, reach([parameter]) is not Reach.RETURNED
        return self._adding[1]

    def refresh(self) -> None:
        """Follow parameters that were replaced, frozen or initialised; drop those that are no longer needed."""
        if self._is_resting:
            return
        owned = Owned(*self._optimizers)
        for place, watched in list(self._watched.items()):
            if watched.meters or watched.listeners:
                watched.refresh()
                if not watched.at_step:
                    watched.join(owned)
            else:
                self._watched.pop(place).unhook()

    def begin_pass(self) -> None:
        """Follow parameters that were replaced; without a hook no gradient is seen in this pass."""
        if self.state.wants_data():
            self._drop_leftovers()
            self.wake()
        elif not self._is_resting:
            self._drop_leftovers()
            self.rest()

    def rest(self) -> None:
        """Unhook all parameters until :meth:`wake`: a hook costs time even if it does nothing."""
        if not self._is_resting:
            self._is_resting = True
            for watched in self._watched.values():
                watched.interrupt()
                watched.unhook()

    def wake(self) -> None:
        """Hook them again; the pass that produces the next gradients may have begun already."""
        self._is_resting = False
        self.refresh()

    def close(self) -> None:
        """Remove the hooks from all parameters."""
        for watched in self._watched.values():
            watched.unhook()
            watched.meters, watched.listeners = [], OrderedDict()
        self._watched, self._waiting, self._to_keep = {}, [], []

    def follow(self, optimizers: Sequence[Optimizer]) -> None:
        """Measure the gradients of the parameters of ``optimizers`` at their steps: as they use them."""
        self._optimizers = tuple(optimizers)
        self._owned = Owned(*self._optimizers)
        for watched in self._watched.values():
            watched.join(self._owned)

    def moments(self, separator: str) -> dict[str, str]:
        """When the gradient of each parameter is read."""
        watched = [(watched, name) for (_, name), watched in self._watched.items() if watched.meters]
        return {separator.join(filter(None, (one.meters[0].name, name))): one.moment for one, name in watched}

    def take_step(self, optimizer: Optimizer) -> None:
        """Measure the gradients that ``optimizer`` is about to use, or has just used."""
        self._drop_leftovers()
        if not self.state.wants_data():
            return
        taken: list[tuple[WatchedGradient, Tensor | None, int]] = []
        owned = Owned(optimizer)
        for watched in self._watched.values():
            tensor = watched.tensor
            if tensor is not None and tensor in owned:
                gradient = watched.consumed(tensor) if watched.at_step else None
                if gradient is not None:
                    taken.append((watched, gradient, gradient._version))
                watched.at_step = True  # a parameter that joined the optimizer in this step was measured at backward
        unscaling = self._engine.step_scales.of(optimizer)
        if self.state.gradient == BEFORE_CLIP and self.state.loss_scale is not None:
            unscaling = unscaling._replace(unit=self.state.loss_scale.unit())
        self._measure(taken, unscaling)

    def skip_step(self, optimizer: Optimizer) -> None:
        """A step is skipped because of an overflow: do not compare the next gradient with the last one."""
        owned = Owned(optimizer)
        for watched in self._watched.values():
            tensor = watched.tensor
            if tensor is not None and tensor in owned:
                watched.is_kept = False
                watched.interrupt()

    def keep_later(self, watched: WatchedGradient) -> None:
        """Copy a gradient after backward and all its final callbacks have run."""
        self._to_keep.append(watched)
        if len(self._to_keep) == 1:
            self.after_all_callbacks(self._keep)

    def _drop_leftovers(self) -> None:
        """Forget gradients that still wait because a backward pass has failed."""
        if not inside_backward():
            self._waiting, self._waiting_bytes, self._to_keep = [], 0, []

    def _keep(self) -> None:
        try:
            waiting, self._to_keep = self._to_keep, []
            with without_modes_of_others():
                for watched in waiting:
                    watched.keep()
        except Exception as error:
            tell(self.state, "keeping gradients until they are clipped", error)

    def receive(self, watched: WatchedGradient, gradient: Tensor) -> None:
        """Take a gradient inside backward; it waits for the others, so that all are measured in one launch."""
        if self._engine.averages:
            self._receive_later(watched)
            return
        self._waiting.append((watched, gradient, gradient._version))
        self._waiting_bytes += gradient.numel() * gradient.element_size()
        if not self._engine.may_wait or self._waiting_bytes > MAY_WAIT:
            self.flush()
        elif len(self._waiting) == 1:
            after_backward(self.flush)

    def _receive_later(self, watched: WatchedGradient) -> None:
        """Read a gradient after it was averaged over processes, which a callback does at the end of backward."""
        self._waiting.append((watched, None, 0))
        if len(self._waiting) == 1:
            self.after_all_callbacks(self.flush)

    def flush(self) -> None:
        """Measure all waiting gradients; autograd calls this at the end of a backward pass."""
        try:
            begin = self.state.clock.enter()
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            try:
                scale = self.state.loss_scale
                self._measure(waiting, Unscaling() if scale is None else Unscaling(scale.unit()))
            finally:
                self.state.clock.leave(begin)
        except Exception as error:
            tell(self.state, "measuring gradients of parameters", error)

    def _measure(self, waiting: list[tuple[WatchedGradient, Tensor | None, int]], unscaling: Unscaling) -> None:
        entries: list[Entry] = []
        unscaled: list[Entry] = []
        baseline, step, gaps = self.state.is_baseline, self.state.step, self.state.gaps
        for watched, gradient, version in waiting:
            tag = BASELINE * baseline + (LEFT_OUT if self._optimizers and not watched.at_step else TRAINED)
            for meter in watched.meters:
                if meter.failed or (baseline and not meter.compares):
                    continue
                try:
                    found = self._untouched(watched, gradient, version)
                    if found is None:
                        continue
                    x, part = found
                    info = Info(meter.number, step, tag, part)
                    if unscaling.unit is None or not meter.rates:
                        entries.append((meter, info, x, meter.follows(x, gaps)))
                    else:  # what counts as zero depends on the scale, so it cannot be corrected afterwards
                        x = x * unscaling.unit
                        unscaled.append((meter, info, x, meter.follows(x, gaps)))
                except Exception as error:
                    meter.fail(error, gradient)
        self._engine.measure_together("gradients", entries, unscaling.of_scaled)
        self._engine.measure_together("gradients", unscaled, unscaling.of_unscaled)

    def _untouched(self, watched: WatchedGradient, gradient: Tensor | None, version: int) -> tuple[Tensor, int] | None:
        """The local part of the gradient, as it was accumulated, and which part it is."""
        if gradient is None:
            gradient = getattr(watched.tensor, "grad", None)
            if gradient is None:
                return None
        elif gradient._version != version:
            self._engine.may_wait = False
            raise SkippedSample("its gradient was changed before backward had ended; from now on it is read at once")
        x, part = local_part(gradient)
        return x if x.layout is torch.strided and not x.requires_grad else as_dense(x), part

    def after_all_callbacks(self, action: Callable[[], None]) -> None:
        """Call ``action`` after all other callbacks at the end of backward, such as averaging over processes."""

        def queue_again() -> None:
            try:
                after_backward(action)  # after all callbacks that are queued by then
            except Exception as error:
                tell(self.state, "waiting for the end of a backward pass", error)

        after_backward(queue_again)
