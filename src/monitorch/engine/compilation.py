"""How hooks behave under torch.compile: inside the graph or between graphs."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from ..errors import warn
from .torch_private import (
    COMPILED_INSIDE,
    COMPILER_FILES,
    end_graph,
    has_compiled_call,
    is_exported,
    may_have_graphs,
    number_of_graphs,
    skip_frame,
    without_compiler,
)

if TYPE_CHECKING:
    from .engine import Engine

Hook = TypeVar("Hook", bound=Callable[..., Any])


def outside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, end the graph before the hook and begin a new one after it."""
    return inside_graph(end_graph(hook))


def inside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, trace the hook into the model's graph, but never make a separate graph of it.

    Hooks of the outermost module are called before and after its graph, where the compiler is still active.
    """
    return skip_frame(hook)


def is_compiled() -> bool:
    """Whether torch.compile is tracing the caller."""
    return torch.compiler.is_dynamo_compiling() and not is_exported()


def is_compiled_module(module: nn.Module) -> bool:
    """Whether a module was compiled by ``torch.compile(module)`` or ``module.compile()``."""
    return COMPILED_INSIDE in module._modules or has_compiled_call(module)


def spare_the_compiler() -> None:
    """Where warnings are errors, ignore a warning that the compiler itself raises for any autograd function in a graph.

    The compiler hides this warning, but cannot hide it as an error: compiling a watched model would fail.
    """
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning, COMPILER_FILES)


def drop_graphs(model: nn.Module) -> None:
    """Let a compiled model compile again: graphs made before it got its hooks would run without them."""
    if any(map(is_compiled_module, model.modules())) and has_graphs(model):
        torch.compiler.reset()
        text = "compiled graphs do not see new hooks, so torch.compiler.reset() was called: the model compiles again"
        warn(text)


def warn_if_blind(engine: "Engine") -> None:
    """Warn if nothing was seen and a graph compiled without hooks, maybe for another model, may be the reason."""
    if engine.is_blind and number_of_graphs():
        why = "no layer was seen in this tick: torch.compile seems to run a graph that was compiled without hooks"
        cure = "call torch.compiler.reset() once after attaching the inspector"
        warn(f"{why}, for this model or another of its class; {cure}")


def has_graphs(model: nn.Module) -> bool:
    """Whether there are compiled graphs that may run for the model: its own, or those of another of the same class."""
    return number_of_graphs() > 0 and any(map(may_have_graphs, _codes(model)))


def _codes(model: nn.Module) -> Iterator[CodeType]:
    """The code objects that graphs are cached under: the ``forward`` of each module, and what it wraps."""
    for part in model.modules():
        for call in (part.forward, without_compiler(part.forward)):
            code = getattr(call, "__code__", None)
            if isinstance(code, CodeType):
                yield code


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
