"""Facts about parameters, step by step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..engine.parameter_facts import Column, Facts
from .accumulating import AccumulatingPreprocessor


class FactSeries(AccumulatingPreprocessor):
    """Keeps the facts about each parameter; unknown facts give no sample.

    >>> series = FactSeries()
    >>> series.process_fact("changed", ["layer.weight"], [0.0])
    >>> series.process_fact("checksum", ["layer.weight"], [77.0])
    >>> series.means("changed"), series.last("checksum")
    ({'layer.weight': {'mean': 0.0}}, {'layer.weight': {'last': 77.0}})
    """

    statistics = Facts._fields

    def __init__(self) -> None:
        super().__init__(inplace=True)

    def process_fact(self, fact: str, names: Sequence[str], numbers: Column) -> None:
        """Take one fact about several parameters after a step."""
        self._kept.series.add_column(names, self.statistics.index(fact), numbers)

    def means(self, fact: str) -> dict[str, dict[str, float]]:
        """The mean over the steps in which it was known, by parameter."""
        return self._read(fact, "mean", lambda found: found.mean)

    def last(self, fact: str) -> dict[str, dict[str, float]]:
        """The last number, by parameter."""
        return self._read(fact, "last", lambda found: found.last)

    def _read(self, fact: str, line: str, read: Callable[[Any], float]) -> dict[str, dict[str, float]]:
        known = {name: read(found) for name, found in self.series(fact).items() if found.count}
        return {name: {line: number} for name, number in known.items() if not math.isnan(number)}
