"""Time since something happened."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError
from .fold import FoldReducer, floating

INITIAL = {"inf": float("inf"), "zero": 0.0, "nan": float("nan")}


class EventReducer(FoldReducer):
    """Time since a criterion last held, for each element.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
        criterion: says of a sample, element by element, whether it happened: a function that returns a bool tensor.
        initial: what is reported before it happened first: ``"inf"``, ``"zero"`` (time since the beginning) or
            ``"nan"``.

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
        self.criterion = criterion

    def fold(self, obs: Tensor, state: Tensor | None) -> Tensor:
        """Zero where it happened; elsewhere one step more."""
        happened = booleans(self.criterion(obs))
        if state is None:
            dtype = floating(obs.abs() if obs.is_complex() else obs).dtype
            waited = torch.full(happened.shape, self.data_.fill, dtype=dtype, device=obs.device)
        else:
            waited = state + self.dt
        return torch.where(happened, 0.0, waited)

    def interpolate(self, prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
        """Time goes on."""
        return prev_data + sample_at


def booleans(answer: Tensor) -> Tensor:
    """What a criterion said, if it is an answer."""
    if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
        kind = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
        raise TypeError(f"a criterion returns a bool tensor, such as x > 0 does, not {kind}")
    return answer
