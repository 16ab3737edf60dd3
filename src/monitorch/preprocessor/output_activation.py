"""Which neurons are active."""

from collections.abc import Callable

from ..engine.meter import Request
from .outputs import OutputPreprocessor
from .rates import RateStatistics


class OutputActivation(RateStatistics, OutputPreprocessor):
    """Share of output entries that are not zero and, with ``death``, share of channels that are all zero.

    Args:
        death: also record the death rate.
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too.
        evaluation_from_grad: how to tell evaluation from training, see ``is_training_pass``.
        eps: numbers up to this absolute value count as zero.
        channel_last: where the channels are: ``[B, ..., C]`` if true, else ``[B, C, ...]``; or a function of the
            layer name that says which.
        output_index: which part of the output to measure; by default its first floating tensor.
        exact_death: with several processes, count a channel as dead only if it is dead in all of them.
    """

    def __init__(
        self,
        death: bool,
        inplace: bool,
        record_eval: bool,
        evaluation_from_grad: bool | None,
        eps: float = 1e-8,
        channel_last: bool | Callable[[str], bool] = False,
        *,
        output_index: int | str | None = None,
        exact_death: bool = False,
    ) -> None:
        self._count(death, eps)
        super().__init__(inplace, record_eval, evaluation_from_grad, output_index)
        self.channel_last, self.exact_death = channel_last, exact_death

    def request(self) -> Request:
        """What gatherers should measure for it."""
        rates = self.eps, self.channel_last
        return Request(self.output_index, rates, passes=self.passes(), exact_death=self.exact_death)
