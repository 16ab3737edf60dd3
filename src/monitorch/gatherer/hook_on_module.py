"""Hooks that are not copied or pickled with their module."""

import contextlib
from collections.abc import Callable
from typing import Any

from .compilation import inside_graph, is_exported


class HookOnModule:
    """Base of callables that are registered as hooks.

    Copies and pickles of the module get a function that does nothing and loads without this package.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class HookedMethod(HookOnModule):
    """A method as a hook; a plain bound method would be copied with its object, and traced into exported programs."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    @inside_graph
    def __call__(self, *args: Any) -> Any:
        """Call the method, which catches its own errors."""
        return None if is_exported() else self._method(*args)
