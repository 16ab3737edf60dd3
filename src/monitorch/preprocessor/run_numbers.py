"""Numbers of the run as a whole: losses, metrics, and logged numbers."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engine.rank_numbers import Merged, Payload, Vector
from ..engine.ranks import several_processes
from ..numerical.series import Accumulator, Series
from ..numerical.waiting import Pending, copied_sample
from .accumulating import AccumulatingPreprocessor, Kept

MOST_OPEN = 256
"""How many numbers may wait before those of each step are merged."""

RECENT = 1000
"""How many steps :meth:`RunNumbers.recent` remembers."""


class Part(NamedTuple):
    """A number that a step may have several of, one per micro-batch."""

    step: int
    name: str
    sample: Any
    inplace: bool = True
    add_up: bool = False
    """Whether to add the numbers of a step up, instead of averaging them."""


def _whole(parts: Sequence[Part]) -> Any:
    """The number of a step; does not wait for the GPU."""
    samples = [part.sample for part in parts]
    if len(samples) == 1:
        return samples[0]
    tensors = [sample for sample in samples if isinstance(sample, Tensor)]
    if len(tensors) == len(samples) and len({(t.device, t.dtype) for t in tensors}) == 1:
        total = torch.stack(tensors).sum()
    else:
        total = sum(samples)
    return total if parts[0].add_up else total / len(samples)


def _kind(number: Any) -> Any:
    """What numbers have in common that can be added at once."""
    return (number.dtype, number.device) if isinstance(number, Tensor) else type(number)


def _by_step(parts: Iterable[Part]) -> dict[tuple[int, str], list[Part]]:
    """Those of each step and name."""
    found: dict[tuple[int, str], list[Part]] = {}
    for part in parts:
        found.setdefault((part.step, part.name), []).append(part)
    return found


@dataclass
class RunKept(Kept):
    """With several processes, also the samples that every process has once per step."""

    in_step: Series = field(default_factory=lambda: Series(inplace=False))


class RunNumbers(AccumulatingPreprocessor):
    """Keeps numbers by name.

    A number may belong to an earlier step than the tick that shows it: then it is kept by name and step.

    >>> numbers = RunNumbers()
    >>> numbers.push("accuracy", 0.5)
    >>> numbers.push("accuracy", 0.75, step=20)
    >>> numbers.at(None)["accuracy"].mean, numbers.at(20)["accuracy"].mean
    (0.5, 0.75)
    """

    _kept_type = RunKept

    def __init__(self, inplace: bool = True) -> None:
        self.open_step: Callable[[], int | None] | None = None
        """Returns the current step, if steps have an end; then all values of one step are one sample."""
        self.finished_step: Callable[[], int | None] | None = None
        """During a step, returns the step before it, to which evaluations belong; None between steps."""
        self._parts: list[Part] = []
        self._recent: dict[str, deque[tuple[int, Any]]] = {}
        super().__init__(inplace)

    def _places_of_kept(self) -> dict[Any, int]:
        return {}  # names come and go

    @property
    def _in_step(self) -> Series:
        kept = self._kept
        assert isinstance(kept, RunKept)
        return kept.in_step

    def pending(self, kept: Kept) -> list[Pending]:
        """Also the samples of steps."""
        assert isinstance(kept, RunKept)
        return [*super().pending(kept), *kept.in_step.pending()]

    def finish(self) -> None:
        """Fold what has arrived."""
        super().finish()
        self._in_step.finish()

    @property
    def value(self) -> dict[str, Any]:
        """The accumulators by name, without those of earlier steps."""
        kept = self._kept.series.values()
        return kept if all(isinstance(key, str) for key in kept) else self.at(None)

    def at(self, step: int | None) -> dict[str, Accumulator]:
        """The accumulators by name, of an earlier step or, with None, of the tick itself."""
        return self.by_step().get(step, {})

    def by_step(self) -> dict[int | None, dict[str, Accumulator]]:
        """All accumulators, by step (None for the tick itself) and name."""
        found: dict[int | None, dict[str, Accumulator]] = {}
        for key, kept in self._kept.series.values().items():
            name, step = (key, None) if isinstance(key, str) else key
            found.setdefault(step, {})[name] = kept
        return found

    @property
    def is_empty(self) -> bool:
        """Whether there is no number since the last tick."""
        return not self._kept.series.used_keys()

    def __contains__(self, name: str) -> bool:
        """Whether a number of that name has come since the last tick."""
        return name in self._kept.series.used_keys()

    def push(self, name: str, value: Any, step: int | None = None) -> None:
        """Add a number; a tensor is copied, without waiting for the GPU."""
        self._add(name if step is None else (name, step), copied_sample(value), self.inplace)

    def hold(self, step: int, names: Iterable[str]) -> None:
        """Assign all numbers so far under these names to this step, even if the tick comes later."""
        self._close_steps()
        for name in names:
            for series in (self._kept.series, self._in_step):
                if name in series.places:
                    series.rename(name, (name, step))

    def clear(self) -> None:
        """Also forget the numbers of the last steps."""
        self._recent, self._parts = {}, []
        super().clear()

    def release(self) -> Kept:
        """The same; numbers of the current step so far are included."""
        self._close_steps()
        return super().release()

    def _bring(self, kept: Kept) -> None:
        super()._bring(kept)
        if kept is self._present:
            self._close_steps()

    def _add_to_step(self, name: str, sample: Any, inplace: bool, *, add_up: bool = False) -> None:
        """Add a number of which a step may have several, from micro-batches; together they are one sample."""
        step = self.open_step() if self.open_step is not None else None
        if step is None:
            self._add(name, sample, inplace, in_step=True)
        else:
            self._add_part(Part(step, name, sample, inplace, add_up))

    def _add_evaluation(self, name: str, sample: Any, inplace: bool) -> None:
        """Add a number of an evaluation."""
        step = self.finished_step() if self.finished_step is not None else None
        self._add(name if step is None else (name, step), sample, inplace, in_step=True)

    def _add_part(self, part: Part) -> None:
        if len(self._parts) >= MOST_OPEN and part.step != self._parts[-1].step:
            self._close_steps()
        self._parts.append(part)

    def recent(self, name: str) -> list[tuple[int, Any]]:
        """The last steps that have a number of this name, and these numbers, also those of the current step."""
        closed = self._recent.get(name, ())
        still_open = [(step, _whole(own)) for (step, of), own in _by_step(self._open_parts()).items() if of == name]
        return [*closed, *still_open][-RECENT:]

    def _open_parts(self) -> list[Part]:
        """The numbers of steps that were not put together yet, by step."""
        return self._parts

    def _close_steps(self) -> None:
        """Put the numbers of each step together."""
        parts, self._parts = self._open_parts(), []
        for (step, name), own in _by_step(parts).items():
            self._add_steps(name, [(step, _whole(own))], own[0].inplace)

    def _add_steps(self, name: str, numbers: Sequence[tuple[int, Any]], inplace: bool) -> None:
        """Add the whole numbers of some steps; floats in a row, or tensors of one device, are added at once."""
        for kind, some in groupby(numbers, key=lambda number: _kind(number[1])):
            steps, wholes = zip(*some, strict=True)
            if kind is float or isinstance(wholes[0], Tensor):
                samples = wholes if kind is float else torch.stack(wholes)
                self._kept.series.add_steps(name, samples, steps, inplace)
                if several_processes():
                    self._in_step.add_steps(name, samples, steps)
            else:
                for step, whole in zip(steps, wholes, strict=True):
                    self._add(name, whole, inplace, in_step=True, step=step)
        self._recent.setdefault(name, deque(maxlen=RECENT)).extend(numbers)

    def _add(
        self, key: Hashable, sample: Any, inplace: bool, *, in_step: bool = False, step: int | None = None
    ) -> None:
        self._kept.series.add(key, sample, inplace=inplace, step=step)
        if in_step and several_processes():
            self._in_step.add(key, sample)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no model."""
        return {**super().__getstate__(), "open_step": None, "finished_step": None}

    def state_dict(self) -> dict[str, Any]:
        """Also the samples that every process has once per step."""
        return {**super().state_dict(), "in_step": self._in_step_lists()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._in_step.merge(state["in_step"])

    def _in_step_lists(self) -> dict[Any, list[float]]:
        return {key: list(samples) for key, samples in self._in_step.values().items()}

    def payload(self) -> Payload:
        """All accumulators; where every process has one number per step, the samples, to be averaged over processes."""
        found = super().payload()
        for key, samples in self._in_step_lists().items():
            row = found.moments.get((key, 0))
            kept = len(found.lists.get((key, 0), ())) if row is None else row.finite + row.nonfinite
            if kept == len(samples):  # otherwise others were added under the same name
                found.vectors[key, row is not None] = Vector(np.array(samples), averages=True)
                found.moments.pop((key, 0), None)
                found.lists.pop((key, 0), None)
        return found

    def merge_ranks(self, merged: Merged) -> None:
        """Take the accumulators of all ranks, and for each step the mean of those that have a number."""
        super().merge_ranks(merged)
        for (key, inplace), means in merged.vectors.items():
            self._kept.series.place(key, inplace)
            self._merge({key: means.tolist()})


class ExplicitCall(RunNumbers):
    """Keeps pushed numbers by name; the first push of a name decides whether every value or only moments are kept.

    >>> call = ExplicitCall("train_loss", "val_loss")
    >>> call.push_loss(0.5, train=True)
    >>> call.push_memory("accuracy", 0.9)
    >>> call.value["train_loss"].mean, call.value["accuracy"]
    (0.5, [0.9])
    """

    def __init__(self, train_loss_str: str, non_train_loss_str: str) -> None:
        super().__init__()
        self.train_loss_str, self.non_train_loss_str = train_loss_str, non_train_loss_str

    @property
    def state(self) -> dict[str, Any]:
        """The accumulators by name; the same as ``value``."""
        return self.value

    def push_running(self, name: str, value: Any) -> None:
        """Add a number; only running moments are kept."""
        self._add(name, copied_sample(value), inplace=True)

    def push_memory(self, name: str, value: Any) -> None:
        """Add a number; every value is kept."""
        self._add(name, copied_sample(value), inplace=False)

    def push_loss(self, value: Any, *, train: bool, running: bool = True) -> None:
        """Add a training or validation loss; where steps are known, the mean training loss of a step is one sample."""
        if train:
            self._add_to_step(self.train_loss_str, copied_sample(value), running)
        else:
            self._add_evaluation(self.non_train_loss_str, copied_sample(value), running)
