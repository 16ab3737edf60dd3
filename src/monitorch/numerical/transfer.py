"""Copies of numbers from devices to the CPU."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .precision import HOST

Parcel: TypeAlias = tuple[Callable[[Tensor], None], Tensor]
"""A function that gets a tensor on the CPU, and the tensor."""


class Transfer:
    """Starts to copy tensors to the CPU when it is made, with one copy per device; waits only in :meth:`deliver`.

    >>> received = []
    >>> Transfer([(received.append, torch.ones(2)), (received.append, torch.zeros(1))]).deliver()
    >>> received
    [tensor([1., 1.]), tensor([0.])]
    """

    def __init__(self, parcels: Iterable[Parcel]) -> None:
        by_kind: dict[Any, list[Parcel]] = defaultdict(list)
        for receive, tensor in parcels:
            by_kind[tensor.device, tensor.dtype].append((receive, tensor))
        self._loads = [_Load(parcels) for parcels in by_kind.values()]

    def deliver(self) -> None:
        """Wait for the copies and deliver everything; for each device in the given order."""
        loads, self._loads = self._loads, []
        for load in loads:
            load.deliver()


class _Load:
    """The tensors of one device."""

    def __init__(self, parcels: list[Parcel]) -> None:
        self._receivers = [(receive, tensor.shape) for receive, tensor in parcels]
        flat = torch.cat([tensor.reshape(-1) for _, tensor in parcels])
        self._arrived: Any = None
        if flat.is_cuda:
            self._host = torch.empty(flat.shape, dtype=flat.dtype, device=HOST, pin_memory=True)
            self._host.copy_(flat, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._host = flat

    def deliver(self) -> None:
        if self._arrived is not None:
            self._arrived.synchronize()
        parts = torch.split(self._host.cpu(), [shape.numel() for _, shape in self._receivers])
        for (receive, shape), part in zip(self._receivers, parts, strict=True):
            receive(part.reshape(shape))
