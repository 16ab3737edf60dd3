"""Collects small tensors of the same shape, so that a few operations handle all of them."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .precision import HOST

AT_ONCE = {"cpu": 1 << 20}
"""How many bytes are batched: what fits into the cache of a CPU."""
MOST_AT_ONCE = 4 << 20
"""The same on other devices, where a smaller operation takes about as long; callers may ask for more."""
MANY = 256
"""How many tensors are batched at most, however small."""


class Batches:
    """Collects tensors by key, and hands over those of the same kind stacked together.

    Args:
        handle: called with the keys, a list with as many tensors as come with each of them, stacked, and what these
            have in common. A tensor that comes alone is not copied.
        most_at_once: how many bytes may wait on a device that is no CPU.

    >>> batches = Batches(lambda keys, columns: print(keys, [column.tolist() for column in columns]))
    >>> batches.add("a", torch.tensor([1, 2]), torch.tensor(3))
    >>> batches.add("b", torch.tensor([4, 5]), torch.tensor(6))
    >>> batches.flush()
    ('a', 'b') [[[1, 2], [4, 5]], [3, 6]]
    """

    def __init__(self, handle: Callable[..., None], most_at_once: int = MOST_AT_ONCE) -> None:
        self._handle, self._most_at_once = handle, most_at_once
        self._alike: dict[Any, _Alike] = {}
        self._bytes: dict[torch.device, int] = defaultdict(int)

    def add(self, key: Hashable, *tensors: Tensor, common: tuple[Hashable, ...] = ()) -> None:
        """Add the tensors of one key, which must not change any more; only those with equal ``common`` are stacked."""
        kind = common, *((tensor.device, tensor.dtype, tensor.shape) for tensor in tensors)
        alike = self._alike.get(kind)
        if alike is None:
            size = sum(tensor.nbytes for tensor in tensors)
            alike = self._alike[kind] = _Alike(tensors[0].device, common, size, [], [])
        alike.keys.append(key)
        alike.tensors.append(tensors)
        self._bytes[alike.device] += alike.bytes_each
        if len(alike.keys) >= MANY:
            self._hand_over(kind)
        elif self._bytes[alike.device] >= AT_ONCE.get(alike.device.type, self._most_at_once):
            own = {kind: other.nbytes for kind, other in self._alike.items() if other.device == alike.device}
            self._hand_over(max(own, key=own.__getitem__))

    def flush(self) -> None:
        """Hand over all that waits."""
        for kind in list(self._alike):
            self._hand_over(kind)

    @torch.no_grad()
    def _hand_over(self, kind: Any) -> None:
        alike = self._alike.pop(kind)
        self._bytes[alike.device] -= alike.nbytes
        columns = [_stacked(column) for column in zip(*alike.tensors, strict=True)]
        self._handle(tuple(alike.keys), columns, *alike.common)


class _Alike(NamedTuple):
    """What waits with tensors of the same shapes."""

    device: torch.device
    common: tuple[Hashable, ...]
    bytes_each: int
    keys: list[Hashable]
    tensors: list[tuple[Tensor, ...]]

    @property
    def nbytes(self) -> int:
        return self.bytes_each * len(self.keys)


def _stacked(tensors: tuple[Tensor, ...]) -> Tensor:
    return tensors[0].detach()[None] if len(tensors) == 1 else torch.stack(tensors)


def numbers_on(device: torch.device, numbers: Sequence[int] | NDArray[np.int64]) -> Tensor:
    """Whole numbers as a tensor on a device, which is not waited for.

    >>> numbers_on(HOST, [3, 1])
    tensor([3, 1])
    """
    here = torch.tensor(numbers, dtype=torch.int64, device=HOST)
    here = here.pin_memory() if device.type == "cuda" else here  # older torch cannot pin tensors made from NumPy arrays
    return here.to(device, non_blocking=True)
