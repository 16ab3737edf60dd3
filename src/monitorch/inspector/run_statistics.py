"""Numbers that are useful in any run and logged automatically: learning rates, speed, memory, skipped steps."""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .flop_count import FlopCount
from .module_tree import named_parameters

RATE, UTILISATION = "learning rate", "model FLOP/s utilisation"
GIB = 2**30


class RunStatistics:
    """Learning rates of the optimizers; samples and steps per second, and skipped steps, since the last reading.

    On CUDA also the peak memory of this process, in GiB. If the device's peak FLOP/s is known, also the share that the
    model uses, assuming all steps cost the same as an early one.

    Args:
        optimizers: whose learning rates to read.
        processes: how many processes train on their own batches at the same speed.
        model: whose parameters they train: parameter groups are named after its submodules.
        clock: returns the time in seconds.
        flops: knows how many operations a step takes.

    >>> from torch.optim import SGD
    >>> run_statistics = RunStatistics([SGD(nn.Linear(1, 1).parameters(), lr=0.1)], clock=iter([0.0, 2.0]).__next__)
    >>> run_statistics.count(nn.Linear(1, 1).weight)
    >>> run_statistics.read()
    {'learning rate': 0.1, 'samples per second': 0.5}
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        processes: float = 1,
        model: nn.Module | None = None,
        clock: Callable[[], float] = time.perf_counter,
        flops: FlopCount | None = None,
    ) -> None:
        self._flops = flops
        self._optimizers, self.processes, self._clock = tuple(optimizers), processes, clock
        self._model = None if model is None else weakref.ref(model)
        self.begin_at(0)
        self._skipped: Any = None
        self._known: tuple[int, ...] = ()
        self._names: list[str] = []
        self._ended: tuple[int, list[Any]] = -1, []

    def count(self, batch: Any) -> None:
        """Count a training batch: its size is the first dimension of a tensor; other objects are not counted."""
        if isinstance(batch, Tensor) and batch.dim():
            self.samples += batch.shape[0]

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Do something inside a ``with`` block that is no part of training: its time does not count."""
        if self._flops is not None:
            self._flops.spoil()
        begin = self._clock()
        try:
            yield
        finally:
            self._since += self._clock() - begin

    def count_skipped(self, steps: Any) -> None:
        """Count steps that were skipped because of an overflow; does not wait for the GPU."""
        self._skipped = steps if self._skipped is None else self._skipped + steps

    def begin_at(self, step: int) -> None:
        """Start counting here; this many steps were done before."""
        self._begin(step, self._clock())

    def end_step(self, step: int) -> None:
        """Keep the learning rates of this step: a scheduler may change them before they are read."""
        rates = [group.get("lr") for group in self._groups()]
        self._ended = step, [rate.detach().clone() if isinstance(rate, Tensor) else rate for rate in rates]

    def read(self, step: int = 0) -> dict[str, Any]:
        """The numbers by name, after this many steps; counting starts again."""
        found = self._rates(step)
        now = self._clock()
        steps, seconds = step - self._step, now - self._since
        if self.samples and seconds > 0:
            found["samples per second"] = self.processes * self.samples / seconds
        if steps > 0 and seconds > 0:
            found["steps per second"] = steps / seconds
            used = None if self._flops is None else self._flops.utilisation(steps / seconds)
            found |= {} if used is None else {UTILISATION: used}
        if (device := self._device()) is not None and device.type == "cuda":
            found["peak memory (GiB)"] = torch.cuda.max_memory_allocated(device) / GIB
        if self._skipped is not None:
            found["skipped steps"], self._skipped = self._skipped, 0
        self._begin(step, now)
        return found

    def _begin(self, step: int, now: float) -> None:
        self.samples, self._step, self._since = 0, step, now

    def _device(self) -> torch.device | None:
        model = None if self._model is None else self._model()
        first = None if model is None else next(model.parameters(), None)
        return None if first is None else first.device

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _rates(self, step: int) -> dict[str, Any]:
        """The learning rates by name; groups without a usable one are left out."""
        groups = self._groups()
        sizes = tuple(len(group["params"]) for group in groups)
        if sizes != self._known:  # cached: groups are rarely added, and names cost time
            model = None if self._model is None else self._model()
            named = {} if model is None else {id(parameter): name for name, parameter in named_parameters(model)}
            self._known, self._names = sizes, group_names(groups, named)
        ended, of_step = self._ended
        rates = of_step if ended == step else [group.get("lr") for group in groups]
        known = zip(self._names, rates, strict=False)  # groups added after the step took no part in it
        return {_title(name): rate for name, rate in known if _is_number(rate)}


def group_names(groups: Sequence[Mapping[str, Any]], named: Mapping[int, str]) -> list[str]:
    """Names for parameter groups; a single group needs none.

    A group with a ``name`` keeps it. Others are named after the submodule that they belong to, else by whether their
    weights decay and whether they hold only biases and norms. If such names are not unique, groups are numbered.

    Args:
        groups: the ``param_groups`` of optimizers.
        named: the names of parameters by their ids.
    """
    if len(groups) == 1:
        return [_given(groups[0])]
    rules: tuple[Callable[[Mapping[str, Any]], str], ...] = (lambda group: _part(group, named), _kind)
    names = [_given(group) for group in groups]
    unnamed = [place for place, name in enumerate(names) if not name or names.count(name) > 1]
    taken = Counter(names)
    found = ([rule(groups[place]) for place in unnamed] for rule in rules)
    telling = (some for some in found if all(some) and len({*some}) == len(some) and not any(map(taken.get, some)))
    for place, name in zip(unnamed, next(telling, map(str, unnamed)), strict=True):
        names[place] = name
    return names


def _title(name: str) -> str:
    return f"{RATE} {name}" if name.isdigit() else f"{RATE} ({name})" if name else RATE


def _given(group: Mapping[str, Any]) -> str:
    name = group.get("name")
    return name if isinstance(name, str) else ""


def _part(group: Mapping[str, Any], named: Mapping[int, str]) -> str:
    """The submodule that has all parameters of a group, such as ``encoder``; "" if that is the model itself."""
    paths = [named.get(id(parameter), "").split(".")[:-1] for parameter in group["params"]]
    levels = takewhile(lambda level: len({*level}) == 1, zip(*paths, strict=False))
    return ".".join(level[0] for level in levels)


def _kind(group: Mapping[str, Any]) -> str:
    if group["params"] and all(parameter.dim() < 2 for parameter in group["params"]):
        return "bias and norm"
    return "decay" if group.get("weight_decay") else "no decay"


def _is_number(rate: Any) -> bool:
    """Whether it can be shown; does not wait for the GPU."""
    return rate.numel() == 1 if isinstance(rate, Tensor) else isinstance(rate, Real)
