"""Reducers that fold each sample into their state."""

import inspect
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..errors import LifecycleError
from .record import RecordTensor
from .reducer import RecordReducer
from .sample import as_tensor
from .shaped import Fill


class FoldReducer(RecordReducer):
    """A reducer with one state that each sample is folded into; a subclass writes :meth:`fold`.

    All samples must have the shape of the first one. Other samples are skipped and counted, never broadcast.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
        fill: the value of slots before the first sample.
    """

    data_: RecordTensor
    _shapes: tuple[tuple[int, ...], ...] | None

    def __init__(
        self,
        step_time: float,
        duration: float,
        inclusive: bool = False,
        inplace: bool = False,
        fill: Fill = 0,
        **kw: Any,
    ) -> None:
        super().__init__(step_time, duration, inclusive, inplace, **kw)
        RecordTensor.create(self, "data_", self._dt, self._duration, None, inclusive=inclusive, fill=fill)
        self.add_record("data_")
        self.register_extra("_count", 0)
        self.register_extra("_shapes", None)

    @abstractmethod
    def fold(self, *args: Any) -> Tensor:
        """The next state, from the tensors of a sample and, as last argument, the current state (None at first)."""

    @abstractmethod
    def interpolate(self, prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
        """The value between two states, ``sample_at`` after the older one."""

    @property
    def count(self) -> int:
        """How many samples were folded."""
        return int(self._count)

    @property
    def data(self) -> Tensor:
        """The storage, in the order of its slots."""
        return self.data_.value

    @data.setter
    def data(self, value: Tensor) -> None:
        if value.shape != self.data.shape:
            raise LifecycleError(f"data has shape {tuple(self.data.shape)}: it cannot be set to {tuple(value.shape)}")
        self.data_.value = value

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor | None:
        """Fold a sample; returns the new state, or None if the sample was skipped."""
        keep_graph = self.differentiable and torch.is_grad_enabled()
        # tensors made in inference mode cannot be written to later
        with torch.inference_mode(False), torch.set_grad_enabled(keep_graph):
            sample = tuple(self._observation(each) for each in inputs)
            shapes = tuple(tuple(each.shape) for each in sample)
            if self._shapes is None:
                self._check_number(len(sample))
            elif shapes != self._shapes:
                self.skip(f"its shape is {_listed(shapes)}, but the first one had {_listed(self._shapes)}. {CURE}")
                return None
            state = self.fold(*sample, self._state_for(*sample))
            self.push(state)
        self._shapes = shapes
        self._count += 1
        return state

    def push(self, inputs: Tensor, **kwargs: Any) -> None:
        """Store a state as it is."""
        self.data_.push(inputs, inplace=self.inplace)

    def peek(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The current state, as a copy."""
        state = self.data_.peek() if self._count else None
        return None if state is None else state.clone()

    def view(self, time: float | Tensor, tolerance: float = 1e-7) -> Tensor | None:
        """The state at a time before now."""
        if not self._count:
            return None
        return self.data_.select(time, self.interpolate, tolerance=tolerance)

    def dump(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """All states ``(N, *S)``, newest first."""
        return self.data.roll(-self.data_.pointer, 0).flip(0) if self._count else None

    def clear(self, keepshape: bool = False) -> None:  # type: ignore[override]
        """Forget all samples; ``keepshape`` keeps storage of their shape."""
        self._count = self._skipped = 0
        if keepshape and not self.data_.ignored:
            self.data_.reset(self.data_.fill)
        else:
            self._shapes = None
            self.data_.deinitialize()

    def _observation(self, value: Any) -> Tensor:
        data = as_tensor(value)
        if data is None or data.is_nested:
            kind = type(value).__name__ if data is None else "a nested tensor"
            raise TypeError(f"{type(self).__name__} takes tensors and numbers, not {kind}. {CURE}")
        if data.layout != torch.strided:
            data = data.to_dense()
        return data if self.differentiable else data.detach()

    def _check_number(self, given: int) -> None:
        try:
            inspect.signature(self.fold).bind(*range(given + 1))
        except TypeError:
            raise TypeError(f"{type(self).__name__} cannot take {given} tensors in one sample. {CURE}") from None

    def _state_for(self, observation: Tensor, *others: Tensor) -> Tensor | None:
        """The state, on the device of the sample."""
        if not self._count:
            return None
        if self.data.device != observation.device:
            self.data_.value = self.data.to(observation.device)
        return self.data_.peek()


class PlainReducer(FoldReducer):
    """A fold reducer without further options.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
    """

    def __init__(
        self,
        step_time: float,
        duration: float = 0.0,
        inclusive: bool = False,
        inplace: bool = False,
        *,
        differentiable: bool = False,
    ) -> None:
        super().__init__(step_time, duration, inclusive, inplace, differentiable=differentiable)


CURE = "Give the monitor a map_ that returns what to keep as a tuple, such as (y.mean(0),) for a mean over the batch"


def _listed(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " and ".join(map(str, shapes))
