"""Traces: events that decay over time.

A trace decays with ``exp(-time / time_constant)``. An event sets a *nearest* trace to its value, and adds its value
to a *cumulative* trace.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError
from .event import booleans, checked_criterion
from .fold import FoldReducer
from .interpolation import interp_expdecay
from .ring import positive
from .sample import floating

Criterion = Callable[[Tensor], Tensor]


class TraceReducer(FoldReducer):
    """Base of traces; a subclass says what an event is, and how it changes the trace."""

    def __init__(
        self,
        step_time: float,
        time_constant: float,
        amplitude: float | complex,
        *,
        duration: float = 0.0,
        inclusive: bool = False,
        inplace: bool = False,
        **kw: Any,
    ) -> None:
        super().__init__(step_time, duration, inclusive, inplace, **kw)
        self.time_constant = positive("time_constant", time_constant)
        self.amplitude = amplitude

    @property
    def decay(self) -> float:
        """The trace after one step of decay."""
        return math.exp(-self.dt / self.time_constant)

    @abstractmethod
    def combine(self, happened: Tensor, value: Tensor, decayed: Tensor) -> Tensor:
        """The new trace, from the decayed one and the value of the event where there is one."""

    def step(self, happened: Tensor, value: Tensor, state: Tensor | None) -> Tensor:
        """Let the trace decay, then apply the event."""
        return self.combine(happened, value, torch.zeros_like(value) if state is None else self.decay * state)

    def interpolate(self, prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
        """The older state, decayed."""
        return interp_expdecay(prev_data, next_data, sample_at, step_time, time_constant=self.time_constant)


class Nearest(TraceReducer):
    """Remembers only the last event."""

    def combine(self, happened: Tensor, value: Tensor, decayed: Tensor) -> Tensor:
        """An event replaces the trace."""
        return torch.where(happened, value, decayed)


class Cumulative(TraceReducer):
    """Remembers all events."""

    def combine(self, happened: Tensor, value: Tensor, decayed: Tensor) -> Tensor:
        """An event adds to the trace."""
        # not value * happened: NaN * 0 is NaN
        return torch.where(happened, decayed + value, decayed)


class Matching(TraceReducer):
    """An event is a sample that equals a target, within a tolerance if given.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
        time_constant: after this time 1/e of a trace is left.
        amplitude: size of an event.
        target: the sample that is an event.
        tolerance: how far from the target a sample may be.
    """

    def __init__(
        self,
        step_time: float,
        time_constant: float,
        amplitude: float | complex,
        target: float | complex,
        tolerance: float | None = None,
        *,
        duration: float = 0.0,
        inclusive: bool = False,
        inplace: bool = False,
        **kw: Any,
    ) -> None:
        kw |= {"duration": duration, "inclusive": inclusive, "inplace": inplace}
        super().__init__(step_time, time_constant, amplitude, **kw)
        if amplitude == 0:
            raise OptionError("amplitude=0 would make a trace of nothing but zeros")
        self.target = target
        self.tolerance = None if tolerance is None else positive("tolerance", tolerance)

    def fold(self, obs: Tensor, state: Tensor | None) -> Tensor:
        """Each match is an event of size ``amplitude``."""
        obs = floating(obs)
        close = obs == self.target if self.tolerance is None else (obs - self.target).abs() <= self.tolerance
        return self.step(close, torch.ones_like(obs) * self.amplitude, state)


class Conditional(TraceReducer):
    """An event is an element whose condition, given as a second tensor, is true; its size is ``scale * x + amplitude``.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
        time_constant: after this time 1/e of a trace is left.
        amplitude: what is added to each event.
        scale: what samples are multiplied by.
    """

    def __init__(
        self,
        step_time: float,
        time_constant: float,
        amplitude: float,
        scale: float,
        *,
        duration: float = 0.0,
        inclusive: bool = False,
        inplace: bool = False,
        **kw: Any,
    ) -> None:
        kw |= {"duration": duration, "inclusive": inclusive, "inplace": inplace}
        super().__init__(step_time, time_constant, float(amplitude), **kw)
        self.scale = float(scale)

    def fold(self, obs: Tensor, condition: Tensor, state: Tensor | None) -> Tensor:
        """Each element whose condition holds is an event."""
        return self.step(condition.bool(), self.scale * floating(obs) + self.amplitude, state)


class Scaled(Conditional):
    """An event is an element of a sample that meets a criterion; its size is ``scale * x + amplitude``.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.
        time_constant: after this time 1/e of a trace is left.
        amplitude: what is added to each event.
        scale: what samples are multiplied by.
        criterion: function of a sample that returns a bool tensor.
    """

    def __init__(
        self, step_time: float, time_constant: float, amplitude: float, scale: float, criterion: Criterion, **kw: Any
    ) -> None:
        super().__init__(step_time, time_constant, amplitude, scale, **kw)
        self.criterion = checked_criterion(criterion)

    def fold(self, obs: Tensor, state: Tensor | None) -> Tensor:  # type: ignore[override]
        """Each element that meets the criterion is an event."""
        return super().fold(obs, booleans(self.criterion(obs)), state)


class NearestTraceReducer(Nearest, Matching):
    """Trace of the last sample that equalled a target."""


class CumulativeTraceReducer(Cumulative, Matching):
    """Trace of all samples that equalled a target."""


class ScaledNearestTraceReducer(Nearest, Scaled):
    """Trace of the size of the last sample that met a criterion."""


class ScaledCumulativeTraceReducer(Cumulative, Scaled):
    """Trace of the sizes of all samples that met a criterion."""


class ConditionalNearestTraceReducer(Nearest, Conditional):
    """Trace of the size of the last sample whose condition held."""


class ConditionalCumulativeTraceReducer(Cumulative, Conditional):
    """Trace of the sizes of all samples whose condition held."""
