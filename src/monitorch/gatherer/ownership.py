"""Which parameters an optimizer moves."""

from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

# optimizer -> the sizes of its groups when they were last looked at, and the ids of all parameters
_owned: WeakKeyDictionary[Optimizer, tuple[list[int], set[int]]] = WeakKeyDictionary()


def owns(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Whether the parameter is in one of the optimizer's groups; groups may be added at any time."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if optimizer not in _owned or _owned[optimizer][0] != sizes:
        _owned[optimizer] = sizes, {id(member) for group in optimizer.param_groups for member in group["params"]}
    return id(parameter) in _owned[optimizer][1]
