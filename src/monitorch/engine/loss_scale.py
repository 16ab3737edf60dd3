"""The factor that a loss is multiplied by so that small gradients survive in float16, and how to undo it.

Nothing here waits for the GPU: factors stay tensors, and a skipped step is a factor of 0.
"""

import sys
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..numerical.precision import HOST, wide_dtype
from .allocation import lasting
from .torch_private import loss_scale_tensor


class Correction(NamedTuple):
    """What to multiply rows by, see ``corrected`` of a buffer."""

    unit: Tensor
    follows: Tensor | None = None


class Unscaling(NamedTuple):
    """How to turn scaled gradients into the numbers to show.

    Attributes:
        unit: what to multiply them by; None for 1.
        works: 0 if the optimizer skipped the step; None if skipped steps are detected otherwise.
        worked: the same for the step before.
    """

    unit: Tensor | None = None
    works: Tensor | None = None
    worked: Tensor | None = None

    @property
    def of_scaled(self) -> Correction | None:
        """For rows of gradients that are still scaled."""
        if self.unit is None:
            return self.of_unscaled
        unit = self.unit if self.works is None else self.unit.to(self.works.device) * self.works
        return Correction(unit, self.worked)

    @property
    def of_unscaled(self) -> Correction | None:
        """For rows of gradients that were multiplied by ``unit`` already."""
        return None if self.works is None else Correction(self.works, self.worked)


UNKNOWN_SCALER = "a GradScaler that is not known"
"""The key under which either place that may notice this reports it; only the first does."""

_SCALER_STEP = torch.amp.GradScaler.step.__code__


def stepping_scaler() -> Any:
    """The GradScaler whose ``step()`` is running now; None if there is none."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code is not _SCALER_STEP:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


class LossScale:
    """The current scale of a GradScaler.

    >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    >>> LossScale(scaler).unit()  # nothing has been scaled yet
    tensor(1., dtype=torch.float64)
    >>> scaled = scaler.scale(torch.ones(1))
    >>> LossScale(scaler).unit()
    tensor(0.1250, dtype=torch.float64)
    """

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._known: tuple[Any, Tensor] | None = None

    def unit(self, *, in_graph: bool = False) -> Tensor:
        """The factor that unscales gradients; ``in_graph``: for use inside a compiled graph."""
        scale = loss_scale_tensor(self._scaler) if self._scaler.is_enabled() else None
        key = None if scale is None else (id(scale), scale._version)  # the scaler changes it in place
        if self._known is None or self._known[0] != key:
            one = torch.ones((), dtype=torch.float64, device=HOST)
            kept = one if scale is None else lasting(partial(_inverse, scale), scale.device, in_graph=in_graph)
            self._known = key, kept
        return self._known[1]


class StepScales:
    """What a GradScaler passes to optimizers that unscale and skip steps themselves, as fused ones do."""

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[Optimizer, tuple[Any, Tensor, Tensor | None]] = WeakKeyDictionary()

    def of(self, optimizer: Optimizer) -> Unscaling:
        """What is known during a step; all None for other optimizers."""
        scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if not isinstance(found, Tensor):
            return Unscaling()
        known = self._steps.get(optimizer)
        if known is None or known[0] is not found:  # not the same step as in the last call
            works = (found == 0).to(wide_dtype(found))
            known = self._steps[optimizer] = found, works, None if known is None else known[1]
        return Unscaling(_inverse(scale) if isinstance(scale, Tensor) else None, *known[1:])


def _inverse(scale: Tensor) -> Tensor:
    return scale.to(wide_dtype(scale)).reciprocal()
