"""The in-place accumulator: count, mean, variance and extremes of a stream of numbers."""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import LifecycleError
from . import moments
from .deferred import Deferred

MANY = 16
"""From this many samples on, adding them together is faster than one by one."""


def _settled(field: str) -> Any:
    """A property over ``field`` that first fetches samples that are still on a device."""

    def read(self: "RunningMeanVar") -> Any:
        self.settle()
        return getattr(self, field)

    def write(self: "RunningMeanVar", value: Any) -> None:
        self.settle()
        setattr(self, field, value)

    return property(read, write)


class RunningMeanVar(Deferred):
    """Running moments of the finite samples; the others are only counted.

    >>> acc = RunningMeanVar()
    >>> for x in (1.0, 2.0, 3.0, float("nan")):
    ...     acc.update(x)
    >>> acc.mean, acc.min_, acc.max_, acc.count, acc.nonfinite
    (2.0, 1.0, 3.0, 3, 1)

    The variance is that of the population (ddof 0). For huge numbers the variance is infinite, but ``std`` is not.
    """

    count: int = _settled("_count")
    mean: float = _settled("_mean")
    var: float = _settled("_var")
    min_: float = _settled("_min")
    max_: float = _settled("_max")
    nonfinite: int = _settled("_nonfinite")

    def __init__(
        self,
        count: int = 0,
        mean: float = 0.0,
        var: float = 0.0,
        min_: float = math.inf,
        max_: float = -math.inf,
        _handle: Any = None,
        nonfinite: int = 0,
    ) -> None:
        super().__init__()
        self._count, self._mean, self._var, self._min, self._max = count, mean, var, min_, max_
        self._nonfinite = nonfinite
        self._huge_std = math.inf
        """The standard deviation, if the variance is infinite."""
        self._handle = _handle

    @property
    def std(self) -> float:
        """The standard deviation."""
        self.settle()
        return self._deviation()

    def update(self, x: Any) -> None:
        """Add one sample; the same as ``append``."""
        self.append(x)

    def merge(self, other: "RunningMeanVar | Iterable[float]") -> None:
        """Add the samples of another accumulator."""
        self.settle()
        if isinstance(other, RunningMeanVar):
            self._merge_row(other.row())
        else:
            for sample in other:
                self._absorb_number(sample)

    def state(self) -> tuple[int, float, float, float, float, int]:
        """The six fields."""
        self.settle()
        return self._count, self._mean, self._var, self._min, self._max, self._nonfinite

    def row(self) -> tuple[int, float, float, float, float, int, float]:
        """All fields, in the order of a row of moments, with the variance at the end."""
        count, mean, var, low, high, nonfinite = self.state()
        return count, mean, self.std, low, high, nonfinite, var

    @classmethod
    def of_row(cls, *row: Any) -> "RunningMeanVar":
        """The accumulator that had this row."""
        fresh = cls()
        fresh._merge_row(row)
        return fresh

    def start_sync(self, dst_rank: int = 0) -> None:
        """Begin to gather the accumulators of all ranks; every rank gets the result."""
        device = torch.device("cuda" if "nccl" in dist.get_backend() else "cpu")
        own = torch.tensor(self.row(), dtype=torch.float64, device=device)
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        self._handle = dist.all_gather(rows, own, async_op=True), rows

    def finish_sync(self) -> None:
        """Wait for the other ranks and merge the samples of all."""
        if self._handle is None:
            raise LifecycleError("finish_sync() needs a start_sync() before it")
        (work, rows), self._handle = self._handle, None
        work.wait()
        self.__init__()  # type: ignore[misc]  # this accumulator is one of the rows
        for row in rows:
            self._merge_row(row.tolist())

    def _merge_row(self, row: Any) -> None:
        """Chan's pairwise merge of one row of moments; without a variance it is computed from the deviation."""
        count, mean, std, low, high, nonfinite, var = row if len(row) == 7 else (*row, row[2] * row[2])
        self._nonfinite += int(nonfinite)
        if not count:
            return
        total = self._count + int(count)
        share = count / total
        delta = mean - self._mean
        before, root, rest = self._deviation(), math.sqrt(share), math.sqrt(1 - share)
        # in this order a zero share multiplies a finite number, never one that overflowed
        self._var = self._var * (1 - share) + var * share + (delta * share) * (delta * (1 - share))
        if math.isinf(self._var):
            self._huge_std = math.hypot(before * rest, std * root, delta * root * rest)
        # the two forms are equal; the second survives a difference that overflows
        self._mean = self._mean + delta * share if math.isfinite(delta) else self._mean * (1 - share) + mean * share
        self._count, self._min, self._max = total, min(self._min, low), max(self._max, high)

    def _deviation(self) -> float:
        return self._huge_std if math.isinf(self._var) else math.sqrt(self._var)

    def _absorb_number(self, sample: float) -> None:
        if math.isfinite(sample):
            self._merge_row((1, sample, 0.0, sample, sample, 0, 0.0))
        else:
            self._nonfinite += 1

    def _absorb(self, block: Tensor) -> None:
        if block.dim() == 2:
            self._merge_row(block[0].tolist())
        elif block.numel() < MANY:
            for sample in block.reshape(-1).tolist():
                self._absorb_number(sample)
        else:
            self._merge_row(moments.merge(moments.of_samples(block.reshape(-1).double())).tolist())

    def _combine(self, packed: list[Tensor], samples: Tensor) -> list[Tensor]:
        if samples.dtype != torch.float64:
            return [*packed, samples]  # folded in float64 on the host
        same_device = [row for row in packed if row.device == samples.device]
        others = [row for row in packed if row.device != samples.device]
        return [*others, moments.merge(torch.cat([*same_device, moments.of_samples(samples)]))[None]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        raise TypeError("RunningMeanVar keeps no samples to iterate over; use inplace=False for a list of them")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunningMeanVar) and self.state() == other.state()

    __hash__ = None  # type: ignore[assignment]  # not hashable: it changes with every sample

    def __repr__(self) -> str:
        count, mean, var, low, high, nonfinite = self.state()
        return f"RunningMeanVar({count=}, {mean=}, {var=}, min_={low}, max_={high}, {nonfinite=})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RunningMeanVar.of_row, self.row()


def start_sync_rmv_or_error(acc: Any, dst_rank: int) -> None:
    """Start the sync of an in-place accumulator if there are several processes."""
    if dist.is_available() and dist.is_initialized():
        acc.start_sync(dst_rank)


def finish_sync_rmv_or_error(acc: Any) -> None:
    """Finish what :func:`start_sync_rmv_or_error` started."""
    if dist.is_available() and dist.is_initialized():
        acc.finish_sync()
