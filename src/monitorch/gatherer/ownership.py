"""Which parameters an optimizer moves."""

from torch import Tensor
from torch.optim import Optimizer


class Owned:
    """The parameters of some optimizers at one moment; asked anew at each step, since groups and parameters change."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self._ids = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._ids
