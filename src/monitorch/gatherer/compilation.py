"""Hooks under torch.compile: inside the graph or between graphs."""

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from ..errors import warn


class House(Protocol):
    """What is asked of the taps of an inspector."""

    @property
    def is_blind(self) -> bool:
        """Whether outputs are watched but nothing of any was ever seen."""


Hook = TypeVar("Hook", bound=Callable[..., Any])


def outside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, end the graph before the hook and begin a new one after it."""
    # unlike torch.compiler.disable this does not load the compiler when the hook is defined
    return torch._disable_dynamo(hook)  # type: ignore[attr-defined, return-value]


def inside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, be traced into the graph of the model, but never make a graph of its own.

    Hooks of the outermost module are called before and after its graph, where the compiler is still on.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(hook.__code__, frames._FrameExecStrategy(skip, skip))
    return hook


def is_compiled() -> bool:
    """Whether torch.compile is tracing the caller into a graph that will run in its place."""
    # the flag itself: before torch 2.13 is_exporting() is always true inside a graph
    return torch.compiler.is_dynamo_compiling() and not torch.compiler._is_exporting_flag


def is_exported() -> bool:
    """Whether torch.export is tracing the caller into a program of its own."""
    return torch.compiler._is_exporting_flag


def is_traced() -> bool:
    """Whether a tracer or ``vmap`` runs the model: its tensors are no numbers that could be read later."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._functorch.peek_interpreter_stack() is None:
        return False
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return any(transform.key() == torch._C._functorch.TransformType.Vmap for transform in transforms)


def drop_graphs(model: nn.Module) -> None:
    """Have a compiled model compiled anew: graphs made before it got its hooks would go on without them."""
    compiled = any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in model.modules())
    if compiled and has_graphs(model):
        torch.compiler.reset()
        text = "compiled graphs do not notice new hooks: torch.compiler.reset() makes the model compile anew"
        warn(text, stacklevel=3)


def warn_if_blind(house: House) -> None:
    """Tell that nothing was seen where a graph made without hooks, maybe for another model, may be the reason."""
    if house.is_blind and number_of_graphs():
        why = "no layer was seen in this tick: a graph that was compiled without hooks, of this or of another model"
        cure = "call torch.compiler.reset() once, after the inspector is attached"
        warn(f"{why} of its class, seems to run in its place; {cure}", stacklevel=3)


def number_of_graphs() -> int:
    """How many graphs have been compiled in this process, also those that a reset has dropped since."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def has_graphs(model: nn.Module) -> bool:
    """Whether there are graphs that may run in place of the model: its own, or those of another one of its classes."""
    if not number_of_graphs():
        return False
    graphs_of = getattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
    return graphs_of is None or any(graphs_of(code) for code in _codes(model))


def _codes(model: nn.Module) -> Iterator[CodeType]:
    """The functions that graphs are kept with: what modules run, and what stands before those of torch itself."""
    for part in model.modules():
        for call in (part.forward, getattr(part.forward, "_torchdynamo_orig_callable", None)):
            code = getattr(call, "__code__", None)
            if isinstance(code, CodeType):
                yield code
