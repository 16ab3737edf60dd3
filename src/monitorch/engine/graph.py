"""The way out of a compiled graph: operators that call back into Python without breaking the graph.

While torch.compile traces a model, a hook puts one of these operators into the graph. When the graph runs, the operator
uses a small key tensor to find the tap that it was made for, and passes it the real tensor, as the hook does in eager
mode. Keys are tensors, not numbers, so that equal blocks share one graph.

A gradient is seen by an identity function in the graph. Its second input is a leaf, the *anchor*: the compiler must
compute the gradient of a leaf, and that computation passes the gradient of the first input on to the tap.
"""

import itertools
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from .compilation import HookOnModule, inside_graph, is_compiled
from .distributed_tensors import OWN, gradient_here, samples_here
from .reports import Reports, tell
from .torch_private import allows_operators, is_traced, mark_static, without_functions, without_modes

Receiver = Callable[..., None]
"""Takes a tensor, the kind of pass and, inside CUDA graphs, which part of the tensor this process has.

What ``pass_named`` passes on is a dictionary of tensors; ``pass_call`` says what was called with what, whether
gradients are enabled, and where in the graph.
"""

_BETWEEN = "\n"
"""Separator: names are passed to an operator as one string."""

_library: Any = torch.library.Library("monitorch", "DEF")  # type: ignore[no-untyped-call]
_library.define("forward(Tensor x, Tensor(a!) key, int kind, int part) -> ()")
_library.define("backward(Tensor x, Tensor key, int part) -> Tensor")
# never part of a CUDA graph, which would run without calling back
_library.define("outside(Tensor x, Tensor(a!) key, int kind) -> ()", tags=(torch.Tag.cudagraph_unsafe,))
_library.define(
    "call(str what, Tensor?[] tensors, float[] numbers, Tensor(a!) key, bool has_grad, str path) -> ()",
    tags=(torch.Tag.cudagraph_unsafe,),
)
_library.define("named(Tensor[] xs, Tensor(a!) key, int kind, str names) -> ()", tags=(torch.Tag.cudagraph_unsafe,))


def another(x: Tensor) -> Tensor:
    """A view of all of ``x``, for whatever in the graph uses it after an operator has read it.

    The compiler recomputes cheap operations in the backward pass. But of a tensor that an opaque operator reads it
    keeps what the next operation makes of it: bfloat16 as float32, more than a gigabyte for GPT-2. It does not if that
    operation gets another tensor. As a view it may be changed in place like ``x`` itself.
    """
    return x.unsqueeze(0).squeeze(0)


def handed_on(x: Any, read: Sequence[Tensor]) -> Any:
    """What a hook hands on instead of ``x``: another tensor if it is among those read, and backward may follow."""
    is_read = any(x is tensor for tensor in read)
    return another(x) if is_read and x.requires_grad and torch.is_grad_enabled() else x


class GraphCallback:
    """The Python side: what goes through its operators in the graph reaches ``receive``, with the kind of the pass.

    Args:
        state: the state of the inspector, which reports errors of ``receive``.
    """

    def __init__(self, device: torch.device, receive: Receiver, state: Reports | None) -> None:
        self.receive, self.state = receive, state
        number = next(_count)
        # one operator writes to its key, the other saves it for backward: they must not be the same tensor
        self.forward_key, self.backward_key = (_key(number, device) for _ in range(2))
        self.anchor = _anchor(device)
        self._held: list[Any] = []
        self.backward_key._held = self._held  # type: ignore[attr-defined]
        _callbacks[number] = self
        for key in (self.forward_key, self.backward_key):  # a graph may keep the keys longer than the callback exists
            _numbers[key.data_ptr()] = number
            weakref.finalize(key, _forget, key.data_ptr(), number).atexit = False

    def pass_forward(self, x: Tensor, kind: int, *, distributed: bool = False) -> None:
        """Put an operator into the graph that passes ``x`` on, or the local part of it if it is ``distributed``."""
        x, part = samples_here(x) if distributed else (x, OWN)
        torch.ops.monitorch.forward(x.detach(), self.forward_key, kind, part)

    def pass_outside(self, kind: int, x: Tensor | None = None) -> None:
        """Put an operator into the graph that calls back at each run, even if the rest is a CUDA graph."""
        torch.ops.monitorch.outside((self.anchor if x is None else x).detach(), self.forward_key, kind)

    def pass_call(
        self, what: str, tensors: Sequence[Tensor | None], numbers: Sequence[float], has_grad: bool, path: str
    ) -> None:
        """Put an operator into the graph that passes on what a function was called with, and where in the graph."""
        own = [None if x is None else x.detach() for x in tensors]
        torch.ops.monitorch.call(what, own, [float(x) for x in numbers], self.forward_key, has_grad, path)

    def pass_named(self, kind: int, named: dict[str, Tensor]) -> None:
        """The same as :meth:`pass_outside` for several tensors, which are passed on together."""
        tensors = [x.detach() for x in named.values()]
        torch.ops.monitorch.named(tensors, self.forward_key, kind, _BETWEEN.join(named))

    def hold(self, *memory: Any) -> None:
        """Keep the memory that a CUDA graph writes to, as long as its backward pass may use a key of this callback."""
        self._held.append(memory)

    def pass_backward(self, x: Tensor, *, distributed: bool = False) -> Tensor:
        """Put an operator into the graph that passes on the gradient of ``x``; returns ``x`` for further use."""
        identity: Any = _DistributedIdentity if distributed else _Identity
        watched: Tensor = identity.apply(x, self.anchor, self.backward_key)
        return watched


class GraphHook(HookOnModule):
    """A hook on a module: called at each pass, or while a model is being compiled, so that it can use callbacks.

    A subclass writes what to do in both cases. Passes of tracers and functional transforms are ignored.

    Args:
        state: the state of the inspector, which reports errors.
        what: what the hook does, for such a report.
    """

    changes_modes = False
    """Whether it puts modes on or takes them off: those of operators see it then, and it hides what it computes."""

    def __init__(self, state: Reports | None, what: str) -> None:
        self._reports, self._what = state, what

    @inside_graph
    def __call__(self, *args: Any) -> Any:
        """Called by the module."""
        if is_compiled():
            return self.in_graph(*args) if allows_operators() else None
        try:
            if not is_traced():
                # no torch mode, ours or the user's, should see what hooks do
                with without_functions() if self.changes_modes else without_modes():
                    return self.eager(*args)
        except Exception as error:
            tell(self._reports, self._what, error)
        return None

    @abstractmethod
    def eager(self, *args: Any) -> Any:
        """A pass is running."""

    @abstractmethod
    def in_graph(self, *args: Any) -> Any:
        """A pass is being compiled: leave operators in the graph. It must not fail: nothing would catch the error."""


_callbacks: WeakValueDictionary[int, GraphCallback] = WeakValueDictionary()
_numbers: dict[int, int] = {}  # by the address of a key: reading the key itself would wait for the GPU
_count = itertools.count(1)


@lru_cache(maxsize=64)
def _anchor(device: torch.device) -> Tensor:
    """The leaf of a device; its gradient is dropped at once, because a CUDA graph reuses the memory of its outputs."""
    anchor = torch.zeros(1, dtype=torch.float32, device=device, requires_grad=True)
    anchor.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
    return anchor


def _drop_gradient(leaf: Tensor) -> None:
    leaf.grad = None


def _forget(address: int, number: int) -> None:
    if _numbers.get(address) == number:  # otherwise another key has taken the address
        del _numbers[address]


def _key(number: int, device: torch.device) -> Tensor:
    return mark_static(torch.tensor([number], dtype=torch.int64, device=device))


def _find(key: Tensor) -> GraphCallback | None:
    """The callback of a key; None if its tap is gone."""
    number = _numbers.get(key.data_ptr())
    return _callbacks.get(int(key) if number is None else number)


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(key)
        return another(x).clone()  # autograd lets nobody change a view from a function in place; the compiler drops it

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (key,) = ctx.saved_tensors
        return gradient, torch.ops.monitorch.backward(gradient, key, OWN), None


class _DistributedIdentity(_Identity):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (key,) = ctx.saved_tensors
        here, part = gradient_here(gradient)
        return gradient, torch.ops.monitorch.backward(here, key, part), None


def _deliver(key: Tensor, doing: str, *data: Any) -> None:
    """Pass data to the callback of a key; an error here would end the pass of the user's model."""
    found = None
    try:
        found = _find(key)
        if found is not None:
            found.receive(*data)
    except Exception as error:
        tell(None if found is None else found.state, doing, error)


def _forward(x: Tensor, key: Tensor, kind: int, part: int) -> None:
    _deliver(key, "looking at an output inside a compiled graph", x, kind, part)


def _outside(x: Tensor, key: Tensor, kind: int) -> None:
    _deliver(key, "noticing that a compiled graph runs", x, kind)


def _call(what: str, tensors: list[Any], numbers: list[float], key: Tensor, has_grad: bool, path: str) -> None:
    _deliver(key, "looking at a call inside a compiled graph", (what, tensors, numbers), has_grad, path)


def _named(xs: list[Tensor], key: Tensor, kind: int, names: str) -> None:
    named = dict(zip(names.split(_BETWEEN), xs, strict=True))
    _deliver(key, "looking at the inputs of a compiled graph", named, kind)


def _backward(x: Tensor, key: Tensor, part: int) -> Tensor:
    _deliver(key, "looking at a gradient inside a compiled graph", x, -1, part)
    return torch.zeros(1, dtype=torch.float32, device=key.device)


def _backward_fake(x: Tensor, key: Tensor, part: int) -> Tensor:
    return torch.empty(1, dtype=torch.float32, device=key.device)


_library.impl("forward", _forward, "CompositeExplicitAutograd")
_library.impl("outside", _outside, "CompositeExplicitAutograd")
_library.impl("call", _call, "CompositeExplicitAutograd")
_library.impl("named", _named, "CompositeExplicitAutograd")
_library.impl("backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("monitorch::forward", lambda x, key, kind, part: None, lib=_library)
torch.library.register_fake("monitorch::outside", lambda x, key, kind: None, lib=_library)
torch.library.register_fake("monitorch::call", lambda *_: None, lib=_library)
torch.library.register_fake("monitorch::named", lambda xs, key, kind, names: None, lib=_library)
torch.library.register_fake("monitorch::backward", _backward_fake, lib=_library)
