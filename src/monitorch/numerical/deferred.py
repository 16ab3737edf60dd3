"""Numbers that may still be on a device, and the one copy that brings them to the CPU."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .precision import wide_dtype
from .transfer import Parcel, Transfer

PACK_AT = 256
"""How many scalar tensors may wait before they are packed into one: limits memory between two ticks."""


def as_sample(number: Tensor) -> Tensor:
    """A one-element tensor as a float64 scalar, cut from its graph, still on its device."""
    if number.numel() != 1:
        raise ValueError(f"a sample is one number, not a tensor of shape {tuple(number.shape)}")
    # each of these costs as much as the arithmetic of a small model's step, so do none without need
    number = number.detach() if number.requires_grad else number
    number = number.reshape(()) if number.dim() else number
    wide = wide_dtype(number)
    return number if number.dtype == wide else number.to(wide)


class Deferred:
    """Takes samples one by one; tensors wait on their device until they are read."""

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._packed: list[Tensor] = []

    def append(self, sample: Any) -> None:
        """Add one sample: a number, or a tensor with one element (copied, without waiting for the GPU)."""
        self.adopt(sample.detach().clone() if isinstance(sample, Tensor) else sample)

    def adopt(self, sample: Any) -> None:
        """The same without a copy, for a tensor that will not be changed."""
        if not isinstance(sample, Tensor):
            self._absorb_number(float(sample))
            return
        sample = as_sample(sample)
        if self._waiting and (len(self._waiting) >= PACK_AT or self._waiting[0].device != sample.device):
            self._pack()
        self._waiting.append(sample)

    def extend_by(self, samples: NDArray[np.float64]) -> None:
        """Add many samples that are already on the CPU."""
        self.settle()
        self._absorb(torch.from_numpy(samples))

    def settle(self) -> None:
        """Wait for the samples that are still on a device."""
        if self._waiting or self._packed:
            settle([self])

    def _pack(self) -> None:
        samples = torch.stack(self._waiting)
        self._packed = self._combine(self._packed, samples)
        self._waiting = []

    def _take(self) -> list[Tensor]:
        """Return everything that waits, oldest first."""
        waiting, self._packed, self._waiting = [*self._packed, *self._waiting], [], []
        return waiting

    @abstractmethod
    def _absorb_number(self, sample: float) -> None:
        """Add a sample that is on the CPU."""

    @abstractmethod
    def _absorb(self, block: Tensor) -> None:
        """Add a block from :meth:`_take`, now on the CPU."""

    @abstractmethod
    def _combine(self, packed: list[Tensor], samples: Tensor) -> list[Tensor]:
        """Combine ``packed`` and the vector ``samples`` into one."""


def settle(accumulators: Iterable[Deferred]) -> None:
    """Copy everything that waits in ``accumulators`` to the CPU: one copy per device."""
    Transfer(parcels_of(accumulators)).deliver()


def parcels_of(accumulators: Iterable[Deferred]) -> Iterator[Parcel]:
    """What waits in ``accumulators``, to be copied to the CPU and given back to them."""
    for accumulator in accumulators:
        for block in accumulator._take():
            yield accumulator._absorb, block
