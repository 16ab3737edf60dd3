"""Hooks under torch.compile: inside the graph or between graphs."""

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from ..errors import warn


class House(Protocol):
    """What is asked of the taps of an inspector."""

    @property
    def is_blind(self) -> bool:
        """Whether outputs are watched but nothing of any was ever seen."""


Hook = TypeVar("Hook", bound=Callable[..., Any])


def outside_graph(hook: Hook) -> Hook:
    """Decorator: under torch.compile, end the graph before the hook and begin a new one after it."""
    # what torch.compiler.disable does, without a wrapper around every call and without loading the compiler
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return inside_graph(hook)


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


_MODE_KEYS = torch._C._TorchDispatchModeKey
TRACING_MODES = _MODE_KEYS.FAKE, _MODE_KEYS.PROXY, _MODE_KEYS.FUNCTIONAL
"""Modes under which tensors stand for others: without numbers, or with those of somebody else."""


def is_traced() -> bool:
    """Whether a tracer or a functional transform runs the model: such a pass is no step of a training.

    Its tensors are stand-ins: numbers read from them are those of a derivative, of one sample, or of nothing at all.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or is_fx_symbolic_tracing():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return True
    # other modes, such as one that counts operations, leave tensors as they are
    return bool(torch._C._len_torch_dispatch_stack()) and any(
        torch._C._get_dispatch_mode(key) is not None for key in TRACING_MODES
    )


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
