"""Time since something happened."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError
from .fold import FoldReducer
from .sample import running_dtype

INITIAL = {"inf": float("inf"), "zero": 0.0, "nan": float("nan")}


class EventReducer(FoldReducer):
    """Time since a criterion last held, for each element.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
        criterion: function of a sample that returns a bool tensor: where it holds.
        initial: the value before it has ever held: ``"inf"``, ``"nan"``, or ``"zero"`` to count from the first sample.

    >>> reducer = EventReducer(1.0, lambda sample: sample > 0)
    >>> for value in (1.0, -1.0, -1.0):
    ...     _ = reducer(torch.tensor(value))
    >>> reducer.latest
    tensor(2.)
    """

    def __init__(
        self,
        step_time: float,
        criterion: Callable[[Tensor], Tensor],
        initial: str = "inf",
        duration: float = 0.0,
        inclusive: bool = False,
        inplace: bool = False,
        **kw: Any,
    ) -> None:
        if str(initial).lower() not in INITIAL:
            raise OptionError.unknown("initial", initial, INITIAL)
        fill = INITIAL[str(initial).lower()]
        super().__init__(step_time, duration, inclusive, inplace, fill, **kw)
        self.criterion = checked_criterion(criterion)

    def fold(self, obs: Tensor, state: Tensor | None) -> Tensor:
        """Zero where the criterion holds; elsewhere one more step."""
        happened = booleans(self.criterion(obs))
        if state is None:
            dtype = running_dtype(obs.real if obs.is_complex() else obs)
            waited = torch.full(happened.shape, self.data_.fill, dtype=dtype, device=obs.device)
        else:
            waited = state + self.dt
        return torch.where(happened, 0.0, waited)

    def interpolate(self, prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
        """The time at the older state, plus the time since."""
        return prev_data + sample_at


def checked_criterion(criterion: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The criterion, checked to be callable."""
    if not callable(criterion):
        raise TypeError(f"criterion is a function that returns a bool tensor, not {criterion!r}")
    return criterion


def booleans(answer: Tensor) -> Tensor:
    """The result of a criterion, checked to be a bool tensor."""
    if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
        kind = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
        raise TypeError(f"a criterion must return a bool tensor, as x > 0 does, not {kind}")
    return answer
