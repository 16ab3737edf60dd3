"""Preprocessors that read a module's parameters from time to time."""

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.distributed_tensors import is_distributed
from ..engine.kernels import reference
from ..engine.meter import Request
from ..engine.parameters import find_parameter
from ..engine.rank_numbers import Merged, Payload
from ..engine.rows import Rows
from ..errors import SkippedSample
from .abstract import AbstractModulePreprocessor
from .accumulating import Samples, SeparateStatistics
from .geometry import norms


class ParameterStatistics(SeparateStatistics, AbstractModulePreprocessor):
    """One accumulator per parameter, ``value[name][parameter]``; a subclass writes ``_measure``.

    Args:
        attrs: names of the parameters; names that a module lacks are ignored.
        inplace: keep only running moments, instead of every sample.
    """

    def __init__(self, attrs: Iterable[str], inplace: bool) -> None:
        self.attrs_ = [attrs] if isinstance(attrs, str) else list(attrs)
        self.statistics = tuple(self.attrs_)
        super().__init__(inplace)

    @torch.no_grad()
    def process_module(self, name: str, module: nn.Module) -> None:
        """Take the module's parameters as they are now."""
        for attr in self.attrs_:
            parameter = find_parameter(module, attr)
            if parameter is not None:
                self._measure((name, attr), parameter.detach())

    @torch.no_grad()
    def process_parameter(self, name: str, parameter: Tensor) -> None:
        """Take one parameter as it is now, under the first of the names."""
        self._measure((name, self.attrs_[0]), parameter.detach())

    @abstractmethod
    def _measure(self, key: tuple[str, str], parameter: Tensor) -> None:
        """Record the number of a parameter, if it has one."""

    def payload(self) -> Payload:
        """All accumulators; copies of one parameter, which give the same numbers, count once."""
        found = super().payload()
        found.counts_copies_once = True
        return found

    def merge_ranks(self, merged: Merged) -> None:
        """Take the accumulators of all ranks."""
        known: dict[Any, list[list[float]]] = defaultdict(list)
        for lists in merged.lists:
            for key, samples in list(lists.items()):
                if samples in known[key]:
                    del lists[key]
                known[key].append(samples)
        super().merge_ranks(merged)


class ParameterNorm(ParameterStatistics):
    """Euclidean norm of each parameter, divided by the root of its size with ``normalize``."""

    def __init__(self, attrs: Iterable[str], normalize: bool, inplace: bool) -> None:
        self.normalize = normalize
        super().__init__(attrs, inplace)

    def request(self) -> Request:
        """What gatherers should measure for it."""
        return Request()

    def derive(self, rows: Rows) -> Samples:
        """The norms."""
        return norms(rows, by_size=self.normalize)

    def _measure(self, key: tuple[str, str], parameter: Tensor) -> None:
        self._take_row(key, reference.geometry(parameter, None, None))


class ParameterCond(ParameterStatistics):
    """Condition number of each matrix: largest singular value over smallest, infinite if that is 0.

    A tensor with more than two dimensions is flattened to one matrix (first, rest); vectors have no condition number.
    """

    def _measure(self, key: tuple[str, str], parameter: Tensor) -> None:
        if parameter.dim() < 2 or not parameter.numel() or parameter.is_meta:
            return
        if is_distributed(parameter):
            raise SkippedSample("no process has the whole matrix, and a condition number needs it")
        matrix = parameter.flatten(1).to("cpu", torch.complex128 if parameter.is_complex() else torch.float64)
        if matrix.isfinite().all():
            singular: Tensor = torch.linalg.svdvals(matrix)
            self._kept.series.add(key, (singular[0] / singular[-1]).nan_to_num(nan=math.inf, posinf=math.inf))
        else:
            self._kept.series.add(key, math.nan)
