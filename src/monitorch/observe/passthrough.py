"""Samples as they are."""

from torch import Tensor

from .fold import PlainReducer
from .interpolation import interp_previous


class PassthroughReducer(PlainReducer):
    """Keeps the last samples, unchanged and in their own dtype.

    Args:
        step_time, duration, inclusive, inplace, differentiable: as for :class:`RecordReducer`.

    >>> reducer = PassthroughReducer(1.0, duration=3.0)
    >>> for value in (5.0, 6.0):
    ...     _ = reducer(torch.tensor(value))
    >>> reducer.latest, reducer.dump()
    (tensor(6.), tensor([6., 5., 0.]))
    """

    def fold(self, obs: Tensor, state: Tensor | None) -> Tensor:
        """The sample."""
        return obs

    def interpolate(self, prev_data: Tensor, next_data: Tensor, sample_at: Tensor, step_time: float) -> Tensor:
        """The older sample, until the next one comes."""
        return interp_previous(prev_data, next_data, sample_at, step_time)
