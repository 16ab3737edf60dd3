"""How far each parameter moves in a step, and how the direction changes."""

from typing import Any

from torch.optim import Optimizer

from ..preprocessor import ParameterDifferenceGeometry
from . import options
from .options import with_options_of
from .parameter_geometry import ParameterGeometry
from .parameter_update_lens import ParameterUpdateLens


class ParameterUpdateGeometry(ParameterGeometry, ParameterUpdateLens):
    """Norm of each parameter's change in a step, and its cosine with the change before.

    Args:
        optimizer: the optimizer whose steps to measure; with None call ``inspect_update()`` after each step.

    The other options are those of ParameterGradientGeometry. With ``correlation="sketch"``, and with ``"auto"`` where
    that takes sketches, there are no copies of parameters either: a change is estimated from sketches before and after
    the step, so that its norm has a standard error of 1.1 %, at most 1.6 %. Without an optimizer updates are always
    exact.
    """

    _what = "update"
    _preprocessor = ParameterDifferenceGeometry

    @with_options_of(ParameterGeometry)
    def __init__(self, optimizer: Optimizer | None, *others: Any, **named_others: Any) -> None:
        optimizer = options.optimizer(optimizer)
        super().__init__(*others, **named_others)
        self.optimizer = optimizer
