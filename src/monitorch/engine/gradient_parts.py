"""What single backward passes add to gradients, compared with the gradient that an optimizer uses in the end."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..numerical.norms import as_real
from ..numerical.precision import in_full, wide_dtype
from .optimizers import group_numbers
from .parameters import ParameterRef
from .reports import tell
from .step_interval import StepInterval
from .torch_private import graph_task, norm_all, without_modes_of_others

if TYPE_CHECKING:
    from .engine import Engine


class PartsOfStep(NamedTuple):
    """Squared norms of the gradients of parts of a step, all parameters together; both are tensors on their device."""

    parts: int
    """Micro-batches of all processes."""
    mean_square: Tensor
    """The mean over the parts of this process; NaN if gradients were there before the first part."""
    square_of_mean: Tensor
    """The squared norm of the mean gradient over all parts of all processes."""


class GradientParts:
    """Collects the norm of what each backward pass adds, between two steps of an optimizer.

    A part is what a backward pass adds: a micro-batch and, where gradients are averaged over processes while backward
    runs, that of each process. The addition is seen before it is accumulated and averaged, and the sum is read at the
    end of backward, before clipping. So nothing is copied, and a loss scale cancels out.

    Args:
        receive: called after each observed step that has at least two parts.
    """

    def __init__(self, engine: "Engine", optimizer: Optimizer, receive: Callable[[PartsOfStep], None]) -> None:
        self.state, self._engine, self._optimizer, self._receive = engine.state, engine, optimizer, receive
        self._interval = StepInterval(engine, optimizer, self._end_step)
        self._watched: OrderedDict[int, ParameterRef] = OrderedDict()
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[int, dict[int, Tensor | None]] = {}
        """The norm of what was added to each parameter, by the number of the training pass; None while it is not known.

        What is added first is the whole gradient at the end of its backward pass, unless processes average it: then
        one pass measures those of all parameters. If there was something before, the step is left out in the end.
        """
        self._growing: dict[int, list[Tensor]] = {}
        """The parameters of each backward pass that has not ended."""
        self._ends: dict[int, tuple[int, int]] = {}
        """Id and version of the gradient of each parameter at the end of the last backward pass."""
        self._sums: dict[int, Tensor] = {}
        """The norm of that gradient."""
        self._leftovers: dict[int, Tensor] = {}
        """The norm of each gradient that was there before the first part."""
        self._is_spoiled = False
        """Whether a part is incomplete, or a partial sum was modified."""

    def watch(self, module: nn.Module, parameter: str) -> list[RemovableHandle]:
        """Gather from a parameter, until both handles are removed."""
        handle = RemovableHandle(self._watched)
        self._watched[handle.id] = ParameterRef(module, parameter)
        return [handle, self._engine.gradients.listen(module, parameter, self._take)]

    def remove(self) -> None:
        """Gather nothing any more."""
        self._interval.remove()
        self._watched = OrderedDict()
        self._forget()

    def _take(self, parameter: Tensor, gradient: Tensor) -> None:
        number, before, task = id(parameter), parameter.grad, graph_task()
        if task not in self._growing:
            self._growing[task] = []
            self._measure_leftovers()
            self._engine.gradients.after_all_callbacks(partial(self._end_backward, task))
        self._growing[task].append(parameter)
        if before is None:  # what was added before was dropped
            self._parts.pop(number, None)
            self._leftovers.pop(number, None)
        elif number in self._parts:
            # if it is not known, the pass that added before still runs, or has failed
            self._is_spoiled |= self._ends.get(number) != (id(before), before._version)
        parts = self._parts.setdefault(number, {})
        self._is_spoiled |= self.state.passes in parts
        parts[self.state.passes] = _norms([gradient])[0] if parts or self.state.averages else None

    def _measure_leftovers(self) -> None:
        """A backward pass begins to add: look at gradients that were there before the first part."""
        old = [own for own in self._parameters() if id(own) not in self._parts and own.grad is not None]
        if old:
            norms = _norms([own.grad for own in old if own.grad is not None])
            self._leftovers.update(zip(map(id, old), norms, strict=True))

    def _parameters(self) -> list[Tensor]:
        return [own for watched in self._watched.values() if (own := watched.find()) is not None]

    def _end_backward(self, task: int) -> None:
        try:
            begin = self.state.clock.enter()
            try:
                grown = self._growing.pop(task, [])
                if self.state.averages:  # other processes may have added to parameters that this process did not use
                    grown = self._parameters()
                gradients = {id(own): own.grad for own in grown if own.grad is not None}  # a step may have dropped some
                if gradients:
                    with without_modes_of_others():
                        self._sums.update(zip(gradients, _norms(list(gradients.values())), strict=True))
                    self._ends.update((number, (id(own), own._version)) for number, own in gradients.items())
                for number in gradients:
                    parts = self._parts.get(number, {})
                    parts |= {place: self._sums[number] for place, norm in parts.items() if norm is None}
            finally:
                self.state.clock.leave(begin)
        except Exception as error:
            tell(self.state, "measuring the noise of gradients", error)

    def _end_step(self, observed: bool) -> None:
        own = group_numbers(self._optimizer)
        parts = {number: norms for number, norms in self._parts.items() if number in own}
        sums = {number: norm for number, norm in self._sums.items() if number in own}
        leftovers = [norm for number, norm in self._leftovers.items() if number in parts]
        norms = [norm for added in parts.values() for norm in added.values()]
        known = [norm for norm in norms if norm is not None]
        is_known = parts.keys() <= sums.keys() and len(known) == len(norms)
        is_wanted = observed and self._interval.is_whole and not self._is_spoiled and is_known
        self._forget()
        ranks = round(1 / self.state.loss_share) if self.state.averages else 1
        micro_batches = len({place for added in parts.values() for place in added})
        if not is_wanted or micro_batches * ranks < 2:
            return
        mean_square = _sum_of_squares(known) / micro_batches
        of_mean = _sum_of_squares([*sums.values()]).to(mean_square.device) / micro_batches**2
        if leftovers:
            is_clean = _sum_of_squares(leftovers).to(mean_square.device) == 0
            mean_square = mean_square.where(is_clean, torch.nan)
        self._receive(PartsOfStep(micro_batches * ranks, mean_square, of_mean))


@torch.no_grad()
def _norms(gradients: list[Tensor]) -> Sequence[Tensor]:
    """The norms; summed in single precision where gradients are, since double precision is slow on a CPU."""
    real = [as_real(gradient) for gradient in gradients]
    return norm_all(list(map(in_full, real)))


def _sum_of_squares(norms: list[Tensor]) -> Tensor:
    device, wide = norms[0].device, wide_dtype(norms[0])
    alike = defaultdict[Any, list[Tensor]](list)
    for norm in norms:
        alike[norm.device, norm.dtype].append(norm)
    sums = [torch.stack(own).to(device, wide).square().sum() for own in alike.values()]
    return torch.stack(sums).sum()
