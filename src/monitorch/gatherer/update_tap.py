"""How far an optimizer's step moves parameters: all of them are measured together."""

import weakref
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..numerical.memory import is_like, renewed
from ..numerical.notes import LEAD, Note
from ..numerical.shards import local_part
from ..preprocessor.parameters import find_parameter
from .ownership import owns
from .site import Site, Subscription, subscribe


class UpdateTap:
    """Measures parameters from just before to just after each step.

    One copy of the parameters is kept. It is renewed before a step only where a parameter was changed since the step
    before (its version says so): the pass that measures a step also leaves the copy up to date.
    """

    def __init__(self, house: Any, optimizer: Optimizer) -> None:
        self.state, self._house, self._optimizer = house.state, house, optimizer
        self._watched: dict[tuple[int, str], tuple[weakref.ref[nn.Module], list[Site]]] = {}
        self._tag: int | None = None
        self._sizes: list[int] = []
        self._found: list[tuple[weakref.ref[nn.Module], str, Site, Tensor]] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def sites(self) -> list[Site]:
        """All that is measured here."""
        return [site for _, sites in self._watched.values() for site in sites]

    def watch(self, module: nn.Module, parameter: str, name: str, gatherer: Any, preprocessor: Any) -> Subscription:
        """Measure the updates of a parameter for a preprocessor from now on."""
        self._sizes = []
        known, sites = self._watched.get((id(module), parameter), (None, []))
        if known is None or known() is not module:  # another one may have had the same id
            _, sites = self._watched[id(module), parameter] = weakref.ref(module), []
        subscription = subscribe(sites, name, gatherer, preprocessor)
        self._house.enrol(subscription.site, "update", parameter)
        return subscription

    def close(self) -> None:
        """Leave the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._watched, self._found = {}, []

    def _before_step(self, *_: Any) -> None:
        """Have a copy of each parameter as it is before the step."""
        if not self.state.wants_data():
            if self._tag is not None:
                self.skip_step()
            self._tag = None
            return
        self._find_parameters()
        self._tag = LEAD if self.state.lead else 0
        for _module, _name, site, tensor in self._found:
            local = local_part(tensor)[0]
            if site.version != tensor._version or not is_like(site.before, local):
                site.guarded(self._copy, site, local)

    def _after_step(self, *_: Any) -> None:
        """Measure each parameter against its copy; afterwards the copy is where the parameter is."""
        if self._tag is None:
            return
        entries: list[tuple[Note, Tensor, bool]] = []
        for _module, _name, site, tensor in self._found:
            if site.before is not None and not site.failed and not (self._tag and site.correlation is None):
                local, part = local_part(tensor)
                follows = bool(site.guarded(site.follows, local, self.state.gaps))
                entries.append((Note(site, self._tag, self.state.step, part), local, follows))
                site.version = tensor._version
        self._house.measure_together("updates", entries, self._house.step_scales.of(self._optimizer).of_unscaled)

    def skip_step(self) -> None:
        """A step is left out: the next one does not follow the last one."""
        for site in self.sites:
            site.interrupted = True

    def _find_parameters(self) -> None:
        """Look parameters up anew if one was replaced, or the optimizer has got more of them."""
        sizes = [len(group["params"]) for group in self._optimizer.param_groups]
        if sizes == self._sizes and self._are_in_place():
            return
        self._sizes, self._found = sizes, []
        for (_, parameter), (known, sites) in self._watched.items():
            module = known()
            tensor = None if module is None else find_parameter(module, parameter)
            if tensor is not None and owns(self._optimizer, tensor):  # another one's steps do not move it
                for site in sites:
                    site.version = -1
                    self._found.append((known, parameter, site, tensor))

    def _are_in_place(self) -> bool:
        for known, name, _, tensor in self._found:
            module = known()
            if module is None or module._parameters.get(name) is not tensor:
                return False
        return True

    def _copy(self, site: Site, tensor: Tensor) -> None:
        site.before = renewed(site.before, tensor)
