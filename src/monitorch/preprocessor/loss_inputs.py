"""What enters a loss: the output of the model, and the target; of classes, how often each one comes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..engine.inputs import OUTPUT, TARGET
from ..errors import SkippedSample
from ..numerical.precision import HOST, wide_dtype
from ..numerical.waiting import HostCopy, Pending
from .accumulating import Kept, SeparateStatistics
from .data import MEAN, NONFINITE, RANGE, STD, Described, described, extremes

ROW_SUM, PERPLEXITY, IGNORED = "row sum", "perplexity", "ignored"

MOST_CLASSES = 4096
"""The most classes that are counted."""

Counts: TypeAlias = NDArray[np.float64]
"""How often each class came."""

Lines: TypeAlias = dict[str, dict[str, float]]
"""Numbers by name, then by line."""


@dataclass
class ClassesKept(Kept):
    """Also how often each class came since the last tick."""

    waiting: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """Counts that are still on a device, by name and number of classes."""
    arrived: dict[str, Counts] = field(default_factory=dict)

    def add(self, name: str, counts: Tensor) -> None:
        """Add the counts of one pass."""
        key = name, len(counts)
        self.waiting[key] = self.waiting[key] + counts if key in self.waiting else counts

    def merge(self, name: str, counts: Counts) -> None:
        """Add counts that are on the CPU."""
        known = self.arrived.get(name, np.zeros(0))
        size = max(len(known), len(counts))
        self.arrived[name] = np.pad(known, (0, size - len(known))) + np.pad(counts, (0, size - len(counts)))

    def take(self) -> list[Pending]:
        """What to copy to the CPU."""
        waiting, self.waiting = self.waiting, {}
        return [(partial(self.merge, name), counts) for (name, _), counts in waiting.items()]


class LossInputs(SeparateStatistics):
    """Numbers of the output of the model and of the target, as a loss gets them.

    Targets are classes if they are integers and the output has one dimension more: that of classes. They are counted,
    and so are predicted classes, those with the largest output.

    Args:
        most_shown: the most classes that get a line of their own in :meth:`shares`.

    >>> inputs = LossInputs()
    >>> inputs.process_loss({"output": torch.eye(3)[[0, 0]], "target": torch.tensor([0, 1])})
    >>> inputs.value["target"]["perplexity"].mean, inputs.shares()["output"]
    (2.0, {'class 0': 1.0, 'class 1': 0.0, 'class 2': 0.0})
    """

    statistics = (MEAN, STD, RANGE, NONFINITE, ROW_SUM, PERPLEXITY, IGNORED)
    _kept_type = ClassesKept

    def __init__(self, most_shown: int = 10) -> None:
        super().__init__(inplace=True)
        self.most_shown = most_shown
        self._shown: list[int] = []

    @torch.no_grad()
    def process_loss(self, named: Mapping[str, Tensor], ignore_index: int | None = None) -> None:
        """Take the output and the target of one pass; targets of ``ignore_index`` do not count."""
        for name, tensor in named.items():
            self._add(name, described(tensor.detach()))
        output, target = (named[name].detach() if name in named else None for name in (OUTPUT, TARGET))
        if output is None or not output.is_floating_point():
            return
        dimension = None if target is None else class_dimension(output, target)
        rows = min(1, output.dim() - 1) if dimension is None else dimension
        if output.dim() and output.shape[rows] > 1:
            self._add(OUTPUT, extremes(ROW_SUM, output.sum(rows, dtype=wide_dtype(output))))
        if target is not None and dimension is not None:
            self._count(output, target.to(torch.int64), dimension, ignore_index)

    def _count(self, output: Tensor, target: Tensor, dimension: int, ignore_index: int | None) -> None:
        size = output.shape[dimension]
        if size > MOST_CLASSES:
            raise SkippedSample(f"of {size} classes none is counted; up to {MOST_CLASSES} are")
        matters = (target >= 0) & (target < size)
        if ignore_index is not None:
            matters &= target != ignore_index
        for name, classes in ((TARGET, target), (OUTPUT, output.argmax(dimension))):
            counts = class_counts(classes.where(matters, size), size)
            self._classes.add(name, counts)
            self._add(name, [(PERPLEXITY, perplexity(counts))])
        self._add(TARGET, [(IGNORED, 1 - matters.mean(dtype=wide_dtype(output)))])

    def _add(self, name: str, samples: Described) -> None:
        for statistic, sample in samples:
            self._kept.series.add((name, statistic), sample)

    # the classes of a whole tick

    def counts(self) -> dict[str, Counts]:
        """How often each class came since the last tick; by name, without names that have none."""
        HostCopy(self._classes.take()).deliver()
        return {name: counts for name, counts in self._classes.arrived.items() if counts.any()}

    def shares(self) -> Lines:
        """The share of each class.

        If there are many, the first ones to be most frequent keep their lines, and there is a line for all others.
        """
        found = self.counts()
        size = max(map(len, found.values()), default=0)
        self._choose(found.get(TARGET, np.zeros(0)), size)
        shares: Lines = {}
        for name, counts in found.items():
            part = np.pad(counts, (0, size - len(counts))) / counts.sum()
            shares[name] = {f"class {number}": float(part[number]) for number in sorted(self._shown) if number < size}
            if size > self.most_shown:
                shares[name]["others"] = float(1 - sum(shares[name].values()))
        return shares

    def _choose(self, counts: Counts, size: int) -> None:
        by_frequency = range(size) if size <= self.most_shown else np.argsort(-counts, kind="stable").tolist()
        for number in by_frequency[: self.most_shown]:
            is_new = number not in self._shown and len(self._shown) < self.most_shown
            if is_new and (size <= self.most_shown or counts[number]):
                self._shown.append(number)

    def variety(self) -> Lines:
        """How many classes were seen, and the perplexity of their distribution."""
        return {
            name: {"seen": float(np.count_nonzero(counts)), "perplexity": float(np.exp(-np.sum(part * np.log(part))))}
            for name, counts in self.counts().items()
            for part in [counts[counts > 0] / counts.sum()]
        }

    def ratio(self) -> Lines:
        """How many times as often the most frequent class was seen as the least frequent one that was seen."""
        found = self.counts().items()
        return {name: {"value": float(counts.max() / counts[counts > 0].min())} for name, counts in found}

    # the life of a run

    @property
    def _classes(self) -> ClassesKept:
        kept = self._kept
        assert isinstance(kept, ClassesKept)
        return kept

    def _merge_counts(self, counts: Iterable[tuple[str, Any]]) -> None:
        for name, own in counts:
            self._classes.merge(name, np.asarray(own, np.float64))

    def clear(self) -> None:
        """Also forget which classes have lines."""
        super().clear()
        self._shown = []

    def pending(self, kept: Kept) -> list[Pending]:
        """Also counts of classes."""
        assert isinstance(kept, ClassesKept)
        return [*super().pending(kept), *kept.take()]

    def payload(self) -> Any:
        """All accumulators, and the counts of classes."""
        return super().payload(), self.counts()

    def merge_ranks(self, payloads: dict[int, Any]) -> None:
        """Merge the payloads of all ranks; counts add up."""
        super().merge_ranks({rank: values for rank, (values, _) in payloads.items()})
        for _, counts in payloads.values():
            self._merge_counts(counts.items())

    def state_dict(self) -> dict[str, Any]:
        """Also the counts of classes, and which have lines."""
        counts = {name: torch.tensor(own, device=HOST) for name, own in self.counts().items()}
        return {**super().state_dict(), "counts": counts, "shown": list(self._shown)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._merge_counts((name, own.numpy()) for name, own in state["counts"].items())
        self._shown = list(state["shown"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "counts": self.counts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        counts = state.pop("counts")
        super().__setstate__(state)
        self._merge_counts(counts.items())


def class_dimension(output: Tensor, target: Tensor) -> int | None:
    """The dimension of the output that integer targets do not have; None if targets are no classes.

    >>> class_dimension(torch.zeros(5, 3, 8), torch.zeros(5, 8, dtype=torch.int64))
    1
    """
    if target.is_floating_point() or output.dim() != target.dim() + 1:
        return None
    last = output.dim() - 1
    for dimension in (min(1, last), last):  # where the losses of torch have it; where many own ones do
        if output.shape[:dimension] + output.shape[dimension + 1 :] == target.shape:
            return dimension
    return None


def class_counts(classes: Tensor, size: int) -> Tensor:
    """How often each class comes; the number ``size`` stands for none."""
    counts = torch.zeros(size + 1, dtype=torch.int64, device=classes.device)
    flat = classes.reshape(-1)
    return counts.scatter_add_(0, flat, torch.ones_like(flat))[:size]


def perplexity(counts: Tensor) -> Tensor:
    """How many classes there would be if all were as frequent: the exponential of the entropy."""
    shares = counts.to(wide_dtype(counts)) / counts.sum()
    entropy: Tensor = torch.special.entr(shares).sum()
    return entropy.exp()
