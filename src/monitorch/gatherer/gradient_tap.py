"""Gradients of parameters: those of one backward pass, or one optimizer step, are measured together."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer

from ..errors import SkippedSample
from ..numerical.length import as_dense
from ..numerical.notes import LEAD, Note
from ..numerical.shards import local_part
from .loss_scale import Unscaling
from .ownership import Owned
from .recomputation import inside_backward
from .reports import tell
from .site import Site, Subscription, subscribe
from .watched_gradient import AT_STEP, BEFORE_CLIP, WatchedGradient

MAY_WAIT = 1 << 30
"""Bytes of gradients that may wait to be measured together: an optimizer that steps inside backward frees them."""


class GradientTap:
    """Reads gradients when backward has accumulated them; those of a given optimizer when it steps."""

    def __init__(self, house: Any) -> None:
        self.state, self._house = house.state, house
        self._watched: dict[tuple[int, str], WatchedGradient] = {}
        self._waiting: list[tuple[WatchedGradient, Tensor | None, int]] = []
        self._waiting_bytes = 0
        self._is_resting = False
        self._optimizers: tuple[Optimizer, ...] = ()
        self._to_keep: list[WatchedGradient] = []

    @property
    def sites(self) -> list[Site]:
        """All sites that are measured here."""
        return [site for watched in self._watched.values() for site in watched.sites]

    @property
    def parameters(self) -> list[Tensor]:
        """All watched parameters, as they are now."""
        return [tensor for watched in self._watched.values() if (tensor := watched.tensor) is not None]

    @property
    def hooked(self) -> list[Any]:
        """Those whose gradients are waited for: what was in their places when the last pass began."""
        return [watched.hooked for watched in self._watched.values() if watched.hooked is not None]

    @property
    def takes_scaled(self) -> bool:
        """Whether gradients are read before a GradScaler unscales them for a step."""
        early = [watched.tensor for watched in self._watched.values() if watched.moment != AT_STEP]
        return any(tensor is not None and tensor.requires_grad for tensor in early)

    def watch(self, module: nn.Module, parameter: str, name: str, gatherer: Any, preprocessor: Any) -> Subscription:
        """Measure the gradient of a parameter for a preprocessor from now on."""
        watched = self._watched.get((id(module), parameter))
        if watched is None or watched.module() is not module:  # another object may have had the same id
            watched = self._watched[id(module), parameter] = WatchedGradient(self, module, parameter)
        watched.refresh()
        subscription = subscribe(watched.sites, name, gatherer, preprocessor)
        self._house.enrol(subscription.site, "gradient", parameter)
        return subscription

    def refresh(self) -> None:
        """Follow parameters that were replaced, frozen or initialised; drop those that are no longer needed."""
        if self._is_resting:
            return
        owned = Owned(*self._optimizers)
        for place, watched in list(self._watched.items()):
            if watched.sites:
                watched.refresh()
                watched.join(owned)
            else:
                self._watched.pop(place).unhook()

    def begin_pass(self) -> None:
        """Hook the parameters, or unhook them for a pass that is not recorded: a hook costs time even then."""
        self._drop_leftovers()
        rests, self._is_resting = self._is_resting, not self.state.wants_data()
        if not self._is_resting:
            self.refresh()
        elif not rests:
            for watched in self._watched.values():
                watched.interrupt()
                watched.unhook()

    def close(self) -> None:
        """Remove the hooks from all parameters."""
        for watched in self._watched.values():
            watched.unhook()
            watched.sites = []
        self._watched, self._waiting, self._to_keep = {}, [], []

    def follow(self, optimizers: Sequence[Optimizer]) -> None:
        """Measure the gradients of the parameters of ``optimizers`` at their steps: as they use them."""
        self._optimizers = tuple(optimizers)
        owned = Owned(*self._optimizers)
        for watched in self._watched.values():
            watched.join(owned)

    def moments(self, separator: str) -> dict[str, str]:
        """When the gradient of each parameter is read."""
        watched = [(watched, name) for (_, name), watched in self._watched.items() if watched.sites]
        return {separator.join(filter(None, (one.sites[0].name, name))): one.moment for one, name in watched}

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
        unscaling = self._house.step_scales.of(optimizer)
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
            self._after_backward(self._keep)

    def _drop_leftovers(self) -> None:
        """Forget gradients that still wait because a backward pass has failed."""
        if not inside_backward():
            self._waiting, self._waiting_bytes, self._to_keep = [], 0, []

    def _keep(self) -> None:
        try:
            waiting, self._to_keep = self._to_keep, []
            for watched in waiting:
                watched.keep()
        except Exception as error:
            tell(self.state, "keeping gradients until they are clipped", error)

    def receive(self, watched: WatchedGradient, gradient: Tensor) -> None:
        """Take a gradient inside backward; it waits for the others, so that all are measured in one launch."""
        if self._house.averages:
            self._receive_later(watched)
            return
        self._waiting.append((watched, gradient, gradient._version))
        self._waiting_bytes += gradient.numel() * gradient.element_size()
        if not self._house.may_wait or self._waiting_bytes > MAY_WAIT:
            self.flush()
        elif len(self._waiting) == 1:
            Variable._execution_engine.queue_callback(self.flush)

    def _receive_later(self, watched: WatchedGradient) -> None:
        """Read a gradient after it was averaged over processes, which a callback does at the end of backward."""
        self._waiting.append((watched, None, 0))
        if len(self._waiting) == 1:
            self._after_backward(self.flush)

    def flush(self) -> None:
        """Measure all waiting gradients; autograd calls this at the end of a backward pass."""
        try:
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            scale = self.state.loss_scale
            self._measure(waiting, Unscaling() if scale is None else Unscaling(scale.unit()))
        except Exception as error:
            tell(self.state, "measuring gradients of parameters", error)

    def _measure(self, waiting: list[tuple[WatchedGradient, Tensor | None, int]], unscaling: Unscaling) -> None:
        entries: list[tuple[Note, Tensor, bool]] = []
        unscaled: list[tuple[Note, Tensor, bool]] = []
        lead, step, gaps = self.state.lead, self.state.step, self.state.gaps
        for watched, gradient, version in waiting:
            for site in watched.sites:
                if not (lead and site.correlation is None):
                    x, part = site.guarded(self._untouched, watched, gradient, version) or (None, 0)
                    if x is not None:
                        # what counts as zero depends on the scale, so it cannot be corrected afterwards
                        in_advance = site.rates and unscaling.unit is not None
                        x = x * unscaling.unit if in_advance else x
                        follows = bool(site.guarded(site.follows, x, gaps))
                        entry = Note(site, LEAD if lead else 0, step, part), x, follows
                        (unscaled if in_advance else entries).append(entry)
        self._house.measure_together("gradients", entries, unscaling.of_scaled)
        self._house.measure_together("gradients", unscaled, unscaling.of_unscaled)

    def _untouched(self, watched: WatchedGradient, gradient: Tensor | None, version: int) -> tuple[Tensor, int] | None:
        """The local part of the gradient, as it was accumulated, and which part it is."""
        if gradient is None:
            gradient = getattr(watched.tensor, "grad", None)
            if gradient is None:
                return None
        elif gradient._version != version:
            self._house.may_wait = False
            raise SkippedSample("its gradient was changed before backward had ended; from now on it is read at once")
        x, part = local_part(gradient)
        return x if x.layout is torch.strided and not x.requires_grad else as_dense(x), part

    def _after_backward(self, action: Callable[[], None]) -> None:
        """Call ``action`` after all other callbacks at the end of backward, such as averaging over processes."""
        queue = Variable._execution_engine.queue_callback

        def queue_again() -> None:
            try:
                queue(action)  # after all callbacks that are queued by then
            except Exception as error:
                tell(self.state, "waiting for the end of a backward pass", error)

        queue(queue_again)
