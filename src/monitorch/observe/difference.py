"""How a forward pass changes an attribute."""

import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import SkippedSample
from .module import nested
from .monitor import Monitor, as_tuple, checked_function
from .reducer import Reducer
from .sample import as_tensor, floating, is_whole
from .state import checked_path


class Call(NamedTuple):
    """A forward pass that is running."""

    recorded: bool
    before: Any
    handled: BaseException | None
    """The exception that was being handled when the pass began; if it is another at the end, the pass has failed."""


class DifferenceMonitor(Monitor):
    """Records how a forward pass changes an attribute: its value after the pass minus the value before it.

    ``filter_``, ``map_`` and ``op_`` get the value after the pass first, and the value before it second. Tensors are
    copied before the pass, because it may write into them. Each thread and each nested pass has its own *before* value.

    Args:
        reducer: reduces samples over time and stores them.
        attr: dotted path to the attribute, from the module.
        module: the module to watch; may also be given to ``register`` later.
        train_update: record passes that begin in train mode.
        eval_update: record passes that begin in eval mode.
        prepend: run before hooks that are already registered.
        filter_: function of (after, before): whether to record; by default yes, unless both are None.
        map_: function of (after, before) that returns a tuple of tensors for the reducer. By default ``op_`` is called
            with the two values, or for tuples with each pair of elements; None on one side counts as zeros.
        op_: function of two tensors, used only without ``map_``; by default after minus before.

    >>> from monitorch.observe import PassthroughReducer
    >>> norm = nn.BatchNorm1d(1, momentum=0.5)
    >>> monitor = DifferenceMonitor(PassthroughReducer(1.0), "running_mean", norm)
    >>> _ = norm(torch.tensor([[2.0], [4.0]]))
    >>> monitor.latest
    tensor([1.5000])
    """

    def __init__(
        self,
        reducer: Reducer,
        attr: str,
        module: nn.Module | None = None,
        train_update: bool = True,
        eval_update: bool = True,
        prepend: bool = False,
        filter_: Callable[[Any, Any], bool] | None = None,
        map_: Callable[[Any, Any], tuple[Tensor, ...]] | None = None,
        op_: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        where = {"prepend": prepend}
        # also called after a failed pass, whose *before* value must be dropped
        also_failed = {"prepend": prepend, "always_call": True}
        super().__init__(reducer, None, "_begin", "_end", where, also_failed, train_update, eval_update)
        self.attr = checked_path(attr)
        self.filter_ = either_given if filter_ is None else checked_function("filter_", filter_)
        by_pairs = Pairwise(subtract if op_ is None else checked_function("op_", op_))
        self.map_ = by_pairs if map_ is None else checked_function("map_", map_)
        self._calls: dict[int, list[Call]] = {}
        if module is not None:
            self.register(module)

    def clear(self, **kwargs: Any) -> None:
        """Forget all samples, and the passes that are running."""
        self._calls.clear()
        super().clear(**kwargs)

    def deregister(self) -> None:
        """Stop watching, and forget the passes that are running."""
        super().deregister()
        self.__dict__.get("_calls", {}).clear()

    def _begin(self, module: nn.Module, args: Any) -> None:
        recorded = super()._wants(module)
        before = None
        if recorded:
            keep_graph = getattr(self.reducer, "differentiable", True)
            before = snapshot(nested(module, self.attr), keep_graph)
        calls = self._calls.setdefault(threading.get_ident(), [])
        calls.append(Call(recorded, before, sys.exc_info()[1]))

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        calls = self._calls.get(threading.get_ident())
        if not calls:  # the pass began before this monitor was registered, or clear() was called
            return
        call = calls.pop()
        if not calls:
            self._calls.pop(threading.get_ident(), None)
        if call.recorded and sys.exc_info()[1] is call.handled:
            self.record(nested(module, self.attr), call.before)

    def _wants(self, module: nn.Module) -> bool:
        return True  # decided when a pass begins, since the pass may change the mode

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_calls": {}}


def snapshot(value: Any, keep_graph: bool = False) -> Any:
    """The value as it is now: tensors are copied, also those in tuples, lists and dictionaries.

    >>> state = torch.zeros(1)
    >>> before = snapshot(state)
    >>> state.add_(1), before
    (tensor([1.]), tensor([0.]))
    """
    if isinstance(value, Tensor):
        if is_lazy(value):
            return None
        return value.clone() if keep_graph else value.detach().clone()
    if isinstance(value, (tuple, list)):
        parts = [snapshot(part, keep_graph) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: snapshot(part, keep_graph) for key, part in value.items()}
    return value


def either_given(after: Any, before: Any) -> bool:
    """A filter that rejects a pair of None."""
    return after is not None or before is not None


def subtract(after: Tensor, before: Tensor) -> Tensor:
    """After minus before; also correct for bools and unsigned integers (signed) and half precision (not rounded)."""
    if after.shape != before.shape:
        raise SkippedSample(f"its shape changed from {tuple(before.shape)} to {tuple(after.shape)} in forward")
    before = before.to(after.device)
    if is_whole(after) and is_whole(before):
        return after.long() - before.long()
    return floating(after) - floating(before)


class Pairwise:
    """A map that compares the elements of two tuples pairwise."""

    def __init__(self, op_: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.op_ = op_

    def __call__(self, after: Any, before: Any) -> tuple[Tensor, ...]:
        """Compare tuples element by element, anything else as it is."""
        after, before = self._parts(after, before), self._parts(before, after)
        if len(after) != len(before):
            raise SkippedSample(f"it had {len(before)} parts before forward and {len(after)} after it")
        return tuple(self.op_(*self._tensors(*pair)) for pair in zip(after, before, strict=True))

    @staticmethod
    def _parts(value: Any, other: Any) -> tuple[Any, ...]:
        if value is None and isinstance(other, tuple):
            return (None,) * len(other)
        return as_tuple(value)

    @staticmethod
    def _tensors(after: Any, before: Any) -> tuple[Tensor, Tensor]:
        if after is None and before is None:
            raise SkippedSample("a part of it is None before and after forward")
        given = [_tensor(value) for value in (after, before) if value is not None]
        if after is None:
            return torch.zeros_like(given[0]), given[0]
        return given[0], torch.zeros_like(given[0]) if before is None else given[1]


def _tensor(value: Any) -> Tensor:
    data = as_tensor(value)
    if data is None:
        raise TypeError(f"values of type {type(value).__name__} cannot be subtracted: give the monitor a map_")
    return data
