"""Facts about parameters, step by step."""

import math
from collections.abc import Callable
from typing import Any

from ..engine.parameter_facts import Facts
from .accumulating import AccumulatingPreprocessor


class FactSeries(AccumulatingPreprocessor):
    """Keeps the facts about each parameter; what was not known in a step is no sample.

    >>> series = FactSeries()
    >>> series.process_facts("layer.weight", Facts(1.0, 0.0, 77.0, 0.1, 0.0, 0.0))
    >>> series.means("changed"), series.last("checksum")
    ({'layer.weight': {'mean': 0.0}}, {'layer.weight': {'last': 77.0}})
    """

    statistics = Facts._fields

    def __init__(self) -> None:
        super().__init__(inplace=True)

    def process_facts(self, name: str, facts: Facts) -> None:
        """Take the facts after one step."""
        self._record(name, *facts)

    def means(self, fact: str) -> dict[str, dict[str, float]]:
        """The mean over the steps in which it was known, by parameter."""
        return self._read(fact, "mean", lambda found: found.mean)

    def last(self, fact: str) -> dict[str, dict[str, float]]:
        """The last number, by parameter."""
        return self._read(fact, "last", lambda found: found.last)

    def _read(self, fact: str, line: str, read: Callable[[Any], float]) -> dict[str, dict[str, float]]:
        known = {name: read(found) for name, found in self.series(fact).items() if found.count}
        return {name: {line: number} for name, number in known.items() if not math.isnan(number)}
