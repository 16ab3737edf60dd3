"""Facts about parameters at the steps of their optimizers, which no norm tells."""

import math
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..numerical.checksum import as_float, checksums
from ..numerical.norms import as_dense
from ..numerical.precision import wide_dtype
from ..numerical.waiting import copied_sample
from .distributed_tensors import is_distributed, local_part
from .optimizers import Owned, group_numbers
from .parameters import find_parameter
from .step_interval import StepInterval

if TYPE_CHECKING:
    from .engine import Engine

Number: TypeAlias = float | Tensor
"""A number, which may be on a device; NaN if it is not known."""

IN_NONE = -1.0
"""The number of the optimizer, and of the group, of a parameter that is in none."""


class Facts(NamedTuple):
    """What is known of a parameter after a step of its optimizer."""

    was_empty: Number
    """1 if its gradient was empty when some backward pass since the step before added to it, else 0."""
    changed: Number
    """1 if a bit of it has changed since the observed step before, else 0."""
    checksum: Number
    """The checksum of its bits."""
    rate: Number
    """The learning rate of this step."""
    group: float
    """The number of its group in the optimizer."""
    optimizer: float
    """The number of the optimizer."""


Receive: TypeAlias = Callable[[Facts], None]


class _Watched:
    """One parameter, looked up by name at each step."""

    def __init__(self, module: nn.Module, name: str, receive: Receive) -> None:
        self._module, self._name, self.receive = weakref.ref(module), name, receive
        self._empties: list[Number] = []
        """Whether its gradient was empty, at each time when backward has added to it since the last step."""
        self._grown = 0
        """The id of the parameter then."""
        self.checksum: Tensor | None = None
        """That of the last observed step."""

    def find(self) -> Tensor | None:
        """The parameter as it is now."""
        module = self._module()
        return None if module is None else find_parameter(module, self._name)

    def grows(self, parameter: Tensor, _: Tensor) -> None:
        """Backward is about to add to its gradient."""
        self._grown = id(parameter)
        if 1.0 not in [found for found in self._empties if isinstance(found, float)]:  # else it is known already
            self._empties.append(_is_empty(parameter.grad))

    def was_empty(self, parameter: Tensor) -> Number:
        """Whether the gradient of this parameter was empty at some time since the last step, and begin again."""
        empties, self._empties = self._empties, []
        # fully_shard puts another parameter into the place of its own while a pass runs, which has no gradient at first
        return _largest(empties) if self._grown == id(parameter) else math.nan


class FactsTap:
    """Looks at each parameter after the steps of its optimizer; at one in no optimizer after those of the first."""

    def __init__(self, engine: "Engine", optimizers: Sequence[Optimizer]) -> None:
        self._engine, self._optimizers = engine, tuple(optimizers)
        self._watched: OrderedDict[int, _Watched] = OrderedDict()
        self._intervals = [
            StepInterval(engine, optimizer, partial(self._end_step, number))
            for number, optimizer in enumerate(self._optimizers)
        ]

    def watch(self, module: nn.Module, parameter: str, receive: Receive) -> list[RemovableHandle]:
        """Tell the facts about a parameter, until both handles are removed."""
        watched, handle = _Watched(module, parameter, receive), RemovableHandle(self._watched)
        self._watched[handle.id] = watched
        return [handle, self._engine.gradients.listen(module, parameter, watched.grows)]

    def remove(self) -> None:
        """Look at nothing any more."""
        for interval in self._intervals:
            interval.remove()
        self._watched = OrderedDict()

    @torch.no_grad()
    def _end_step(self, number: int, observed: bool) -> None:
        optimizer, groups = self._optimizers[number], group_numbers(self._optimizers[number])
        everybody = Owned(*self._optimizers)
        own = [
            (watched, tensor)
            for watched in self._watched.values()
            if (tensor := watched.find()) is not None
            and (id(tensor) in groups or (not number and tensor not in everybody))
        ]
        empties = [watched.was_empty(tensor) for watched, tensor in own]
        if not observed:
            return
        if not self._intervals[number].is_whole:
            empties = [math.nan] * len(own)
        works = self._engine.step_scales.of(optimizer).works
        rates = [_rate(group) for group in optimizer.param_groups]
        bits = self._checksums(own, works)
        for (watched, tensor), empty, (changed, checksum) in zip(own, empties, bits, strict=True):
            group = groups.get(id(tensor))
            place = (math.nan, IN_NONE, IN_NONE) if group is None else (rates[group], float(group), float(number))
            watched.receive(Facts(empty, changed, checksum, *place))

    def _checksums(
        self, own: Sequence[tuple[_Watched, Tensor]], works: Tensor | None
    ) -> Iterable[tuple[Number, Number]]:
        """Whether each parameter has changed, and its checksum."""
        found: list[tuple[Number, Number]] = [(math.nan, math.nan)] * len(own)
        by_device = defaultdict[torch.device, list[int]](list)
        local = [as_dense(local_part(tensor)[0]) for _, tensor in own]
        for place, tensor in enumerate(local):
            if tensor.numel() and not tensor.is_meta:
                by_device[tensor.device].append(place)
        for places in by_device.values():
            sums = checksums([local[place] for place in places])
            shown, wide = as_float(sums).unbind(), wide_dtype(sums)
            known = [own[place][0].checksum for place in places]
            before = torch.stack([now if last is None else last for now, last in zip(sums, known, strict=True)])
            changed = (sums != before).to(wide)
            if works is not None:  # a step that the optimizer has skipped says nothing
                changed = changed.where(works.to(changed.device) != 0, torch.nan)
            for place, now, last, moved, number in zip(places, sums, known, changed.unbind(), shown, strict=True):
                own[place][0].checksum = now
                is_part = is_distributed(own[place][1])  # its sum is of no use to others
                found[place] = math.nan if last is None else moved, math.nan if is_part else number
        return found


def _is_empty(gradient: Tensor | None) -> Number:
    """1 if there is no gradient, or only zeros: adding to them is the same. Of sparse and sharded ones nobody looks."""
    if gradient is None:
        return 1.0
    if gradient.layout is not torch.strided or is_distributed(gradient):
        return math.nan
    return 1 - gradient.detach().any().to(wide_dtype(gradient))


def _largest(numbers: Sequence[Number]) -> Number:
    """1 if one of them is 1; NaN if there is none."""
    if 1.0 in [number for number in numbers if isinstance(number, float)]:
        return 1.0
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    return torch.stack(tensors).amax() if tensors else numbers[0] if numbers else math.nan


def _rate(group: dict[str, object]) -> Number:
    rate = group.get("lr")
    if isinstance(rate, Tensor):
        return copied_sample(rate) if rate.numel() == 1 else math.nan
    return float(rate) if isinstance(rate, (int, float)) else math.nan
