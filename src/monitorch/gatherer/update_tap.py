"""How far an optimizer step moves parameters: all of them are measured together."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..numerical.memory import is_like
from ..numerical.notes import LEAD, Note
from ..numerical.shards import local_part
from ..preprocessor.parameters import find_parameter
from .ownership import Owned
from .site import Site, Subscription, subscribe


class _Watched:
    """A parameter whose updates are measured, looked up by name at each step."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = weakref.ref(module), name
        self.sites: list[Site] = []
        self.before: Tensor | None = None
        """The parameter as it was before the step."""

    def find(self) -> Tensor | None:
        """The parameter as it is now."""
        module = self.module()
        return None if module is None else find_parameter(module, self.name)

    def copy_of(self, local: Tensor) -> Tensor:
        """Memory for a copy of the local part of the parameter."""
        if self.before is None or not is_like(self.before, local):
            self.before = torch.empty_like(local, requires_grad=False)
        for site in self.sites:
            site.before = self.before
        return self.before


class UpdateTap:
    """Measures parameters from just before to just after each step.

    They are copied before every step that is measured, because a parameter may have changed since the last step without
    a trace: neither fused steps nor changes of ``.data`` raise its version.
    """

    def __init__(self, house: Any, optimizer: Optimizer) -> None:
        self.state, self._house, self._optimizer = house.state, house, optimizer
        self._watched: dict[tuple[int, str], _Watched] = {}
        self._tag: int | None = None
        self._moving: list[tuple[_Watched, Tensor]] = []

    @property
    def sites(self) -> list[Site]:
        """All sites that are measured here."""
        return [site for watched in self._watched.values() for site in watched.sites]

    def watch(self, module: nn.Module, parameter: str, name: str, gatherer: Any, preprocessor: Any) -> Subscription:
        """Measure the updates of a parameter for a preprocessor from now on."""
        watched = self._watched.get((id(module), parameter))
        if watched is None or watched.module() is not module:  # another parameter may have had the same id
            watched = self._watched[id(module), parameter] = _Watched(module, parameter)
        subscription = subscribe(watched.sites, name, gatherer, preprocessor)
        self._house.enrol(subscription.site, "update", parameter)
        return subscription

    def close(self) -> None:
        """Forget everything."""
        self._watched, self._moving = {}, []

    def refresh(self) -> None:
        """Drop parameters that no preprocessor needs any more."""
        self._watched = {place: watched for place, watched in self._watched.items() if watched.sites}

    def before_step(self, *_: Any) -> None:
        """Copy each parameter of the optimizer as it is before the step."""
        self._moving = []
        if not self.state.wants_data():
            if self._tag is not None:
                self.skip_step()
            self._tag = None
            return
        self._tag = LEAD if self.state.lead else 0
        owned, copies, originals = Owned(self._optimizer), list[Tensor](), list[Tensor]()
        for watched in self._watched.values():
            tensor = watched.find()
            if tensor is not None and tensor in owned:  # its steps do not change others
                local = local_part(tensor)[0]
                copies.append(watched.copy_of(local))
                originals.append(local)
                self._moving.append((watched, tensor))
        if copies:
            with torch.no_grad():
                torch._foreach_copy_(copies, originals)

    def after_step(self, *_: Any) -> None:
        """Measure each parameter against its copy."""
        if self._tag is None:
            return
        entries: list[tuple[Note, Tensor, bool]] = []
        moved, self._moving = self._moving, []
        for watched, tensor in moved:
            local, part = local_part(tensor)
            for site in watched.sites:
                if site.before is not None and not site.failed and not (self._tag and site.correlation is None):
                    follows = bool(site.guarded(site.follows, local, self.state.gaps))
                    entries.append((Note(site, self._tag, self.state.step, part), local, follows))
        self._house.measure_together("updates", entries, self._house.step_scales.of(self._optimizer).of_unscaled)

    def skip_step(self) -> None:
        """A step is skipped: do not compare the next update with the last one."""
        for site in self.sites:
            site.interrupted = True
