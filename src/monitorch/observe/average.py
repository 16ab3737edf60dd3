"""Averages over time."""

from typing import Any

from torch import Tensor

from .fold import PlainReducer
from .interpolation import interp_linear
from .ring import share
from .sample import floating


class AverageReducer(PlainReducer):
    """Base of averages: the first sample is the first state; between states it interpolates linearly."""

    def fold(self, obs: Tensor, state: Tensor | None) -> Tensor:
        """Move the state towards the sample."""
        return floating(obs) if state is None else self._towards(floating(obs), state)

    def interpolate(self, prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
        """Linear interpolation between two states."""
        return interp_linear(prev_data, next_data, sample_at, step_time)

    def _towards(self, obs: Tensor, state: Tensor) -> Tensor:
        raise NotImplementedError


class EMAReducer(AverageReducer):
    """Exponential moving average: ``alpha * sample + (1 - alpha) * state``; it starts at the first sample.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
        alpha: weight of the newest sample, from 0 to 1; use ``1 - exp(-step_time / tau)`` for a time constant tau.

    >>> reducer = EMAReducer(1.0, alpha=0.25)
    >>> for value in (2.0, 4.0):
    ...     _ = reducer(torch.tensor(value))
    >>> reducer.latest
    tensor(2.5000)
    """

    def __init__(
        self,
        step_time: float,
        alpha: float,
        duration: float = 0.0,
        inclusive: bool = False,
        inplace: bool = False,
        **kw: Any,
    ) -> None:
        super().__init__(step_time, duration, inclusive, inplace, **kw)
        self.alpha = share("alpha", alpha)

    def _towards(self, obs: Tensor, state: Tensor) -> Tensor:
        return self.alpha * obs + (1 - self.alpha) * state


class CAReducer(AverageReducer):
    """Cumulative average: the mean of all samples since the last ``clear()``.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
    """

    def _towards(self, obs: Tensor, state: Tensor) -> Tensor:
        return state + (obs - state) / (self.count + 1)
