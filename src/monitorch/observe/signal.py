"""Monitors of what goes into a module, and of what comes out."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .monitor import Monitor, as_tuple, is_given
from .reducer import Reducer


class InputMonitor(Monitor):
    """Records the positional arguments of a module; by default all of them are handed to the reducer.

    Args:
        reducer: reduces samples over time and stores them.
        module: what to watch; may also be given to ``register`` later.
        train_update: record when the module is in train mode.
        eval_update: record when it is in eval mode.
        prepend: be called before hooks that are there already.
        filter_: says of the tuple of arguments whether to record; by default if there are any.
        map_: makes a tuple of tensors for the reducer from the tuple of arguments.
    """

    def __init__(
        self,
        reducer: Reducer,
        module: nn.Module | None = None,
        train_update: bool = True,
        eval_update: bool = True,
        prepend: bool = False,
        filter_: Callable[[tuple[Any, ...]], bool] | None = None,
        map_: Callable[[tuple[Any, ...]], tuple[Tensor, ...]] | None = None,
    ) -> None:
        where = {"prepend": prepend}
        super().__init__(reducer, None, "_sample", None, where, None, train_update, eval_update)
        self.filter_ = bool if filter_ is None else filter_
        self.map_ = as_tuple if map_ is None else map_
        if module is not None:
            self.register(module)

    def _sample(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.record(args)


class OutputMonitor(Monitor):
    """Records the output of a module; the parts of a tuple are handed to the reducer one by one.

    Args:
        reducer: reduces samples over time and stores them.
        module: what to watch; may also be given to ``register`` later.
        train_update: record when the module is in train mode.
        eval_update: record when it is in eval mode.
        prepend: be called before hooks that are there already.
        filter_: says of an output whether to record it; by default unless it is None.
        map_: makes a tuple of tensors for the reducer from an output.

    >>> from monitorch.observe import CAReducer
    >>> relu = nn.ReLU()
    >>> monitor = OutputMonitor(CAReducer(1.0), relu, map_=lambda y: (y.mean(),))
    >>> _ = relu(torch.tensor([-1.0, 1.0])), relu(torch.tensor([3.0]))
    >>> monitor.latest
    tensor(1.7500)
    """

    def __init__(
        self,
        reducer: Reducer,
        module: nn.Module | None = None,
        train_update: bool = True,
        eval_update: bool = True,
        prepend: bool = False,
        filter_: Callable[[Any], bool] | None = None,
        map_: Callable[[Any], tuple[Tensor, ...]] | None = None,
    ) -> None:
        where = {"prepend": prepend}
        super().__init__(reducer, None, None, "_sample", None, where, train_update, eval_update)
        self.filter_ = is_given if filter_ is None else filter_
        self.map_ = as_tuple if map_ is None else map_
        if module is not None:
            self.register(module)

    def _sample(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.record(output)
