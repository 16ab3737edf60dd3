"""The common part of the preprocessors that read a module's parameters from time to time."""

from abc import abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..numerical.accumulator import new_accumulator
from .abstract import AbstractModulePreprocessor
from .accumulating import AccumulatingPreprocessor, Payload
from .parameters import find_parameter


class ParameterStatistics(AccumulatingPreprocessor, AbstractModulePreprocessor):
    """One accumulator per parameter, ``value[name][parameter]``; a subclass writes ``_measure``.

    Args:
        attrs: names of the parameters; names that a module lacks are ignored.
        inplace: keep only running moments, instead of every sample.
    """

    def __init__(self, attrs: Iterable[str], inplace: bool) -> None:
        super().__init__(inplace)
        self.attrs_ = [attrs] if isinstance(attrs, str) else list(attrs)
        self.statistics = tuple(self.attrs_)

    @torch.no_grad()
    def process_module(self, name: str, module: nn.Module) -> None:
        """Take the module's parameters as they are now."""
        for attr in self.attrs_:
            parameter = find_parameter(module, attr)
            sample = None if parameter is None else self._measure(parameter.detach())
            if sample is not None:
                self._accumulator(name, attr).append(sample)

    @torch.no_grad()
    def process_parameter(self, name: str, parameter: Tensor) -> None:
        """Take one parameter as it is now, under the first of the names."""
        sample = self._measure(parameter.detach())
        if sample is not None:
            self._accumulator(name, self.attrs_[0]).append(sample)

    def series(self, statistic: str) -> OrderedDict[str, Any]:
        """The accumulators of one parameter, by name of the module."""
        return OrderedDict((name, kept[statistic]) for name, kept in self.value.items() if statistic in kept)

    @abstractmethod
    def _measure(self, parameter: Tensor) -> Tensor | None:
        """One number, or None if the parameter has none."""

    def merge_ranks(self, loads: dict[int, Payload]) -> None:
        """Merge the payloads of all ranks; copies of one parameter, which give the same numbers, count once."""
        self.reset()
        merged: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for name, part in (item for load in loads.values() for item in load.values.items()):
            for attr, other in part.items():
                if other not in merged[name, attr]:
                    self._accumulator(name, attr).merge(other)
                    merged[name, attr].append(other)

    def _accumulator(self, name: str, attr: str) -> Any:
        return self._values.setdefault(name, {}).setdefault(attr, new_accumulator(self.inplace))
