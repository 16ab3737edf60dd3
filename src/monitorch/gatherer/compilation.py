"""Hooks under torch.compile: they run between the compiled pieces, never inside them."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Hook = TypeVar("Hook", bound=Callable[..., Any])


def outside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, end the graph before the hook and begin a new one after it."""
    # unlike torch.compiler.disable this does not load the compiler when the hook is defined
    return torch._disable_dynamo(hook)  # type: ignore[attr-defined, no-any-return]
