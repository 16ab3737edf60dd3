"""How much of each step is noise, and whether Adam's estimate of gradient sizes is right."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine.distributed_tensors import is_distributed
from ..engine.gradient_parts import GradientParts
from ..engine.parameters import locate_parameter
from ..engine.second_moments import SecondMomentTap
from ..errors import warn
from ..gatherer.step_gatherers import SecondMomentGatherer
from ..preprocessor.signal_to_noise import GradientNoise, ScaledGradients
from . import options
from .options import ALL, Strings
from .parameter_lens import ParameterLens
from .views import ComputedLines, LayerLines, Source

NOISE_SCALE = "Gradient Noise Scale"


class SignalToNoise(ParameterLens):
    """The gradient noise scale of the model, and the size of each gradient in units of Adam's second moment.

    **Gradient Noise Scale** is tr(Sigma) / |G|^2: the variance of the gradient over the squared norm of the true one,
    in batches of one step, or in samples with ``batch_size=``. In a batch of that size noise is as large as the
    gradient. Far above 1 batch steps are mostly noise: a larger batch, or a lower learning rate. Far below 1 a smaller
    batch would do as well. It is infinite if the gradient is hidden by noise. Estimating it needs several parts per
    step: the micro-batches of gradient accumulation, the processes of DistributedDataParallel, or both; else it is not
    shown, and ``inspector.probe`` measures it. Each backward pass between two steps is taken for a micro-batch of the
    same loss. The two numbers are averaged over the steps of a tick, and then divided. It is not shown where parameters
    are sharded (``fully_shard``): no process sees the gradient of its own batch there.

    **Adam Gradient RMS** is sqrt(mean(g^2 / v)) of each parameter, with g in ``p.grad`` and v the second moment after
    the step, bias-corrected, at least eps^2. For Adam, AdamW and whatever keeps ``exp_avg_sq`` and ``step``; with
    amsgrad v is ``max_exp_avg_sq``, the one it divides by. It is at or below 1 while gradients stay as large as they
    were. Well above 1, Adam underestimates them and its steps are too large by that factor. A jump precedes many loss
    spikes by one to eight steps. The cure is a lower beta2, or clipping. It cannot exceed sqrt((1 - beta2^t) / (1 -
    beta2)) in step t.

    Cost of an observed step: one norm of each gradient in its first backward pass, all measured together, and two in
    later ones, or where processes average gradients; and for Adam one pass over gradients and second moments, in chunks
    of 64 MiB, or one parameter if that is larger. Nothing waits for the device. Idle steps cost nothing.

    Args:
        optimizer: the optimizer whose steps to measure.
        batch_size: how many samples all processes together use for a step: then the noise scale is in samples.
        inplace: keep only running moments of the RMS, instead of every sample.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        batch_size: int | None = None,
        inplace: bool = True,
        *,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = "min-max",
    ) -> None:
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        self._batch_size = 1 if batch_size is None else options.whole("batch_size", batch_size, 1)
        self.optimizer = options.needed_optimizers(optimizer, several=False)[0]
        self._noise = GradientNoise()
        self._parts: GradientParts | None = None
        self._moments: SecondMomentTap | None = None
        self._has_warned = False
        scaled = ScaledGradients(inplace)
        views = [
            ComputedLines(NOISE_SCALE, self._noise_scale, of_run=True, may_be_infinite=True, logy=True),
            LayerLines("Adam Gradient RMS", Source(scaled, "norm"), lines, bands, logy=True),
        ]
        super().__init__({ALL: scaled}, views)
        self._preprocessors = (scaled, self._noise)

    def detach_from_module(self) -> None:
        """Also leave the optimizer."""
        super().detach_from_module()
        for tap in (self._parts, self._moments):
            if tap is not None:
                tap.remove()
        self._parts, self._moments, self._has_warned = None, None, False

    def _noise_scale(self) -> dict[str, dict[str, float]]:
        found = self._noise.scale
        return {} if found is None else {NOISE_SCALE: {"noise_scale": found * self._batch_size}}

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> SecondMomentGatherer:
        if self._moments is None or self._parts is None:
            self._moments = SecondMomentTap(inspector_state.engine, self.optimizer)
            self._parts = GradientParts(inspector_state.engine, self.optimizer, self._noise.process_parts)
        is_sharded = is_distributed(locate_parameter(module, parameter))
        if is_sharded and not self._has_warned:
            self._has_warned = True
            warn(f"{type(self).__name__} shows no noise scale where parameters are sharded over processes")
        common = (module, parameter, [preprocessor], module_name, inspector_state, self._moments)
        return SecondMomentGatherer(*common, None if is_sharded else self._parts)
