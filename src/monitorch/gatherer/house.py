"""All taps of one inspector: where lenses find the hooks that they share."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..numerical.ledger import Ledger
from ..numerical.notes import LEAD, Note
from .compilation import number_of_graphs, spare_the_compiler
from .gradient_tap import GradientTap
from .loss_scale import Correction, StepScales
from .optimizer_steps import OptimizerSteps
from .output_tap import OUTPUT_GRADIENT, OutputTap
from .parameter_tap import ParameterTap
from .site import Site
from .training_backward import TrainingBackward
from .update_tap import UpdateTap


class House:
    """One output tap per module, one tap for gradients, one per optimizer for updates, and the ledger they fill.

    Args:
        state: the state of the inspector: whether to record, and the step.
        device: the device of the model.
        averages: whether gradients are averaged over processes while backward ends.
        model: the model that is trained.
    """

    def __init__(
        self, state: Any, device: torch.device, *, averages: bool = False, model: nn.Module | None = None
    ) -> None:
        self.state, self.device, self.averages = state, device, averages
        self.backward = TrainingBackward(model, state)
        self.may_wait = True
        """Whether gradients of one backward pass may be measured together at its end."""
        self.ledger = Ledger(joins=not getattr(state, "per_rank", False), before_reading=self.collect)
        self.ledger.page(device)  # before a compiled model runs with memory of its own
        self.gradients = GradientTap(self)
        self.parameters = ParameterTap(self)
        self.step_scales = StepScales()
        self._outputs: dict[int, OutputTap] = {}
        self._updates: dict[int, UpdateTap] = {}
        self._steps: dict[int, OptimizerSteps] = {}
        self.when_no_pass_has_begun: Callable[[nn.Module], None] | None = None
        """Called with the first layer that runs, if no pass of the model was noticed before."""
        self.resting: set[OutputTap] = set()
        self._graphs = 0

    @classmethod
    def of(cls, model: nn.Module, state: Any) -> "House":
        """The house for a model; a model without tensors counts as being on the CPU."""
        spare_the_compiler()
        tensor = next(chain(model.parameters(), model.buffers()), None)
        device = torch.device("cpu") if tensor is None else tensor.device
        return cls(state, device, averages=getattr(state, "averages", False), model=model)

    @property
    def is_blind(self) -> bool:
        """Whether outputs are watched, but none was ever seen."""
        sites = [site for tap in self._outputs.values() for site in tap.outputs]
        return bool(sites) and not any(site.seen for site in sites)

    def output(self, module: nn.Module, name: str) -> OutputTap:
        """The tap on a module's output."""
        tap = self._outputs.get(id(module))
        if tap is None or tap.module() is not module:  # another module may have had the same id
            tap = self._outputs[id(module)] = OutputTap(self, module, name)
        return tap

    def updates(self, optimizer: Optimizer) -> UpdateTap:
        """The tap on an optimizer's steps."""
        tap = self._updates.get(id(optimizer))
        if tap is None:
            tap = self._updates[id(optimizer)] = UpdateTap(self, optimizer)
            steps = self.steps(optimizer)
            steps.before.append(tap.before_step)
            steps.after.insert(0, tap.after_step)  # right after the step of the optimizer
        return tap

    def steps(self, optimizer: Optimizer) -> OptimizerSteps:
        """What notices an optimizer's steps."""
        if id(optimizer) not in self._steps:
            self._steps[id(optimizer)] = OptimizerSteps(optimizer, self.state)
        return self._steps[id(optimizer)]

    def _leave(self, place: int) -> None:
        """Stop measuring the updates of this optimizer."""
        tap, steps = self._updates.pop(place), self._steps[place]
        steps.before.remove(tap.before_step)
        steps.after.remove(tap.after_step)
        if not steps.before and not steps.after:
            self._steps.pop(place).remove()

    def come_last(self) -> None:
        """Let all other hooks run before a step is measured."""
        for steps in self._steps.values():
            steps.come_last()

    @property
    def compares(self) -> bool:
        """Whether tensors of consecutive steps are compared."""
        return bool(self._compared())

    @property
    def takes_scaled_gradients(self) -> bool:
        """Whether gradients are measured before a GradScaler has unscaled them."""
        return self.gradients.takes_scaled or any(tap.gradients for tap in self._outputs.values())

    def enrol(self, site: Site, *what: Any) -> None:
        """Give a new site a name that is the same in every process."""
        self.ledger.joint.enrol(site, *what, site.name)

    def measure_together(
        self, verb: str, entries: Iterable[tuple[Note, Tensor, bool]], correction: Correction | None = None
    ) -> None:
        """Measure many tensors, each on the page of its device; ``True``: compare it with the tensor before."""
        by_device: dict[torch.device, list[tuple[Note, Tensor, bool]]] = defaultdict(list)
        for entry in entries:
            if not entry[1].is_meta:  # there are no numbers in it
                by_device[entry[1].device].append(entry)
        for device, own in by_device.items():
            notes, tensors, follows = zip(*own, strict=True)
            page = self.ledger.page(device)
            with nullcontext() if correction is None else page.corrected(*correction):
                self.measure(notes, getattr(page, verb), tensors, follows)

    def measure(self, notes: Sequence[Note], verb: Callable[..., None], *data: Any) -> None:
        """Call a method of a page for many sites at once; on an error each of them reports it."""
        begin = perf_counter()
        try:
            verb(notes, *data)
        except Exception as error:
            for note, *own in zip(notes, *data, strict=True):
                note.site.fail(error, own)
        self.state.spend(perf_counter() - begin)

    def send_to_rest(self, tap: OutputTap) -> None:
        """Note that a tap has removed its hook until :meth:`wake`."""
        if not self.resting:
            self._graphs = number_of_graphs()
        self.resting.add(tap)

    def wake(self) -> None:
        """Recording begins again: put the hooks of all taps back."""
        if self.resting and number_of_graphs() != self._graphs:
            torch.compiler.reset()  # graphs that were compiled in the meantime do not contain the taps
            self.ledger.forget_graphs()
        while self.resting:
            self.resting.pop().wake()

    def average(self, share: float) -> None:
        """From now on gradients are averaged over processes, and this process computes this share of the loss."""
        self.averages = True
        for tap in self._outputs.values():
            for site in tap.gradients:
                site.share = share

    def skip_step(self, optimizer: Optimizer) -> None:
        """An optimizer's step is skipped."""
        self.gradients.skip_step(optimizer)
        if id(optimizer) in self._updates:
            self._updates[id(optimizer)].skip_step()

    def collect(self) -> None:
        """Copy what CUDA graphs have measured, before their next run overwrites it."""
        state = self.state
        unit = None if state.loss_scale is None else state.loss_scale.unit()
        self.ledger.collect(state.step, LEAD if state.lead else 0, state.gaps, unit)

    def state_dict(self) -> dict[str, Any]:
        """What the next tensors are compared with, without gradients of outputs, which are too large."""
        sites = {site.key: site.state_dict(with_tensor=site.key[0] != OUTPUT_GRADIENT) for site in self._compared()}
        return {"sites": sites, "joint": self.ledger.joint.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; a layer that is not in it starts from the beginning."""
        for site in self._compared():
            if site.key in state["sites"]:
                site.load_state_dict(state["sites"][site.key], self.device)
        self.ledger.joint.load_state_dict(state["joint"])

    def _compared(self) -> list[Site]:
        return [site for tap in self._taps() for site in tap.sites if site.correlation is not None]

    def _taps(self) -> Iterable[GradientTap | OutputTap | UpdateTap]:
        return self.gradients, *self._outputs.values(), *self._updates.values()

    def refresh(self) -> None:
        """Follow parameters that were replaced, and remove hooks that are no longer needed."""
        self.gradients.refresh()
        for place, updates in list(self._updates.items()):
            updates.refresh()
            if not updates.sites:
                self._leave(place)
        for place, output in list(self._outputs.items()):
            if not output.sites:
                self._outputs.pop(place).close()

    def close(self) -> None:
        """Remove all hooks."""
        for tap in self._taps():
            tap.close()
        for steps in self._steps.values():
            steps.remove()
        self._outputs, self._updates, self._steps = {}, {}, {}
