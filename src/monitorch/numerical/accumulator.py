"""The two accumulators under one name, and what all code that holds some of them needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .running_mean_var import RunningMeanVar
from .sample_list import SampleList

Accumulator: TypeAlias = RunningMeanVar | list[float]


@dataclass
class RunningValue:
    """A count and a value; kept for code that imports it."""

    count: int = 0
    value: Any = None


def new_accumulator(inplace: bool) -> RunningMeanVar | SampleList:
    """In place: moments only. In memory: every sample, so that quantiles are possible."""
    return RunningMeanVar() if inplace else SampleList()


def accumulators_in(value: Any) -> Iterator[Any]:
    """The accumulators inside a preprocessor's value: one, a tuple of them, or a dictionary."""
    if isinstance(value, tuple):
        yield from value
    elif isinstance(value, Mapping):
        yield from value.values()
    else:
        yield value
