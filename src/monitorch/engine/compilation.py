"""How hooks behave under torch.compile: inside the graph or between graphs."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from ..errors import warn


class Engine(Protocol):
    """What this file needs to know of an inspector's taps."""

    @property
    def is_blind(self) -> bool:
        """Whether outputs are watched, but none was ever seen."""


Hook = TypeVar("Hook", bound=Callable[..., Any])


def outside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, end the graph before the hook and begin a new one after it."""
    # what torch.compiler.disable does, without a wrapper around every call and without loading the compiler
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return inside_graph(hook)


def inside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, trace the hook into the graph of the model, but never make an own graph of it.

    Hooks of the outermost module are called before and after its graph, where the compiler is still active.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(hook.__code__, frames._FrameExecStrategy(skip, skip))
    return hook


def is_compiled() -> bool:
    """Whether torch.compile is tracing the caller."""
    # the flag itself: before torch 2.13 is_exporting() is always true inside a graph
    return torch.compiler.is_dynamo_compiling() and not torch.compiler._is_exporting_flag


def is_exported() -> bool:
    """Whether torch.export is tracing the caller."""
    return torch.compiler._is_exporting_flag


_MODE_KEYS = torch._C._TorchDispatchModeKey
TRACING_MODES = _MODE_KEYS.FAKE, _MODE_KEYS.PROXY, _MODE_KEYS.FUNCTIONAL
"""Modes in which tensors are stand-ins: without data, or with the data of another tensor."""


def is_traced() -> bool:
    """Whether a tracer or a functional transform runs the model: such a pass is not part of training.

    Its tensors are stand-ins: their numbers would belong to a derivative, to one sample, or to nothing.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or is_fx_symbolic_tracing():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return True
    # other modes, such as one that counts operations, leave tensors as they are
    return bool(torch._C._len_torch_dispatch_stack()) and any(
        torch._C._get_dispatch_mode(key) is not None for key in TRACING_MODES
    )


def spare_the_compiler() -> None:
    """Where warnings are errors, ignore one that the compiler itself gives for any autograd function in a graph.

    The compiler hides this warning, but cannot hide it as an error: compiling a watched model would fail.
    """
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning, r"torch\._dynamo\.")


def drop_graphs(model: nn.Module) -> None:
    """Let a compiled model compile again: graphs made before it got its hooks would run without them."""
    compiled = any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in model.modules())
    if compiled and has_graphs(model):
        torch.compiler.reset()
        text = "compiled graphs do not see new hooks, so torch.compiler.reset() was called: the model compiles again"
        warn(text, stacklevel=3)


def warn_if_blind(engine: Engine) -> None:
    """Warn if nothing was seen and a graph compiled without hooks, maybe for another model, may be the reason."""
    if engine.is_blind and number_of_graphs():
        why = "no layer was seen in this tick: torch.compile seems to run a graph that was compiled without hooks"
        cure = "call torch.compiler.reset() once after attaching the inspector"
        warn(f"{why}, for this model or another of its class; {cure}", stacklevel=3)


def number_of_graphs() -> int:
    """How many graphs were compiled in this process, including those dropped by a reset."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def has_graphs(model: nn.Module) -> bool:
    """Whether there are compiled graphs that may run for the model: its own, or those of another of the same class."""
    if not number_of_graphs():
        return False
    graphs_of = getattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
    return graphs_of is None or any(graphs_of(code) for code in _codes(model))


def _codes(model: nn.Module) -> Iterator[CodeType]:
    """The code objects that graphs are cached under: the ``forward`` of each module, and what it wraps."""
    for part in model.modules():
        for call in (part.forward, getattr(part.forward, "_torchdynamo_orig_callable", None)):
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
