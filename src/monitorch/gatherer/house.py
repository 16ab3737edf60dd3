"""All taps of one inspector: where lenses find the hook they share."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..numerical.ledger import Ledger
from ..numerical.notes import LEAD, Note
from .compilation import number_of_graphs
from .gradient_tap import GradientTap
from .output_tap import OutputTap
from .parameter_tap import ParameterTap
from .update_tap import UpdateTap


class House:
    """One output tap per module, one tap for gradients, one per optimizer for updates, and the ledger they fill.

    Args:
        state: says whether to record, and in which step.
        device: where the model is.
        may_wait: whether gradients of one backward pass may be measured together at its end.
    """

    def __init__(self, state: Any, device: torch.device, *, may_wait: bool = True) -> None:
        self.state, self.device, self.may_wait = state, device, may_wait
        self.ledger = Ledger()
        self.ledger.page(device)  # before a compiled model runs with memory of its own
        self.gradients = GradientTap(self)
        self.parameters = ParameterTap(self)
        self._outputs: dict[int, Any] = {}
        self._updates: dict[int, Any] = {}
        self.resting: set[OutputTap] = set()
        self._graphs = 0

    @classmethod
    def of(cls, model: nn.Module, state: Any) -> "House":
        """The house for a model; one without tensors is taken to be on the CPU."""
        tensor = next(chain(model.parameters(), model.buffers()), None)
        # averaging over processes goes on in the background while backward ends: nothing may read gradients then
        return cls(state, torch.device("cpu") if tensor is None else tensor.device, may_wait=state.loss_share == 1)

    @property
    def is_blind(self) -> bool:
        """Whether outputs are watched but nothing of any was ever seen."""
        sites = [site for tap in self._outputs.values() for site in tap.outputs]
        return bool(sites) and not any(site.seen for site in sites)

    def output(self, module: nn.Module, name: str) -> OutputTap:
        """The tap on a module's output."""
        if id(module) not in self._outputs:
            self._outputs[id(module)] = OutputTap(self, module, name)
        tap: OutputTap = self._outputs[id(module)]
        return tap

    def updates(self, optimizer: Optimizer) -> UpdateTap:
        """The tap on an optimizer's steps."""
        if id(optimizer) not in self._updates:
            self._updates[id(optimizer)] = UpdateTap(self, optimizer)
        tap: UpdateTap = self._updates[id(optimizer)]
        return tap

    @property
    def compares(self) -> bool:
        """Whether anybody compares tensors of consecutive steps."""
        taps = (self.gradients, *self._outputs.values(), *self._updates.values())
        return any(site.correlation is not None for tap in taps for site in tap.sites)

    def measure_together(self, verb: str, entries: Iterable[tuple[Note, Tensor, bool]]) -> None:
        """Have many tensors measured by the page of their device: what for, the tensor, whether it follows another."""
        by_device: dict[torch.device, list[tuple[Note, Tensor, bool]]] = defaultdict(list)
        for entry in entries:
            by_device[entry[1].device].append(entry)
        for device, own in by_device.items():
            notes, tensors, follows = zip(*own, strict=True)
            self.measure(notes, getattr(self.ledger.page(device), verb), tensors, follows)

    def measure(self, notes: Sequence[Note], verb: Callable[..., None], *data: Any) -> None:
        """Call a page's verb for many sites at once; what goes wrong is told by each of them."""
        begin = perf_counter()
        try:
            verb(notes, *data)
        except Exception as error:
            for note in notes:
                note.site.fail(error, data)
        self.state.spend(perf_counter() - begin)

    def send_to_rest(self, tap: OutputTap) -> None:
        """A tap has left its module until :meth:`wake`."""
        if not self.resting:
            self._graphs = number_of_graphs()
        self.resting.add(tap)

    def wake(self) -> None:
        """Something is wanted again: all taps go back to their modules."""
        if self.resting and number_of_graphs() != self._graphs:
            torch.compiler.reset()  # what was compiled in the meantime knows nothing of the taps
        while self.resting:
            self.resting.pop().wake()

    def end_step(self) -> None:
        """A step ends here: take over what CUDA graphs have measured in it."""
        state = self.state
        self.ledger.collect(state.step, LEAD if state.lead else 0, state.gaps)

    def refresh(self) -> None:
        """Follow parameters to where they are now, and remove hooks that nobody needs any more."""
        self.gradients.refresh()
        for taps in (self._outputs, self._updates):
            for place, tap in list(taps.items()):
                if not tap.sites:
                    taps.pop(place).close()

    def close(self) -> None:
        """Remove all hooks."""
        for tap in (*self._outputs.values(), *self._updates.values(), self.gradients):
            tap.close()
        self._outputs, self._updates = {}, {}
