"""Numbers of the run as a whole: losses, metrics, and logged numbers."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..numerical.accumulator import Accumulator, new_accumulator
from ..numerical.deferred import as_sample
from ..numerical.running_mean_var import RunningMeanVar
from .accumulating import AccumulatingPreprocessor


class Parts(NamedTuple):
    """The values of one number in the current step."""

    samples: list[Any]
    inplace: bool
    add_up: bool
    """Whether to add the values up, instead of averaging them."""

    def whole(self) -> Any:
        """The number of the step; does not wait for the GPU."""
        if len(self.samples) == 1:
            return self.samples[0]
        tensors = [sample for sample in self.samples if isinstance(sample, Tensor)]
        if len(tensors) == len(self.samples) and len({(t.device, t.dtype) for t in tensors}) == 1:
            total = torch.stack(tensors).sum()
        else:
            total = sum(self.samples)
        return total if self.add_up else total / len(self.samples)


class RunNumbers(AccumulatingPreprocessor):
    """Keeps numbers by name.

    A number may belong to an earlier step than the tick that shows it: then it is kept by name and step.

    >>> numbers = RunNumbers()
    >>> numbers.push("accuracy", 0.5)
    >>> numbers.push("accuracy", 0.75, step=20)
    >>> numbers.at(None)["accuracy"].mean, numbers.at(20)["accuracy"].mean
    (0.5, 0.75)
    """

    def __init__(self, inplace: bool = True) -> None:
        super().__init__(inplace)
        self.open_step: Callable[[], int | None] | None = None
        """Returns the current step, if steps have an end; then all values of one step are one sample."""
        self._parts: dict[str, Parts] = {}
        self._parts_of: int | None = None

    @property
    def value(self) -> dict[str, Any]:
        """The accumulators by name, without those of earlier steps."""
        kept = self._settled()
        return kept if all(isinstance(name, str) for name in kept) else self.at(None)

    def at(self, step: int | None) -> dict[str, Accumulator]:
        """The accumulators by name, of an earlier step or, with None, of the tick itself."""
        return self.by_step().get(step, {})

    def by_step(self) -> dict[int | None, dict[str, Accumulator]]:
        """All accumulators, by step (None for the tick itself) and name."""
        found: dict[int | None, dict[str, Accumulator]] = {}
        for key, kept in self._settled().items():
            name, step = (key, None) if isinstance(key, str) else key
            found.setdefault(step, {})[name] = kept
        return found

    @property
    def is_empty(self) -> bool:
        """Whether there is no number since the last tick."""
        return not self._values

    def __contains__(self, name: str) -> bool:
        """Whether a number of that name has come since the last tick."""
        return name in self._values

    def push(self, name: str, value: Any, step: int | None = None) -> None:
        """Add a number; a tensor is copied, without waiting for the GPU."""
        self._add(name if step is None else (name, step), sample_of(value), self.inplace)

    def hold(self, step: int, names: Iterable[str]) -> None:
        """Keep all numbers so far under these names at this step, whenever the next tick comes."""
        self._close_step()
        for name in names:
            for kept in (self._values, self._in_step):
                if name not in kept:
                    continue
                if (name, step) in kept:
                    kept[name, step].merge(kept.pop(name))
                else:
                    kept[name, step] = kept.pop(name)

    @contextmanager
    def showing(self, values: OrderedDict[Any, Any]) -> Iterator[None]:
        """The same; values of the current step wait, too."""
        parts, self._parts = self._parts, {}
        try:
            with super().showing(values):
                yield
        finally:
            self._parts = parts

    def _add_to_step(self, name: str, sample: Any, inplace: bool, *, add_up: bool = False) -> None:
        """Add a number of which a step may have several, from micro-batches; together they are one sample."""
        step = self.open_step() if self.open_step is not None else None
        if step is None:
            self._add(name, sample, inplace, in_step=True)
            return
        if step != self._parts_of:
            self._close_step()
            self._parts_of = step
        if name not in self._parts:
            self._parts[name] = Parts([], inplace, add_up)
        self._parts[name].samples.append(sample)

    def _close_step(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, {}
            for name, part in parts.items():
                self._add(name, part.whole(), part.inplace, in_step=True)

    def _add(self, name: Any, sample: Any, inplace: bool, *, in_step: bool = False) -> None:
        accumulator = self._values.get(name)
        if accumulator is None:
            accumulator = self._values[name] = new_accumulator(inplace)
        accumulator.adopt(sample)
        if in_step:
            self._record_in_step(name, sample)

    def _collect(self) -> None:
        super()._collect()
        self._close_step()

    def _new_value(self, like: Any = None) -> Any:
        return new_accumulator(self.inplace if like is None else isinstance(like, RunningMeanVar))


def sample_of(value: Any) -> Any:
    """A value as a sample that no other code can change: a float, or a tensor that is still on its device."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.is_complex():
        raise TypeError("a sample is one real number, not a complex one")
    return as_sample(value.detach().clone())
