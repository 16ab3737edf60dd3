"""The common part of the preprocessors that read a module's parameters from time to time."""

from abc import abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.parameters import find_parameter
from ..numerical.series import Series, SeriesColumn
from .abstract import AbstractModulePreprocessor
from .accumulating import AccumulatingPreprocessor


class ParameterStatistics(AccumulatingPreprocessor, AbstractModulePreprocessor):
    """One accumulator per parameter, ``value[name][parameter]``; a subclass writes ``_measure``.

    Args:
        attrs: names of the parameters; names that a module lacks are ignored.
        inplace: keep only running moments, instead of every sample.
    """

    def __init__(self, attrs: Iterable[str], inplace: bool) -> None:
        self.attrs_ = [attrs] if isinstance(attrs, str) else list(attrs)
        self.statistics = tuple(self.attrs_)
        super().__init__(inplace)

    @property
    def _width(self) -> int:
        return 1  # each parameter is a series of its own: its key is the name of the module and that of the parameter

    @property
    def value(self) -> dict[str, Any]:
        """Accumulators by name of the module, then by name of the parameter."""
        found: dict[str, Any] = OrderedDict()
        for (name, attr), accumulator in self._kept.series.values().items():
            found.setdefault(name, {})[attr] = accumulator
        return found

    def _column(self, series: Series, statistic: str) -> SeriesColumn:
        """The accumulators of one parameter, by name of the module."""
        return SeriesColumn(series, {name: (name, attr) for name, attr in series.used_keys() if attr == statistic})

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

    def merge_ranks(self, payloads: dict[int, Any]) -> None:
        """Merge the payloads of all ranks; copies of one parameter, which give the same numbers, count once."""
        self.reset()
        merged: dict[Any, list[Any]] = defaultdict(list)
        for values in payloads.values():
            for key, other in values.items():
                if other not in merged[key]:
                    self._merge({key: other})
                    merged[key].append(other)
