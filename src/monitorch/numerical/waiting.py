"""Numbers that may still be on a device, and the one copy that brings them to the CPU."""

import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, SupportsFloat, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .moments import Numbers, Places
from .precision import HOST, wide_dtype

PAUSE, LONG = 0.0005, 60.0
"""Seconds between two checks for data from a device, and after how many seconds to ask the device itself, which may
have failed."""

PACK_AT = 256
"""How many small tensors may wait before they are packed into one: limits memory between two ticks."""

UNKNOWN = -1
"""The step of a sample if nobody has said it."""

Pending: TypeAlias = tuple[Callable[[Numbers], None], Tensor]
"""A function that takes numbers on the CPU, and the tensor that holds them now."""


_locks = weakref.WeakSet["ReentrantLock"]()


class ReentrantLock:
    """A reentrant lock that no thread of the parent holds in a forked process: those threads do not exist there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Replace the lock if another thread holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


def _renew_locks() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_locks)


class HostCopy:
    """Starts to copy tensors to the CPU when it is made, with one copy per device; waits only in :meth:`deliver`.

    >>> received = []
    >>> HostCopy([(received.append, torch.ones(2)), (received.append, torch.zeros(1))]).deliver()
    >>> received
    [array([1., 1.]), array([0.])]
    """

    def __init__(self, pending: Iterable[Pending]) -> None:
        by_kind: dict[Any, list[Pending]] = defaultdict(list)
        for receive, tensor in pending:
            by_kind[tensor.device, tensor.dtype].append((receive, tensor))
        self._copies = [_Copy(own) for own in by_kind.values()]
        self._is_delivered = False

    def deliver(self) -> None:
        """Wait for the copies, and hand everything out; for each device in the given order."""
        if not self._is_delivered:
            self._is_delivered = True
            for copy in self._copies:
                copy.deliver()


class _Copy:
    """The tensors of one device.

    Another thread than the one that made it must not call CUDA: a graph may be captured meanwhile, and such a call
    would end the capture. It looks at a number in pinned memory instead, which the device writes after all others.
    """

    def __init__(self, pending: list[Pending]) -> None:
        self._receivers = [(receive, tensor.shape) for receive, tensor in pending]
        self._thread = threading.get_ident()
        flat = torch.cat([tensor.reshape(-1) for _, tensor in pending])
        self._arrived: Any = None
        if flat.is_cuda:
            self._host = torch.empty(flat.numel() + 1, dtype=flat.dtype, device=HOST, pin_memory=True)
            self._host[-1] = 0
            self._host[:-1].copy_(flat, non_blocking=True)
            self._host[-1:].copy_(torch.ones(1, dtype=flat.dtype, device=flat.device), non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._host = flat

    def _wait(self) -> None:
        if threading.get_ident() != self._thread:
            last, deadline = self._host.numpy()[-1:], time.monotonic() + LONG
            while not last[0] and time.monotonic() < deadline:
                time.sleep(PAUSE)
            if last[0]:
                return
        self._arrived.synchronize()

    def deliver(self) -> None:
        there = self._host
        if self._arrived is not None:
            self._wait()
            there = there[:-1]
        parts = torch.split(there.cpu().double(), [shape.numel() for _, shape in self._receivers])
        for (receive, shape), part in zip(self._receivers, parts, strict=True):
            receive(part.reshape(shape).numpy())


def as_sample(number: SupportsFloat | Tensor) -> float | Tensor:
    """One number: a float or, of a tensor, a float64 scalar, cut from its graph and still on its device.

    The result may share its memory with the tensor, which must not be changed afterwards.
    """
    if not isinstance(number, Tensor):
        return float(number)
    if number.numel() != 1:
        raise ValueError(f"a sample is one number, not a tensor of shape {tuple(number.shape)}")
    # each of these costs as much as a small model's arithmetic, so skip what is not needed
    number = number.detach() if number.requires_grad else number
    number = number.reshape(()) if number.dim() else number
    wide = wide_dtype(number)
    return number if number.dtype == wide else number.to(wide)


def copied_sample(number: SupportsFloat | Tensor) -> float | Tensor:
    """The same for a tensor that other code may change later."""
    if isinstance(number, Tensor):
        if number.is_complex():
            raise TypeError("a sample is one real number, not a complex one")
        number = number.detach().clone()
    return as_sample(number)


class Arrived(NamedTuple):
    """What has arrived on the CPU, in the order it was added: places, a number or row for each, and steps."""

    places: Places
    numbers: Numbers
    steps: Places


class Waiting:
    """Takes numbers, scalar tensors or rows one by one, each with a place; tensors stay on their device.

    >>> waiting = Waiting()
    >>> waiting.add(3, 0.5)
    >>> waiting.add(1, torch.tensor(2.0, dtype=torch.float64), step=7)
    >>> HostCopy(waiting.take()).deliver()
    >>> waiting.arrived()
    Arrived(places=array([3, 1]), numbers=array([0.5, 2. ]), steps=array([-1,  7]))
    """

    def __init__(self) -> None:
        self._added = 0
        self._queues: dict[torch.device | None, _Queue] = {}
        self._arrived: list[tuple[list[int], list[int], list[int], Numbers]] = []

    def __bool__(self) -> bool:
        return bool(self._queues or self._arrived)

    def add(self, place: int, sample: float | Tensor, step: int = UNKNOWN) -> None:
        """Add a number or a tensor, which must not change any more; all tensors in one object have the same shape."""
        queue = self._queue(sample.device if isinstance(sample, Tensor) else None)
        queue.orders.append(self._added)
        queue.places.append(place)
        queue.steps.append(step)
        queue.samples.append(sample)
        self._added += 1
        if len(queue.samples) >= PACK_AT:
            queue.pack()

    def add_all(
        self, places: Sequence[int], samples: Tensor | Sequence[float], steps: Sequence[int] | None = None
    ) -> None:
        """Add one number for each place, maybe as a tensor with one dimension, and the step of each if it is known."""
        is_there = isinstance(samples, Tensor)
        queue = self._queue(samples.device if isinstance(samples, Tensor) else None)
        queue.pack()
        queue.orders.extend(range(self._added, self._added + len(places)))
        queue.places.extend(places)
        queue.steps.extend([UNKNOWN] * len(places) if steps is None else steps)
        queue.packed.append(samples if is_there else np.array(samples))
        self._added += len(places)
        if len(queue.packed) >= PACK_AT:
            queue.packed[:] = [torch.cat(queue.packed) if is_there else np.concatenate(queue.packed)]

    def _queue(self, device: torch.device | None) -> "_Queue":
        queue = self._queues.get(device)
        if queue is None:
            queue = self._queues[device] = _Queue([], [], [], [], [])
        return queue

    def take(self) -> list[Pending]:
        """What to copy to the CPU; nothing waits any more, and after the copy :meth:`arrived` has it."""
        queues, self._queues = self._queues, {}
        pending: list[Pending] = []
        for device, queue in queues.items():
            queue.pack()
            if device is None:
                self._arrived.append((queue.orders, queue.places, queue.steps, np.concatenate(queue.packed)))
            else:
                whole = queue.packed[0] if len(queue.packed) == 1 else torch.cat(queue.packed)
                pending.append((self._receiver(queue), whole))
        return pending

    def _receiver(self, queue: "_Queue") -> Callable[[Numbers], None]:
        return lambda numbers: self._arrived.append((queue.orders, queue.places, queue.steps, numbers))

    def arrived(self) -> Arrived:
        """What has arrived since the last call."""
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return Arrived(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
        orders, places, steps, numbers = zip(*arrived, strict=True)
        order = np.argsort(_joined(orders))
        return Arrived(_joined(places)[order], np.concatenate(numbers)[order], _joined(steps)[order])


def _joined(parts: Iterable[list[int]]) -> Places:
    return np.concatenate([np.array(part, np.int64) for part in parts])


class _Queue(NamedTuple):
    """What waits on one device."""

    orders: list[int]
    places: list[int]
    steps: list[int]
    samples: list[Any]
    packed: list[Any]

    def pack(self) -> None:
        """Put the samples so far into one tensor, or one array."""
        if self.samples:
            whole = torch.stack(self.samples) if isinstance(self.samples[0], Tensor) else np.array(self.samples)
            self.packed.append(whole)
            self.samples.clear()
