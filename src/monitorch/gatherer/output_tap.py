"""The one hook on a module that all lenses on its output share."""

import weakref
from functools import partial
from time import perf_counter
from typing import Any

from torch import Tensor, nn, strided

from ..numerical.length import as_dense
from ..numerical.memory import is_capturing
from ..numerical.notes import LEAD, OWN, Note
from ..numerical.shards import distributed_type, is_distributed, local_gradient, local_samples
from ..preprocessor.outputs import kind_of_pass, pick_tensor, samples_of
from .compilation import inside_graph, is_compiled, is_traced
from .doorway import Door
from .hook_on_module import HookOnModule
from .output_alias import replace, with_alias
from .recomputation import RecomputationFilter
from .reports import tell
from .site import Site, Subscription, subscribe

OUTPUT_GRADIENT = "output gradient"
"""The names of these sites in all processes."""


class OutputTap(HookOnModule):
    """Measures a module's output and its gradient, each once for all lenses.

    A tap that is called while nothing is recorded removes its hook, so that idle steps cost nothing; the house puts it
    back in time.

    Args:
        house: what all taps of an inspector share: its state, the ledger, and the device of the model.
    """

    def __init__(self, house: Any, module: nn.Module, name: str) -> None:
        self.state, self._house, self._name = house.state, house, name
        self.module = weakref.ref(module)
        self.outputs: list[Site] = []
        self.gradients: list[Site] = []
        self._recomputation = RecomputationFilter(self.state)
        self._missed = False
        self._later_hooks: list[int] = []
        self._distributed = distributed_type()
        # before the hooks of a parallelised module, which reduce its output to the local part
        comes_first = any(map(is_distributed, module._parameters.values()))
        self._handle = module.register_forward_hook(self, with_kwargs=True, prepend=comes_first)

    @property
    def sites(self) -> list[Site]:
        """All sites that are measured here."""
        return [*self.outputs, *self.gradients]

    def watch_output(self, gatherer: Any, preprocessor: Any) -> Subscription:
        """Measure outputs for a preprocessor from now on."""
        subscription = subscribe(self.outputs, self._name, gatherer, preprocessor)
        self._house.enrol(subscription.site, "output", subscription.site.index)
        return self._with_door(subscription, self._receive_output)

    def watch_gradient(self, gatherer: Any, preprocessor: Any, output_index: int | str | None) -> Subscription:
        """Measure gradients of outputs for a preprocessor from now on."""
        asked = partial(subscribe, output_index=output_index, share=self.state.loss_share)
        subscription = asked(self.gradients, self._name, gatherer, preprocessor)
        self._house.enrol(subscription.site, OUTPUT_GRADIENT, output_index)
        return self._with_door(subscription, self._receive_gradient)

    def close(self) -> None:
        """Remove the hook; gradients that still arrive are ignored."""
        self._house.resting.discard(self)
        self._handle.remove()
        self.outputs, self.gradients = [], []

    @inside_graph
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Called after each forward pass; while the model is being compiled, puts operators into the graph."""
        if is_compiled():
            return self._leave_doors(module, output) if self.state.observing else None
        changed = None
        try:
            if is_traced():
                return None
            if self._house.when_no_pass_has_begun is not None:
                self._house.when_no_pass_has_begun(module)
            if not self.state.wants_data():
                self._rest(module)
                return None
            if not self._recomputation.counts():
                return None
            begin = perf_counter()
            if self._missed:
                self._resume()
            kind = kind_of_pass(module)
            for site in self.outputs:
                self._take_output(site, kind, output)
            if self.gradients:
                changed = self._hook_gradients(module, args, kwargs, output)
            self.state.spend(perf_counter() - begin)
        except Exception as error:
            tell(self.state, f"looking at the output of layer {self._name!r}", error)
        return changed

    def _rest(self, module: nn.Module) -> None:
        """Nothing is recorded now: there is a gap before the next tensor, and the hook may be removed for a while."""
        self._missed = True
        if self.state.is_steady:
            hooks = list(module._forward_hooks)
            self._later_hooks = hooks[hooks.index(self._handle.id) + 1 :]
            self._handle.remove()
            self._house.send_to_rest(self)

    def wake(self) -> None:
        """Put the hook back, in the same place among the other hooks."""
        module = self.module()
        if module is None:
            return
        self._handle = module.register_forward_hook(self, with_kwargs=True)
        hooks: Any = module._forward_hooks
        for later in self._later_hooks:
            if later in hooks:
                hooks.move_to_end(later)

    # the hot path of hooks: nearly all CPU time is spent here, so it calls few functions

    def _take_output(self, site: Site, kind: int, output: Any, part: int = OWN) -> None:
        """Measure an output, if passes of this kind are wanted."""
        if kind not in site.passes or site.failed:
            return
        if self.state.lead and not (site.in_graph and is_capturing(self._house.device)):
            return  # nothing is compared with it; but a CUDA graph also serves other steps
        try:
            x = samples_of(output, site.index)
            if type(x) is not Tensor:
                x, part = local_samples(x)
            if x.is_meta:
                return  # it has no numbers, like those of a tracer
            alive = site.alive(x) if site.exact_death else None
            self._house.ledger.page(x.device).output(Note(site, kind, self.state.step, part, alive), x)
        except Exception as error:
            site.fail(error, output)

    def _hook_gradients(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Hook the tensors in the output; returns a new output if the module returned its own input."""
        changed, tag = output, LEAD if self.state.lead else 0
        for site in self.gradients:
            is_plain = isinstance(changed, Tensor) and changed.is_floating_point()
            tensor = changed if is_plain else site.guarded(pick_tensor, changed, site.index)
            if tensor is not None and tensor.requires_grad:
                changed, tensor = with_alias(changed, tensor, module, (*args, *kwargs.values()))
                tensor.register_hook(partial(self._take_gradient, site, tag))  # type: ignore[no-untyped-call]
        return None if changed is output else changed

    def _take_gradient(self, site: Site, tag: int, gradient: Tensor, part: int = OWN) -> None:
        """Measure a gradient; the hook of an earlier forward pass may fire after the tap was closed."""
        try:
            if (
                site not in self.gradients
                or site.failed
                or gradient.is_meta
                or is_traced()
                or not self._house.backward.is_running(self.module())
            ):
                return
            if not self.state.is_recording():
                site.interrupted = True
                return
            begin = perf_counter()
            try:
                x = gradient.detach() if gradient.requires_grad else gradient
                if type(x) is not Tensor:
                    x, part = local_gradient(x)
                x = x if x.layout is strided else as_dense(x)
                follows = site.follows(x, self.state.gaps)
                line = (site.room, self.state.gaps) if site.in_graph and x.is_cuda else None
                page, note = self._house.ledger.page(x.device), Note(site, tag, self.state.step, part, line=line)
                if self.state.loss_scale is None or (site.in_graph and is_capturing(x.device)):
                    page.geometry(note, x, follows)  # rows of a CUDA graph are unscaled when they are collected
                else:
                    with page.corrected(self.state.loss_scale.unit(in_graph=site.in_graph)):
                        page.geometry(note, x, follows)
            except Exception as error:
                site.fail(error, gradient)
            self.state.spend(perf_counter() - begin)
        except Exception as error:
            tell(self.state, f"looking at the gradient of layer {self._name!r}", error)

    def _resume(self) -> None:
        """After a pause in recording: do not compare the next tensor with the last one."""
        self._missed = False
        for site in self.gradients:
            site.interrupted = True

    # inside a compiled graph

    def _with_door(self, subscription: Subscription, receive: Any) -> Subscription:
        site = subscription.site
        if site.door is None:
            site.door = Door(self._house.device, partial(receive, site), self.state)
        return subscription

    def _leave_doors(self, module: nn.Module, output: Any) -> Any:
        """Put operators into the graph that is being compiled; must not fail, since nothing would catch the error."""
        changed, kind, is_new = output, kind_of_pass(module), False
        for site in self.outputs:
            tensor = pick_tensor(output, site.index)
            if tensor is not None:
                site.door.pass_forward(tensor, kind, distributed=isinstance(tensor, self._distributed))
        for site in self.gradients if kind >= 2 else ():
            tensor = pick_tensor(changed, site.index)
            if tensor is not None and tensor.requires_grad:
                watched = site.door.pass_backward(tensor, distributed=isinstance(tensor, self._distributed))
                changed, is_new = replace(changed, tensor, watched), True
        return changed if is_new else None  # the compiler cannot compare tuples with "is"

    def _receive_output(self, site: Site, x: Tensor, kind: int, part: int) -> None:
        if self.state.wants_data() and self._recomputation.counts(has_grad=kind >= 2):
            site.in_graph = True
            self._take_output(site, kind, x, part)

    def _receive_gradient(self, site: Site, x: Tensor, kind: int, part: int) -> None:
        site.in_graph = True
        if self.state.wants_data():
            self._take_gradient(site, LEAD if self.state.lead else 0, x, part)
        else:
            site.interrupted = True
