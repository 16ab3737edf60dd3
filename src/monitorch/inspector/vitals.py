"""What is worth knowing of any run and need not be logged by hand."""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

RATE = "learning rate"


class Vitals:
    """Learning rates of the optimizers, and since the last reading: samples per second, and steps that were skipped.

    Args:
        optimizers: whose learning rates to tell.
        processes: how many train on batches of their own at the same speed.
        model: whose parameters they train: groups of parameters are named after its parts.
        clock: the time in seconds.

    >>> from torch.optim import SGD
    >>> vitals = Vitals([SGD(nn.Linear(1, 1).parameters(), lr=0.1)], clock=iter([0.0, 2.0]).__next__)
    >>> vitals.count(nn.Linear(1, 1).weight)
    >>> vitals.read()
    {'learning rate': 0.1, 'samples per second': 0.5}
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        processes: float = 1,
        model: nn.Module | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._optimizers, self.processes, self._clock = tuple(optimizers), processes, clock
        self._model = None if model is None else weakref.ref(model)
        self._samples, self._since = 0, clock()
        self._skipped: Any = None
        self._known: tuple[int, ...] = ()
        self._names: list[str] = []

    def count(self, batch: Any) -> None:
        """A batch is trained on: the first dimension of a tensor, or what cannot be counted."""
        if isinstance(batch, Tensor) and batch.dim():
            self._samples += batch.shape[0]

    def count_skipped(self, steps: Any) -> None:
        """So many steps were skipped because of an overflow; a tensor is not waited for."""
        self._skipped = steps if self._skipped is None else self._skipped + steps

    def read(self) -> dict[str, Any]:
        """The numbers by name, and begin to count anew."""
        found = self._rates()
        now = self._clock()
        if self._samples and now > self._since:
            found["samples per second"] = self.processes * self._samples / (now - self._since)
        if self._skipped is not None:
            found["skipped steps"], self._skipped = self._skipped, 0
        self._samples, self._since = 0, now
        return found

    def _rates(self) -> dict[str, Any]:
        """The learning rates by name; groups that have none, or something else in its place, are left out."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        sizes = tuple(len(group["params"]) for group in groups)
        if sizes != self._known:  # groups are rarely added, and names cost time
            model = None if self._model is None else self._model()
            named = {} if model is None else {id(parameter): name for name, parameter in model.named_parameters()}
            self._known, self._names = sizes, group_names(groups, named)
        rates = zip(self._names, (group.get("lr") for group in groups), strict=True)
        return {_title(name): rate for name, rate in rates if _is_number(rate)}


def group_names(groups: Sequence[Mapping[str, Any]], named: Mapping[int, str]) -> list[str]:
    """What to call groups of parameters; one alone needs no name.

    A group is called by its own ``name``. The others are told apart by the part of the model they are, else by whether
    their weights decay and whether they are biases and norms only; if nothing tells them apart, they are numbered.

    Args:
        groups: as optimizers have them.
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
    """The module that has all of its parameters, such as ``encoder``; nothing if that is the model itself."""
    paths = [named.get(id(parameter), "").split(".")[:-1] for parameter in group["params"]]
    levels = takewhile(lambda level: len({*level}) == 1, zip(*paths, strict=False))
    return ".".join(level[0] for level in levels)


def _kind(group: Mapping[str, Any]) -> str:
    if group["params"] and all(parameter.dim() < 2 for parameter in group["params"]):
        return "bias and norm"
    return "decay" if group.get("weight_decay") else "no decay"


def _is_number(rate: Any) -> bool:
    """Whether it can be shown; a tensor is not waited for."""
    return rate.numel() == 1 if isinstance(rate, Tensor) else isinstance(rate, Real)
