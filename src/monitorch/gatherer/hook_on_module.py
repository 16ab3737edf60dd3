"""What stands on a module does not travel with it."""

import contextlib
from typing import Any


class HookOnModule:
    """Base of callables that are registered as hooks.

    Copies and pickles of the module get a stand-in that does nothing and loads without this package.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")
