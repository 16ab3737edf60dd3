"""What enters a loss: the model output and the target, with class frequencies if targets are classes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.inputs import OUTPUT, TARGET
from ..numerical.precision import wide_dtype
from .accumulating import Kept
from .counting import CountingStatistics, Counts, CountsKept, Lines
from .data import MEAN, NONFINITE, RANGE, SMALL, STD, Described, described, extremes, thinned

ROW_SUM, PERPLEXITY, IGNORED = "row sum", "perplexity", "ignored"

MOST_CLASSES = 4096
"""The most classes that are counted; a vocabulary has more."""


class LossInputs(CountingStatistics):
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

    def __init__(self, most_shown: int = 10) -> None:
        super().__init__(inplace=True)
        self.most_shown = most_shown
        self._shown: list[int] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The shapes of what entered the loss first."""
        self.has_classes = False
        """Whether targets are classes."""

    @torch.no_grad()
    def process_loss(self, named: Mapping[str, Tensor], ignore_index: int | None = None) -> None:
        """Take the output and the target of one pass; targets of ``ignore_index`` do not count."""
        self.shapes = self.shapes or {name: tuple(tensor.shape) for name, tensor in named.items()}
        named = thinned({name: tensor.detach() for name, tensor in named.items() if tensor.numel()})
        output, target = named.get(OUTPUT), named.get(TARGET)
        if output is not None and target is not None and output.is_floating_point():
            self.has_classes = class_dimension(output, target) is not None
        common = tuple(named), ignore_index
        if sum(tensor.numel() for tensor in named.values()) > SMALL:
            stacked = [tensor[None] for tensor in named.values()]
            self._handle(self._kept, (None,), (self._kept.series.now(),), stacked, *common)
        elif named:
            self._gather(None, *(tensor.clone() for tensor in named.values()), common=common)

    def _handle(self, kept: Kept, keys: Any, steps: tuple[int, ...], columns: list[Tensor], *common: Any) -> None:
        """Look at outputs and targets of one shape, stacked."""
        names, ignore_index = common
        named = dict(zip(names, columns, strict=True))
        found = [(name, described(tensor)) for name, tensor in named.items()]
        output, target = named.get(OUTPUT), named.get(TARGET)
        if output is not None and output.is_floating_point():
            dimension = None if target is None else class_dimension(output[0], target[0])
            rows = min(1, output.dim() - 2) if dimension is None else dimension
            if output.dim() > 1 and output.shape[rows + 1] > 1:
                found.append((OUTPUT, extremes(ROW_SUM, output.sum(rows + 1, dtype=wide_dtype(output)))))
            if target is not None and dimension is not None and output.shape[dimension + 1] <= MOST_CLASSES:
                found += self._count_classes(kept, output, target.to(torch.int64), dimension + 1, ignore_index)
        for name, samples in found:
            for statistic, numbers in samples:
                kept.series.add_all([(name, statistic)] * len(steps), numbers, steps)

    def _count_classes(
        self, kept: Kept, output: Tensor, target: Tensor, dimension: int, ignore_index: int | None
    ) -> list[tuple[str, Described]]:
        assert isinstance(kept, CountsKept)
        size = output.shape[dimension]
        matters = (target >= 0) & (target < size)
        if ignore_index is not None:
            matters &= target != ignore_index
        ignored = 1 - matters.reshape(len(matters), -1).mean(1, dtype=wide_dtype(output))
        found: list[tuple[str, Described]] = [(TARGET, [(IGNORED, ignored)])]
        for name, classes in ((TARGET, target), (OUTPUT, output.argmax(dimension))):
            counts = class_counts(classes.where(matters, size), size)
            kept.add((name,), counts.sum(0, keepdim=True))
            found.append((name, [(PERPLEXITY, perplexity(counts))]))
        return found

    # the classes of a whole tick

    def shares(self) -> Lines:
        """The share of each class.

        If there are many, the classes that were most frequent first keep their lines, and the rest share one.
        """
        found = self.counts()
        size = max(map(len, found.values()), default=0)
        self._choose(found.get(TARGET, np.zeros(0, np.int64)), size)
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
        """The count of the most frequent class divided by that of the least frequent class seen."""
        found = self.counts().items()
        return {name: {"value": float(counts.max() / counts[counts > 0].min())} for name, counts in found}

    # the life of a run

    def clear(self) -> None:
        """Also forget which classes have lines, and what the loss got first."""
        super().clear()
        self._shown, self.shapes, self.has_classes = [], {}, False

    def state_dict(self) -> dict[str, Any]:
        """Also which classes have lines."""
        return {**super().state_dict(), "shown": list(self._shown)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._shown = list(state["shown"])


def class_dimension(output: Tensor, target: Tensor) -> int | None:
    """The dimension of the output that integer targets do not have; None if targets are no classes.

    >>> class_dimension(torch.zeros(5, 3, 8), torch.zeros(5, 8, dtype=torch.int64))
    1
    """
    if target.is_floating_point() or output.dim() != target.dim() + 1:
        return None
    last = output.dim() - 1
    for dimension in (min(1, last), last):  # where torch's losses have it, and where custom ones often do
        if output.shape[:dimension] + output.shape[dimension + 1 :] == target.shape:
            return dimension
    return None


def class_counts(classes: Tensor, size: int) -> Tensor:
    """How often each class comes in each of some stacked tensors; the number ``size`` stands for none."""
    flat = classes.reshape(len(classes), -1)
    counts = torch.zeros(len(classes), size + 1, dtype=torch.int64, device=classes.device)
    return counts.scatter_add_(1, flat, torch.ones_like(flat))[:, :size]


def perplexity(counts: Tensor) -> Tensor:
    """The exponential of the entropy of each row: the effective number of classes."""
    shares = counts.to(wide_dtype(counts)) / counts.sum(1, keepdim=True)
    entropy: Tensor = torch.special.entr(shares).sum(1)
    return entropy.exp()
