"""A ring buffer of the last samples of a tensor."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import LifecycleError, OptionError
from .extrapolation import extrap_nearest
from .interpolation import interp_nearest
from .module import Module
from .ring import Place, axis, locate, not_negative, positive, rounding, run, slots, spread
from .sample import common_dtype, is_whole, running_dtype
from .shaped import Fill, ShapedTensor, blank, is_blank


def _setting(role: str, checked: Callable[[str, Any], Any], doc: str) -> Any:
    """A property that is stored on the owner and determines the number of slots."""

    def read(self: "RecordTensor") -> Any:
        return self._get(role)

    def write(self: "RecordTensor", value: Any) -> None:
        self._set(role, checked(role, value))
        self.fit()

    return property(read, write, doc=doc)


class RecordAttributes(NamedTuple):
    """The names of the owner's attributes for the parts of a record."""

    data: str
    constraints: str
    dt: str
    duration: str
    inclusive: str
    pointer: str


class RecordTensor(ShapedTensor):
    """A ring buffer of the last N samples, all of one shape S, stored on a module.

    Times are measured back from now: 0 is the newest sample, ``dt * (N - 1)`` the oldest. Storage takes the dtype and
    device of the first sample. It moves to the device of later samples, and widens if their dtype does not fit. Writing
    makes new storage, through which gradients flow; ``inplace=True`` writes into the existing one.

    Args:
        owner, name, persist_data, persist_constraints, strict, live: as for :class:`ShapedTensor`.
        step_time: time between samples.
        duration: how far back samples are kept.
        value: the first sample, put into every slot, as a tensor or a parameter; or None.
        constraints: sizes of dimensions of a sample.
        persist_temporal: save step time, duration and inclusive in the owner's state dictionary; the pointer always is.
        inclusive: add one slot, so that ``duration`` itself can be read.
        fill: the value of slots before their first sample.

    >>> record = RecordTensor(owner := Module(), "speed", 0.5, 1.5, None)
    >>> for value in (1.0, 2.0, 4.0):
    ...     record.push(torch.tensor(value))
    >>> record.select(0.5), record.select(0.3)
    (tensor(2.), tensor(2.))
    """

    _attributes = RecordAttributes

    def __init__(
        self,
        owner: Module,
        name: str,
        step_time: float,
        duration: float,
        value: Tensor | None,
        constraints: dict[int, int] | None = None,
        persist_data: bool = True,
        persist_constraints: bool = False,
        persist_temporal: bool = False,
        strict: bool = True,
        live: bool = False,
        inclusive: bool = False,
        *,
        fill: Fill = 0,
    ) -> None:
        dt, duration = positive("step_time", step_time), not_negative("duration", duration)
        sizes = {0: slots(dt, duration, inclusive)}
        sizes |= {axis(dim): size for dim, size in (constraints or {}).items()}
        if value is not None and not is_blank(value):
            in_every_slot = value.detach().expand(sizes[0], *value.shape).clone()
            if isinstance(value, nn.Parameter):
                value.data = in_every_slot
            else:
                value = in_every_slot
        super().__init__(owner, name, value, sizes, persist_data, persist_constraints, strict, live, fill=fill)
        self._keep("pointer", 0, True)
        for role, setting in {"dt": dt, "duration": duration, "inclusive": bool(inclusive)}.items():
            self._keep(role, setting, persist_temporal)

    @property
    def recordsz(self) -> int:
        """N, the number of slots."""
        return slots(self.dt, self.duration, self.inclusive)

    @property
    def shape(self) -> torch.Size | None:
        """The shape S of a sample."""
        return None if self.ignored else self.value.shape[1:]

    @property
    def pointer(self) -> int:
        """The slot that is written next."""
        return int(self._get("pointer"))

    @property
    def constraints(self) -> dict[int, int]:
        """Sizes of dimensions of a sample."""
        return {dim - (dim > 0): size for dim, size in self._get("constraints").items() if dim}

    dt = _setting(
        "dt", positive, "Time between samples; changing it, or one of the next two, keeps the newest samples."
    )
    duration = _setting("duration", not_negative, "How far back samples are kept.")
    inclusive = _setting("inclusive", lambda _, value: bool(value), "Whether ``duration`` itself can be read.")

    def initialize(
        self,
        shape: tuple[int, ...],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        fill: Fill | None = None,
    ) -> None:
        """Make storage for samples of ``shape``; device and dtype stay as they are unless given."""
        device, dtype = device or self.value.device, dtype or self.value.dtype
        fill = self.fill if fill is None else fill
        fresh = torch.full((self.recordsz, *shape), fill, device=device, dtype=dtype)
        self._check(fresh)
        self._restart(fresh)

    def deinitialize(self, use_uninitialized: bool = False) -> None:
        """Free the storage; ``use_uninitialized`` puts one of torch's lazy tensors in its place."""
        present = self.value
        lazy: Any = nn.UninitializedBuffer
        if isinstance(present, nn.Parameter):
            lazy = partial(cast(Any, nn.UninitializedParameter), present.requires_grad)
        self._restart(lazy(device=present.device, dtype=present.dtype) if use_uninitialized else blank(present))

    def reset(self, fill: Fill | None = 0) -> None:
        """Overwrite all samples with ``fill``; None only aligns them."""
        self.align()
        if fill is not None:
            self._store(torch.full_like(self.value, fill))

    def align(self, index: int = 0) -> None:
        """Rotate the storage so that the oldest sample is in slot ``index``."""
        data = self._filled()
        self._restart(data.roll(index - self.pointer, 0), index % len(data))

    def fit(self) -> None:
        """Give the storage N slots: drops the oldest samples, or adds slots with ``fill`` before them."""
        if not self.ignored and len(self.value) != self.recordsz:
            self.align()
        super().reconstrain(0, self.recordsz)

    def follow(self, obs: Tensor) -> None:
        """Move to the device of an observation; widen the dtype if needed."""
        self._store(self.value.to(obs.device, common_dtype(self.value, obs)))

    def incr(self, pos: int = 1) -> None:
        """Move the pointer ahead."""
        self._set("pointer", (self.pointer + pos) % self._filled().shape[0])

    def decr(self, pos: int = 1) -> None:
        """Move the pointer back."""
        self.incr(-pos)

    def push(self, obs: Tensor, inplace: bool = False) -> None:
        """Write the newest sample over the oldest one."""
        if self.ignored:
            self.initialize(obs.shape, obs.device, self._dtype_for(obs))
        data = self._filled_for(obs)
        if data.dtype != obs.dtype or data.device != obs.device:
            self.follow(obs)
            data = self.value
        slot = self.pointer
        self._put(data, obs, slot, inplace)
        self._set("pointer", (slot + 1) % data.shape[0])

    def peek(self) -> Tensor | None:
        """The newest sample, as a view of the storage."""
        data = self.value
        return None if is_blank(data) else data[(self.pointer - 1) % data.shape[0]]

    def pop(self) -> Tensor:
        """Remove the newest sample and return it."""
        newest = self.read()
        self.decr()
        return newest

    @property
    def latest(self) -> Tensor | None:
        """The newest sample; setting it pushes a sample, deleting it removes the newest."""
        return self.peek()

    @latest.setter
    def latest(self, obs: Tensor) -> None:
        self.push(obs)

    @latest.deleter
    def latest(self) -> None:
        self.decr()

    def read(self, offset: int = 1) -> Tensor:
        """The sample ``offset`` slots before the pointer: 1 is the newest."""
        data = self._filled()
        return data[(self.pointer - offset) % data.shape[0]]

    def write(self, obs: Tensor, offset: int = 0, inplace: bool = False) -> None:
        """Overwrite the sample ``offset`` slots before the pointer."""
        data = self._filled_for(obs)
        self._put(data, obs.to(data), (self.pointer - offset) % data.shape[0], inplace)

    def readrange(self, length: int, offset: int | Tensor = 1, forward: bool = False) -> Tensor:
        """Several samples ``(*S, length)``, oldest first: the last is at ``offset``, or with ``forward`` the first."""
        data = self._filled()
        return data.gather(0, run(data, length, self.pointer, offset, forward)).movedim(0, -1)

    def writerange(self, obs: Tensor, offset: int | Tensor = 0, forward: bool = False, inplace: bool = False) -> None:
        """Overwrite the samples that :meth:`readrange` would read."""
        data = self._filled_for(obs[..., 0])
        self._scatter(inplace, (run(data, obs.shape[-1], self.pointer, offset, forward), obs.movedim(-1, 0)))

    def select(
        self,
        time: float | Tensor,
        interp: Callable[..., Tensor] | None = None,
        *,
        tolerance: float = 1e-6,
        offset: int = 1,
        interp_kwargs: dict[str, Any] | None = None,
    ) -> Tensor:
        """The value at a time before now; between two samples ``interp`` computes it, by default the nearest.

        A tensor of times has one for each element of a sample or, with one more dimension, several for each.
        """
        place, several = self._locate(time, tolerance, offset)
        older, newer = (self.value.gather(0, slot) for slot in (place.older, place.newer))
        if isinstance(time, Tensor) or not bool(place.exact.all()):
            between = partial(interp or interp_nearest, **(interp_kwargs or {}))
            newer = torch.where(place.exact, newer, between(older, newer, place.since, self.dt))
        return newer.movedim(0, -1) if several else newer[0]

    def insert(
        self,
        obs: Tensor,
        time: float | Tensor,
        extrap: Callable[..., tuple[Tensor, Tensor]] | None = None,
        *,
        tolerance: float = 1e-6,
        offset: int = 0,
        inplace: bool = False,
        extrap_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Write a value at a time before now; between two samples ``extrap`` computes the new values of both.

        Time 0 is the slot that is written next or, with ``offset=1``, the newest sample.
        """
        for given in (obs, time) if isinstance(time, Tensor) else (obs,):
            self._filled_for(given)
        (exact, *ring, since), _ = self._locate(time, tolerance, offset)
        between = partial(extrap or extrap_nearest, **(extrap_kwargs or {}))
        obs, neighbours = obs.to(self.value)[None], (self.value.gather(0, slot) for slot in ring)
        pair = between(obs, since, *neighbours, self.dt)
        new = (torch.where(exact, obs, each.to(obs)) for each in pair)
        self._scatter(inplace, *zip(ring, new, strict=True))

    def reconstrain(self, dim: int, size: int | None) -> None:
        """Add, change or (None) remove a constraint on samples. Samples that change their size keep their end."""
        super().reconstrain(axis(dim), size)

    def _dtype_for(self, obs: Tensor) -> torch.dtype:
        """The dtype for observations like this one and for the fill value."""
        if isinstance(self.fill, complex):
            return torch.promote_types(running_dtype(obs), torch.complex64)
        is_fraction = not float(self.fill).is_integer()
        return running_dtype(obs) if is_whole(obs) and is_fraction else obs.dtype

    def _locate(self, time: float | Tensor, tolerance: float, offset: int) -> tuple[Place, bool]:
        data = self._filled()
        times, several = spread(time, data.shape[1:], data.device)
        slack = tolerance + rounding(time, times)
        place = locate(times, self.dt, len(data), self.pointer - offset, slack)
        precision = data.dtype.to_real() if data.dtype.is_floating_point or data.is_complex() else torch.float32
        return place._replace(since=place.since.to(precision)), several

    def _put(self, data: Tensor, obs: Tensor, slot: int, inplace: bool) -> None:
        if inplace:
            with torch.no_grad():
                data[slot] = obs
        else:
            self._store(torch.select_scatter(data, obs.to(data.dtype), 0, slot))

    def _scatter(self, inplace: bool, *writes: tuple[Tensor, Tensor]) -> None:
        data = self._filled()
        if inplace:
            with torch.no_grad():
                for slot, values in writes:
                    data.scatter_(0, slot, values.to(data))
        else:
            for slot, values in writes:
                data = data.scatter(0, slot, values.to(data))
            self._store(data)

    def _filled(self) -> Tensor:
        data = self.value
        if is_blank(data):
            raise LifecycleError(f"the record {self.name!r} is empty: push a sample or call initialize() first")
        return data

    def _filled_for(self, obs: Tensor) -> Tensor:
        data = self._filled()
        if obs.shape != data.shape[1:]:
            raise OptionError(f"the record holds samples of shape {tuple(data.shape[1:])}, not {tuple(obs.shape)}")
        return data

    def _restart(self, data: Tensor, pointer: int = 0) -> None:
        self._store(data)
        self._set("pointer", pointer)
