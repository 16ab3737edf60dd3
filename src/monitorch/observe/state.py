"""Monitors of attributes of a module."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from .module import nested
from .monitor import Monitor, as_tuple, checked_function, is_given
from .reducer import Reducer


class StateMonitor(Monitor):
    """Records an attribute of a module after each forward pass.

    Args:
        reducer: reduces samples over time and stores them.
        attr: dotted path to the attribute, from the module.
        module: the module to watch; may also be given to ``register`` later.
        as_prehook: record before the forward pass instead.
        train_update: record when the module is in train mode.
        eval_update: record when it is in eval mode.
        prepend: run before hooks that are already registered.
        filter_: function of a value: whether to record it; by default anything but None.
        map_: function of a value that returns a tuple of tensors for the reducer; by default a tuple stays as it is.
    """

    def __init__(
        self,
        reducer: Reducer,
        attr: str,
        module: nn.Module | None = None,
        as_prehook: bool = False,
        train_update: bool = True,
        eval_update: bool = True,
        prepend: bool = False,
        filter_: Callable[[Any], bool] | None = None,
        map_: Callable[[Any], tuple[Tensor, ...]] | None = None,
    ) -> None:
        before, after = ("_sample", None) if as_prehook else (None, "_sample")
        where = {"prepend": prepend}
        super().__init__(reducer, None, before, after, where, where, train_update, eval_update)
        self.attr = checked_path(attr)
        self.filter_ = is_given if filter_ is None else checked_function("filter_", filter_)
        self.map_ = as_tuple if map_ is None else checked_function("map_", map_)
        if module is not None:
            self.register(module)

    def _sample(self, module: nn.Module, *args: Any) -> None:
        self.record(nested(module, self.attr))


class MultiStateMonitor(StateMonitor):
    """Records several attributes of a module together, as one sample.

    Args:
        reducer: reduces samples over time and stores them.
        attr: dotted path to the object that has the attributes; empty for the module itself.
        subattrs: dotted paths to the attributes, from that object.
        module: the module to watch; may also be given to ``register`` later.
        as_prehook: record before the forward pass instead of after it.
        train_update: record when the module is in train mode.
        eval_update: record when it is in eval mode.
        prepend: run before hooks that are already registered.
        filter_: function of the tuple of values: whether to record it; by default if none of them is None.
        map_: function of the tuple of values that returns a tuple of tensors for the reducer.
    """

    def __init__(
        self,
        reducer: Reducer,
        attr: str,
        subattrs: Iterable[str],
        module: nn.Module | None = None,
        as_prehook: bool = False,
        train_update: bool = True,
        eval_update: bool = True,
        prepend: bool = False,
        filter_: Callable[[tuple[Any, ...]], bool] | None = None,
        map_: Callable[[tuple[Any, ...]], tuple[Tensor, ...]] | None = None,
    ) -> None:
        choose = are_given if filter_ is None else filter_
        super().__init__(reducer, attr, None, as_prehook, train_update, eval_update, prepend, choose, map_)
        self.subattrs = tuple(checked_path(each) for each in ([subattrs] if isinstance(subattrs, str) else subattrs))
        if module is not None:
            self.register(module)

    def _sample(self, module: nn.Module, *args: Any) -> None:
        holder = nested(module, self.attr)
        self.record(tuple(nested(holder, each) for each in self.subattrs))


def are_given(values: tuple[Any, ...]) -> bool:
    """A filter that rejects a tuple with None in it."""
    return all(value is not None for value in values)


def checked_path(attr: str) -> str:
    """A dotted path."""
    if not isinstance(attr, str):
        raise TypeError(f"an attribute is given as a dotted path such as 'norm.running_mean', not as {attr!r}")
    return attr
