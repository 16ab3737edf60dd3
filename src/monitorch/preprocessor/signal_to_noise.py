"""How much of a gradient is noise, and how large gradients are in units of Adam's second moment."""

from ..engine.gradient_parts import PartsOfStep
from ..numerical.noise import estimate_noise, noise_scale
from .accumulating import AccumulatingPreprocessor
from .geometry import GradientGeometry

WHOLE = ("all parameters",)
"""The key of the only accumulators; no layer has it, since their names are strings."""


class GradientNoise(AccumulatingPreprocessor):
    """The true gradient and the noise of a step, estimated from its parts.

    Estimates of single steps are rough, and their quotient would be biased. So each of the two is averaged over the
    steps of a tick, and the means are divided. With several processes, each estimates from its own parts and the common
    mean. Averaging these gives the estimate from all parts.

    >>> import torch
    >>> noise = GradientNoise()
    >>> noise.process_parts(PartsOfStep(2, mean_square=torch.tensor(5.0), square_of_mean=torch.tensor(4.0)))
    >>> round(noise.scale, 6)  # |G|^2 = 3, and the variance of the mean of two parts is 1
    0.333333
    """

    statistics = ("square", "variance")

    def __init__(self) -> None:
        super().__init__(inplace=True)

    def process_parts(self, step: PartsOfStep) -> None:
        """Take one step."""
        square, variance = estimate_noise(step.parts, step.mean_square, step.square_of_mean)
        self._kept.series.add(WHOLE, square, variance / step.parts)  # the mean over all parts has less variance

    @property
    def scale(self) -> float | None:
        """The noise scale in units of a step's batch; None if there are no samples."""
        found = self._kept.series.values().get(WHOLE)
        return noise_scale(found[0].mean, found[1].mean) if found is not None and found[0].count else None


class ScaledGradients(GradientGeometry):
    """The root mean square of each gradient that was divided by the root of its second moment.

    A class of its own, since what reads norms of gradients must not read these.
    """

    def __init__(self, inplace: bool) -> None:
        super().__init__(correlation=False, normalize=True, inplace=inplace)
