"""The norm of the gradient of the whole model."""

from collections.abc import Mapping
from typing import Any

from ..numerical.series import Accumulator
from ..preprocessor.global_norm import GlobalNorm
from . import options
from .options import ALL, Strings
from .parameter_gradient_lens import ParameterGradientLens
from .views import NamedLines


class GradientNorm(ParameterGradientLens):
    """Norm of the gradient of all parameters together: at every step if that is cheap, otherwise at observed steps.

    It is the root of the sum of the squares of all gradients, the number that ``clip_grad_norm_`` returns: with
    ``optimizer=`` as the optimizer uses them, so after clipping it is at most the threshold;
    ``gradient="before_clip"`` shows what was clipped. A parameter that is used twice counts once; one that
    belongs to none of the known optimizers does not count.

    At observed steps it comes from what other lenses measure, so it costs nothing next to them. At other steps all
    gradients are read just before the optimizer's step, if that takes less than 0.5 % of the time of a step: this is
    measured in the first steps, on a GPU with the flight recorder's pass, and decided once. Without ``optimizer=``,
    with ``gradient="before_clip"``, and for sharded parameters it stays at observed steps.

    How to read it: a jump by a factor of ten or more comes before most loss spikes. A slow rise with a falling loss is
    common. If it falls towards 0 while the loss stays high, nothing reaches the parameters any more.

    Args:
        inplace: keep only running moments, instead of every sample.
        line_aggregation: how the steps of a tick are aggregated to one number.
        range_aggregation: which bands to show beside it.
    """

    def __init__(
        self,
        inplace: bool = True,
        *,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = ("min-max",),
    ) -> None:
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        self._norm = GlobalNorm(inplace)
        self._in_other_steps: Any = None
        super().__init__({ALL: self._norm}, [NamedLines("Gradient Norm", self._named, lines, bands)])

    def finish_attach(self) -> None:
        """Also look at steps that are not observed."""
        super().finish_attach()
        engine = self._state.engine
        if engine is not None and self._in_other_steps is None:
            self._in_other_steps = engine.norms.watch(self._norm)

    def detach_from_module(self) -> None:
        """Also leave these steps."""
        if self._in_other_steps is not None:
            self._in_other_steps.remove()
        self._in_other_steps = None
        super().detach_from_module()

    def _named(self, step: int | None) -> Mapping[str, Accumulator]:
        return {} if step is not None else {f"gradient_{name}": norms for name, norms in self._norm.norms.items()}
