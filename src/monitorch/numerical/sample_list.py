"""The in-memory accumulator: a list of floats that also takes tensors without waiting for them."""

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

import numpy as np
from torch import Tensor

from .deferred import Deferred


class SampleList(Deferred, list[float]):
    """A ``list`` of floats; reading it in any way first fetches what is still on a device."""

    def __init__(self, samples: Iterable[float] = ()) -> None:
        Deferred.__init__(self)
        list.__init__(self, map(float, samples))

    def merge(self, other: Iterable[float]) -> None:
        """Add the samples of another list after one's own."""
        self.settle()
        self.extend(other)

    def _absorb_number(self, sample: float) -> None:
        self.settle()
        list.append(self, sample)

    def _absorb(self, block: Tensor) -> None:
        self.extend(block.reshape(-1).tolist())

    def _combine(self, packed: list[Tensor], samples: Tensor) -> list[Tensor]:
        return [*packed, samples]

    def __len__(self) -> int:
        self.settle()
        return list.__len__(self)

    def __iter__(self) -> Iterator[float]:
        self.settle()
        return list.__iter__(self)

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.settle()
        return list.__getitem__(self, index)

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, SampleList) else other)

    def __repr__(self) -> str:
        return repr(list(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(list(self), dtype=dtype)

    def __reduce__(self) -> tuple[type["SampleList"], tuple[list[float]]]:
        return SampleList, (list(self),)
