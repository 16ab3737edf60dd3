"""The in-memory accumulator: a list of floats that also takes tensors, without waiting for the GPU."""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from .deferred import Deferred


class SampleList(Deferred, list[float]):
    """A ``list`` of floats; reading it in any way first fetches what is still on a device."""

    def __init__(self, samples: Iterable[float] = ()) -> None:
        Deferred.__init__(self)
        list.__init__(self, map(float, samples))

    def merge(self, other: Iterable[float]) -> None:
        """Append the samples of another list."""
        self.settle()
        self.extend(other)

    def _absorb_number(self, sample: float) -> None:
        self.settle()
        list.append(self, sample)

    def _absorb(self, block: Tensor) -> None:
        self.extend(block.reshape(-1).tolist())

    def _combine(self, packed: list[Tensor], samples: Tensor) -> list[Tensor]:
        return [*packed, samples]

    def __radd__(self, other: list[float]) -> list[float]:
        return other + list(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(list(self), dtype=dtype)

    def __reduce__(self) -> tuple[type["SampleList"], tuple[list[float]]]:
        return SampleList, (list(self),)


def _after_settling(name: str) -> Any:
    """The method of ``list``, called after fetching what waits."""
    method = getattr(list, name)

    @functools.wraps(method)
    def settled(self: SampleList, *args: Any, **kwargs: Any) -> Any:
        for samples in (self, *args):
            if isinstance(samples, SampleList):
                samples.settle()
        return method(self, *args, **kwargs)

    return settled


for _name in (
    *("__len__", "__iter__", "__reversed__", "__contains__", "__getitem__", "__setitem__", "__delitem__", "__repr__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__iadd__", "__mul__", "__rmul__"),
    *("__imul__", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
):
    setattr(SampleList, _name, _after_settling(_name))
