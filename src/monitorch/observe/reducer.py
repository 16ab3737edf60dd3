"""The base of reducers, and of those that keep their state in records."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..errors import LifecycleError, OptionError, warn
from .module import Module
from .record import RecordTensor
from .ring import not_negative, positive


class Reducer(Module, ABC):
    """Reduces samples over time and stores them.

    A subclass also writes ``forward(*inputs)``, which takes one sample; a lens shows what it returns. Before the first
    sample, ``latest``, ``peek``, ``view`` and ``dump`` return None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_extra("_skipped", 0)
        self._told = False

    @abstractmethod
    def clear(self, **kwargs: Any) -> None:
        """Forget all samples."""

    @abstractmethod
    def view(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The state at a given time."""

    @abstractmethod
    def dump(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """All states over time."""

    @abstractmethod
    def peek(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The current state."""

    @abstractmethod
    def push(self, inputs: Tensor, **kwargs: Any) -> None:
        """Store a state."""

    @property
    def latest(self) -> Tensor | None:
        """The current state."""
        return self.peek()

    @property
    def skipped(self) -> int:
        """How many samples were skipped."""
        return int(self._skipped)

    def skip(self, reason: str) -> None:
        """Count a sample that is not recorded; the first one gives a warning."""
        self._skipped += 1
        if not self._told:
            self._told = True
            warn(f"{type(self).__name__} leaves out a sample: {reason}")


class RecordReducer(Reducer):
    """A reducer that keeps its states in records, all with the same times.

    Args:
        step_time: time between samples.
        duration: how far back states are kept.
        inclusive: keep one more state, so that ``duration`` itself can be read.
        inplace: write into the storage instead of making new storage for each sample; the numbers are the same.
        differentiable: keep autograd graphs and every tensor in them; by default states are detached.
    """

    def __init__(
        self,
        step_time: float,
        duration: float,
        inclusive: bool = False,
        inplace: bool = False,
        *,
        differentiable: bool = False,
    ) -> None:
        super().__init__()
        self._dt, self._duration = positive("step_time", step_time), not_negative("duration", duration)
        self._inclusive, self._records = bool(inclusive), list[str]()
        self.differentiable, self.inplace = bool(differentiable), inplace

    def __init_subclass__(cls) -> None:
        """Give each constructor a signature that also shows the inherited options."""
        super().__init_subclass__()
        if "__init__" in cls.__dict__:
            own = inspect.signature(cls.__init__).parameters
            passed_on = inspect.signature(cls.__mro__[1].__init__).parameters  # type: ignore[misc]
            shown = [option for option in own.values() if option.kind is not option.VAR_KEYWORD]
            if len(shown) < len(own):
                shown += [o for name, o in passed_on.items() if o.kind is o.KEYWORD_ONLY and name not in own]
            cls.__init__.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]

    def add_record(self, *names: str) -> None:
        """Give records, which are attributes of this reducer, its step time and duration."""
        for name in names:
            if not hasattr(self, name):
                raise LifecycleError(f"{type(self).__name__} has no attribute {name!r}: create the record first")
            if not isinstance(getattr(self, name), RecordTensor):
                raise TypeError(f"{name!r} is a {type(getattr(self, name)).__name__}, not a RecordTensor")
        for name in names:
            record = getattr(self, name)
            record.dt, record.duration, record.inclusive = self._dt, self._duration, self._inclusive
            self._records += [name] if name not in self._records else []

    @property
    def dt(self) -> float:
        """Time between samples; changing it keeps the newest states."""
        return self._dt

    @dt.setter
    def dt(self, value: float) -> None:
        self._dt = positive("dt", value)
        for record in self._each_record():
            record.dt = self._dt

    @property
    def duration(self) -> float:
        """How far back states are kept; changing it keeps the newest states."""
        return self._duration

    @duration.setter
    def duration(self, value: float) -> None:
        self._duration = not_negative("duration", value)
        for record in self._each_record():
            record.duration = self._duration

    @property
    def inplace(self) -> bool:
        """Whether samples are written into the storage, instead of making new storage for each."""
        return self._inplace

    @inplace.setter
    def inplace(self, value: bool) -> None:
        if value and self.differentiable:
            raise OptionError("inplace=True keeps no graphs: differentiable=True needs inplace=False")
        self._inplace = bool(value)

    def _each_record(self) -> Iterator[RecordTensor]:
        return (getattr(self, name) for name in self._records)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        for record in self._each_record():  # the saved state may have another duration
            record.fit()
