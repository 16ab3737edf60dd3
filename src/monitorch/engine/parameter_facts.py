"""Facts about parameters at optimizer steps that no norm shows."""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

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
from .parameters import ParameterRef
from .step_interval import StepInterval

if TYPE_CHECKING:
    from .engine import Engine

Number: TypeAlias = float | Tensor
"""A number, which may be on a device; NaN if it is not known."""

IN_NONE = -1.0
"""Stands for "no optimizer" and "no group"."""


class Facts(NamedTuple):
    """What is known about a parameter after a step of its optimizer."""

    was_empty: Number
    """1 if its gradient was empty when a backward pass since the previous step added to it, else 0."""
    changed: Number
    """1 if any bit of it changed since the previous observed step, else 0."""
    checksum: Number
    """The checksum of its bits."""
    rate: Number
    """The learning rate of this step."""
    group: float
    """The number of its group in the optimizer."""
    optimizer: float
    """The number of the optimizer."""


Column: TypeAlias = Tensor | Sequence[float]
"""One fact of several parameters."""


class FactReceiver(Protocol):
    """Gets the facts about many parameters at once."""

    def process_fact(self, fact: str, names: Sequence[str], numbers: Column) -> None:
        """Take one of the fields of :class:`Facts` for these parameters; what is not known is NaN, or left out."""


class FactListener(Protocol):
    """Listens to the facts about one parameter."""

    name: str
    """The name under which they are passed on."""
    receiver: FactReceiver


class _Watched(ParameterRef):
    """One parameter."""

    def __init__(self, module: nn.Module, name: str, listener: FactListener, grown: "set[_Watched]") -> None:
        super().__init__(module, name)
        self.listener, self._all_grown = listener, grown
        self._empties: list[Number] = []
        """Whether its gradient was empty each time backward added to it since the last step."""
        self._grown = 0
        """The id of the parameter at that time."""

    def grows(self, parameter: Tensor, _: Tensor) -> None:
        """Backward is about to add to its gradient."""
        self._grown = id(parameter)
        self._all_grown.add(self)
        if 1.0 not in [found for found in self._empties if isinstance(found, float)]:  # else it is known already
            self._empties.append(_is_empty(parameter.grad))

    def was_empty(self, parameter: Tensor) -> Number:
        """Whether the gradient of this parameter was empty at some time since the last step, and begin again."""
        empties, self._empties = self._empties, []
        self._all_grown.discard(self)
        # fully_shard puts another parameter into the place of its own while a pass runs, which has no gradient at first
        return _largest(empties) if self._grown == id(parameter) else math.nan


class FactsTap:
    """Looks at each parameter after the steps of its optimizer, or of the first optimizer if it is in none."""

    def __init__(self, engine: "Engine", optimizers: Sequence[Optimizer]) -> None:
        self._engine, self._optimizers = engine, tuple(optimizers)
        self._watched: OrderedDict[int, _Watched] = OrderedDict()
        self._grown: set[_Watched] = set()
        """Those whose gradients backward has added to since the last step of their optimizer."""
        self._sums: dict[tuple[int, torch.device], _Sums] = {}
        """The checksums of the last observed step, by optimizer number and device."""
        self._intervals = [
            StepInterval(engine, optimizer, partial(self._end_step, number))
            for number, optimizer in enumerate(self._optimizers)
        ]

    def watch(self, module: nn.Module, parameter: str, listener: FactListener) -> list[RemovableHandle]:
        """Tell the facts about a parameter, until both handles are removed."""
        watched, handle = _Watched(module, parameter, listener, self._grown), RemovableHandle(self._watched)
        self._watched[handle.id] = watched
        return [handle, self._engine.gradients.listen(module, parameter, watched.grows)]

    def remove(self) -> None:
        """Look at nothing any more."""
        for interval in self._intervals:
            interval.remove()
        self._watched, self._sums = OrderedDict(), {}
        self._grown.clear()

    @torch.no_grad()
    def _end_step(self, number: int, observed: bool) -> None:
        if not observed and not self._grown:
            return  # nearly always
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
        listeners = [watched.listener for watched, _ in own]
        places = [groups.get(id(tensor)) for _, tensor in own]
        rates = [_rate(group) for group in optimizer.param_groups]
        if not self._intervals[number].is_whole:
            empties = [math.nan] * len(own)
        _tell("was_empty", listeners, empties)
        _tell("rate", listeners, [math.nan if place is None else rates[place] for place in places])
        _tell("group", listeners, [IN_NONE if place is None else float(place) for place in places])
        _tell("optimizer", listeners, [IN_NONE if place is None else float(number) for place in places])
        self._tell_checksums(number, own, self._engine.step_scales.of(optimizer).works)

    def _tell_checksums(self, number: int, own: Sequence[tuple[_Watched, Tensor]], works: Tensor | None) -> None:
        """Tell whether each parameter has changed, and its checksum."""
        by_device = defaultdict[torch.device, list[tuple[_Watched, Tensor, bool]]](list)
        for watched, tensor in own:
            local = as_dense(local_part(tensor)[0])
            if local.numel() and not local.is_meta:
                by_device[local.device].append((watched, local, not is_distributed(tensor)))
        for device, found in by_device.items():
            sums = checksums([local for _, local, _ in found])
            listeners = [watched.listener for watched, _, _ in found]
            are_whole = [is_whole for _, _, is_whole in found]  # the checksum of a part is of no use
            _tell("checksum", listeners, as_float(sums), are_whole)
            last = self._last_sums((number, device), [watched for watched, _, _ in found], sums)
            changed = (sums != last.sums).to(wide_dtype(sums))
            if works is not None:  # a step that the optimizer has skipped says nothing
                changed = changed.where(works.to(changed.device) != 0, torch.nan)
            _tell("changed", listeners, changed, last.are_known)

    def _last_sums(self, place: tuple[int, torch.device], watched: list[_Watched], sums: Tensor) -> "_Sums":
        """The checksums of the last observed step, in the same order; from now on these are the last ones."""
        last, self._sums[place] = self._sums.get(place), _Sums(watched, sums, [True] * len(watched))
        if last is None or last.watched == watched:  # nearly always
            return last or _Sums(watched, sums, [False] * len(watched))
        known = dict(zip(map(id, last.watched), last.sums.unbind(), strict=True))
        each = [known.get(id(own), now) for own, now in zip(watched, sums.unbind(), strict=True)]
        return _Sums(watched, torch.stack(each), [id(own) in known for own in watched])


class _Sums(NamedTuple):
    """The checksums of parameters, and which of them are known."""

    watched: list[_Watched]
    sums: Tensor
    are_known: list[bool]


def _tell(
    fact: str, listeners: Sequence[FactListener], numbers: Column | Sequence[Number], are_known: Sequence[bool] = ()
) -> None:
    """Pass one fact about several parameters on, in one call per receiver; unknown ones are left out."""
    if not listeners:
        return
    is_column = isinstance(numbers, Tensor) or all(isinstance(number, float) for number in numbers)
    if is_column and all(are_known) and len({id(one.receiver) for one in listeners}) == 1:  # nearly always
        listeners[0].receiver.process_fact(fact, [one.name for one in listeners], numbers)  # type: ignore[arg-type]
        return
    each = numbers.unbind() if isinstance(numbers, Tensor) else numbers
    told: dict[tuple[int, torch.device | None], list[tuple[FactListener, Number]]] = defaultdict(list)
    for listener, number, is_known in zip(listeners, each, are_known or [True] * len(each), strict=True):
        if is_known:
            device = number.device if isinstance(number, Tensor) else None
            told[id(listener.receiver), device].append((listener, number))
    for (_, device), own in told.items():
        alike: Any = [number for _, number in own]
        column = alike if device is None else torch.stack(alike)
        own[0][0].receiver.process_fact(fact, [listener.name for listener, _ in own], column)


def _is_empty(gradient: Tensor | None) -> Number:
    """1 if there is no gradient or it is all zeros, which is the same; sparse and sharded ones are not checked."""
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
