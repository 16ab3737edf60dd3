"""The two kinds of accumulators, and helpers for code that holds some of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from .precision import HOST
from .running_mean_var import RunningMeanVar
from .sample_list import SampleList

Accumulator: TypeAlias = RunningMeanVar | list[float]


@dataclass
class RunningValue:
    """A count and a value; kept for code that imports it."""

    count: int = 0
    value: Any = None


def new_accumulator(inplace: bool) -> RunningMeanVar | SampleList:
    """In place: only running moments. In memory: every sample, so that quantiles are possible."""
    return RunningMeanVar() if inplace else SampleList()


def accumulators_in(value: Any) -> Iterator[Any]:
    """The accumulators inside a preprocessor's value: one, a tuple of them, or a dictionary."""
    if isinstance(value, tuple):
        yield from value
    elif isinstance(value, Mapping):
        yield from value.values()
    else:
        yield value


def pack(value: Any) -> Any:
    """The accumulators inside a preprocessor's value as plain data."""
    if isinstance(value, RunningMeanVar):
        return {"row": list(value.row())}
    if isinstance(value, tuple):
        return {"each": [pack(part) for part in value]}
    if isinstance(value, Mapping):
        return {"named": {name: pack(part) for name, part in value.items()}}
    return {"samples": torch.tensor(list(value), dtype=torch.float64, device=HOST)}


def unpack(data: Any) -> Any:
    """What :func:`pack` was given.

    >>> unpack(pack((RunningMeanVar(1, 2.0), SampleList([3.0]))))
    (RunningMeanVar(count=1, mean=2.0, var=0.0, min_=inf, max_=-inf, nonfinite=0), [3.0])
    """
    ((kind, content),) = data.items()
    if kind == "row":
        return RunningMeanVar.of_row(*content)
    if kind == "moments":  # from an older release
        count, mean, var, low, high, nonfinite = content
        return RunningMeanVar(count, mean, var, low, high, nonfinite=nonfinite)
    if kind == "each":
        return tuple(unpack(part) for part in content)
    if kind == "named":
        return {name: unpack(part) for name, part in content.items()}
    return SampleList(content.tolist())
