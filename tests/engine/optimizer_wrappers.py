"""Objects that other libraries hand out in the place of an optimizer, made as those make them."""

import warnings

from torch import nn
from torch.optim import SGD, Optimizer


class Accelerated(Optimizer):
    """As Accelerate wraps: of the class, but never initialised."""

    def __init__(self, optimizer, scaler=None):
        self.optimizer, self.scaler = optimizer, scaler

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step(closure)


class Lightning:
    """As Lightning wraps: takes over the class of what is inside, and passes everything on."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("LightningSGD", (self.__class__, type(optimizer)), {})

    @property
    def optimizer(self):
        return self._optimizer

    def step(self, closure=None):
        return self._optimizer.step(closure)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


class OlderLightning(Lightning):
    """As older versions wrapped: with the attributes of what is inside."""

    def __init__(self, optimizer):
        self.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
        super().__init__(optimizer)


class Lookahead(Optimizer):
    """An optimizer by itself, which uses another one."""

    def __init__(self, optimizer):
        super().__init__(optimizer.param_groups, {})
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step(closure)


def averaging(optimizer):
    """A wrapper of torch itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its package scripts functions when it is loaded
        from torch.distributed.optim import PostLocalSGDOptimizer
    return PostLocalSGDOptimizer(optim=optimizer, averager=None)


def plain():
    return SGD(nn.Linear(1, 1).parameters(), lr=0.1)


def of_package(name, package, base=object):
    return type(name, (base,), {"__module__": package})


def zero_optimizer():
    found = of_package("DeepSpeedZeroOptimizer", "deepspeed.runtime.zero.stage_1_and_2")()
    found.optimizer = plain()
    return found
