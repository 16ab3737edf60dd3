"""Monitors of the input and output of a module."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .monitor import Monitor, as_tuple, checked_function, is_given
from .reducer import Reducer

Filter = Callable[[Any], bool]
Map = Callable[[Any], tuple[Tensor, ...]]


class SignalMonitor(Monitor):
    """Base of both monitors; a subclass says whether it records before or after the pass, and what by default.

    Args:
        reducer: reduces samples over time and stores them.
        module: the module to watch; may also be given to ``register`` later.
        train_update: record when the module is in train mode.
        eval_update: record when it is in eval mode.
        prepend: run before hooks that are already registered.
        filter_: function of a value: whether to record it.
        map_: function of a value that returns a tuple of tensors for the reducer; by default a tuple stays as it is.
    """

    prehook: str | None = None
    posthook: str | None = None
    default_filter: Filter = is_given

    def __init__(
        self,
        reducer: Reducer,
        module: nn.Module | None = None,
        train_update: bool = True,
        eval_update: bool = True,
        prepend: bool = False,
        filter_: Filter | None = None,
        map_: Map | None = None,
    ) -> None:
        where = {"prepend": prepend}
        super().__init__(reducer, None, self.prehook, self.posthook, where, where, train_update, eval_update)
        self.filter_ = type(self).default_filter if filter_ is None else checked_function("filter_", filter_)
        self.map_ = as_tuple if map_ is None else checked_function("map_", map_)
        if module is not None:
            self.register(module)


class InputMonitor(SignalMonitor):
    """Records the tuple of positional arguments of a module, if there are any."""

    prehook = "_sample"
    default_filter = bool

    def _sample(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.record(args)


class OutputMonitor(SignalMonitor):
    """Records the output of a module, unless it is None.

    >>> from monitorch.observe import CAReducer
    >>> relu = nn.ReLU()
    >>> monitor = OutputMonitor(CAReducer(1.0), relu, map_=lambda y: (y.mean(),))
    >>> _ = relu(torch.tensor([-1.0, 1.0])), relu(torch.tensor([3.0]))
    >>> monitor.latest
    tensor(1.7500)
    """

    posthook = "_sample"

    def _sample(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.record(output)
