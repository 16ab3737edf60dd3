"""Which parameters an optimizer changes."""

from torch import Tensor
from torch.optim import Optimizer


class Owned:
    """The parameters of some optimizers at one moment; made again at each step, since parameter groups may change."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self._ids = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._ids
