"""Calls of torch functions inside the watched model: those that a lens asks for, and which module makes them.

In passes that are measured, a mode of torch is on while the model runs. It sees every call of a torch function, and
hands over the wanted ones. In other passes there is neither mode nor hook. A compiled part of the model is traced with
the mode on: its graph then has operators that hand over the same.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import warn
from .compilation import inside_graph, is_compiled, is_compiled_module
from .distributed_tensors import distributed_type
from .graph import GraphCallback, GraphHook
from .passes import IN_TRAIN_MODE, WITH_GRAD, will_be_repeated
from .reports import is_news, tell
from .state import is_observed
from .torch_private import MODULE_CALL, inside_backward, is_traced, path_in_graph, remove_mode, without_modes

if TYPE_CHECKING:
    from .engine import Engine

Content: TypeAlias = tuple[str, Sequence[Tensor | None], Sequence[float]]
"""What is passed on about a call: its kind, its tensors and its numbers."""

Reader: TypeAlias = Callable[..., Content | None]
"""Takes the result and the arguments of a call, and returns what to pass on; None to ignore it.

The compiler traces it: it looks at the arguments, and computes nothing.
"""

UNSEEN = "calls of functions are not seen: the watched model runs inside a larger compiled function"


class CallListener(Protocol):
    """Gets the wanted calls of one module."""

    readers: Mapping[Any, Reader]
    """The wanted functions, and how to read their calls; a function has one reader for all listeners."""
    kinds: frozenset[str]
    """The kinds of calls this listener takes; other listeners of the same model may take others."""
    passes: frozenset[int]
    """The wanted kinds of passes, as ``kind_of_pass`` numbers them."""
    in_graphs: bool
    """Whether calls inside compiled graphs are wanted as well."""

    def take_call(self, content: Content) -> None:
        """The module has made a call in an observed step; no error may leave this method."""


class FunctionalCalls:
    """Passes calls of torch functions to the listeners of the calling module."""

    def __init__(self, engine: "Engine") -> None:
        self.state = engine.state
        self._mode = _CallMode(self, GraphCallback(engine.device, self._receive, engine.state))
        self._listeners: dict[int, tuple[weakref.ref[nn.Module], list[CallListener]]] = {}
        self._running = _Running()
        self._hooks: list[Any] = []
        self._hooked: weakref.ref[nn.Module] | None = None
        self._has_compiled: dict[int, bool] = {}
        """By the id of a module, whether a part of it is compiled."""

    def listen(self, module: nn.Module, listener: CallListener) -> "Listening":
        """Hand the calls of a module to a listener from now on."""
        known = self._listeners.get(id(module))
        if known is None or known[0]() is not module:  # another module may have had the same id
            known = self._listeners[id(module)] = weakref.ref(module), []
        known[1].append(listener)
        self._mode.readers.update(listener.readers)
        return Listening(known[1], listener)

    def refresh(self) -> None:
        """Forget modules that nobody listens to, and which are compiled."""
        self._has_compiled = {}
        self._listeners = {place: known for place, known in self._listeners.items() if known[1]}

    def close(self) -> None:
        """Forget everything."""
        self._listeners = {}
        self.rest()

    def rest(self) -> None:
        """Nothing is measured for a while: leave no hook."""
        self.end(everything=True)  # an interrupt leaves the mode on
        while self._hooks:
            self._hooks.pop().remove()

    # while the model runs

    def begin(self, module: nn.Module) -> None:
        """The model begins to run, or a part of it that is called by itself; the mode is on until it ends."""
        running = self._running.modules
        if running and not self._is_nested(running[0], module):
            self.end(everything=True)  # it was ended without its hook being called, such as by KeyboardInterrupt
        if running:
            if running[0] == id(module):
                running.append(id(module))  # the model calls itself
        elif self._listeners and self.state.wants_data() and self._wants(module):
            self._hook(module)
            running.append(id(module))
            self._mode.__enter__()  # type: ignore[no-untyped-call]  # the hook takes it off, whatever happens

    def end(self, *, everything: bool = False) -> None:
        """The model has run, or has failed."""
        running = self._running.modules
        if running:
            del running[0 if everything else -1 :]
            if not running:
                remove_mode(self._mode)

    def miss(self) -> None:
        """The model runs where calls are not seen: say so once, if somebody wants them there."""
        if any(own.in_graphs for own in self._all_listeners()) and is_news(self.state, UNSEEN):
            warn(f"{UNSEEN}, as Sequential does in torch.compile(model). Call model.compile() instead")

    def _wants(self, module: nn.Module) -> bool:
        if inside_backward():
            return False
        kind = self._kind(module, has_grad=torch.is_grad_enabled())
        wanting = [own for own in self._all_listeners() if kind in own.passes]
        return bool(wanting) and (any(own.in_graphs for own in wanting) or not self._runs_graphs(module))

    def _runs_graphs(self, module: nn.Module) -> bool:
        """Whether a module is compiled, or a part of it, or what calls it."""
        if id(module) not in self._has_compiled:
            self._has_compiled[id(module)] = any(map(is_compiled_module, module.modules()))
        return self._has_compiled[id(module)] or any(map(is_compiled_module, calling_modules(sys._getframe())))

    def _all_listeners(self) -> Iterator[CallListener]:
        return (own for _, known in self._listeners.values() for own in known)

    def _kind(self, module: nn.Module, *, has_grad: bool) -> int:
        return IN_TRAIN_MODE * bool(module.training) + WITH_GRAD * (has_grad or will_be_repeated(self.state))

    def _hook(self, module: nn.Module) -> None:
        if not self._hooks or self._hooked is None or self._hooked() is not module:
            self.rest()
            self._hooked = weakref.ref(module)
            self._hooks.append(module.register_forward_hook(_EndHook(self), with_kwargs=True, always_call=True))

    def _is_nested(self, running: int, module: nn.Module) -> bool:
        """Whether the module that was called first still runs, apart from the call that begins now."""
        calls = [id(called) for called in calling_modules(sys._getframe())]
        return calls.count(running) > (running == id(module))

    # calls

    def notice(self, reader: Reader, result: Any, args: Any, kwargs: Any) -> None:
        """A wanted function was called."""
        if not is_traced():
            begin = self.state.clock.enter()
            try:
                with without_modes():  # ours is off while it handles a call, but others may be on
                    content = reader(result, *args, **kwargs)
                    if content is not None:
                        self._deliver(content, has_grad=torch.is_grad_enabled())
            finally:
                self.state.clock.leave(begin)

    def _receive(self, content: Content, has_grad: bool, path: str) -> None:
        """The same, from a compiled graph."""
        begin = self.state.clock.enter()
        try:
            self._deliver(content, has_grad=has_grad, path=path)
        finally:
            self.state.clock.leave(begin)

    def _deliver(self, content: Content, *, has_grad: bool, path: str = "") -> None:
        """Pass a call on. Recomputation in backward, baseline steps and meta tensors are ignored."""
        if inside_backward() or not is_observed(self.state) or any(x is not None and x.is_meta for x in content[1]):
            return
        module, listeners = self._find(path)
        if module is not None:
            kind = self._kind(module, has_grad=has_grad)
            for listener in listeners:
                if kind in listener.passes and content[0] in listener.kinds:
                    listener.take_call(content)

    def _find(self, path: str) -> tuple[nn.Module | None, list[CallListener]]:
        """The innermost module that runs and that somebody listens to; ``path`` leads from there into its graph."""
        for called in calling_modules(sys._getframe()):
            if self._listeners_of(called):  # not a module that the compiler made
                for module in (*_down(called, path), called):
                    if listeners := self._listeners_of(module):
                        return module, listeners
        return None, []

    def _listeners_of(self, module: nn.Module) -> list[CallListener]:
        known, listeners = self._listeners.get(id(module), (None, []))
        return listeners if known is not None and known() is module else []


class Listening:
    """A listener among those of a module."""

    def __init__(self, listeners: list[CallListener], listener: CallListener) -> None:
        self._listeners, self._listener = listeners, listener

    def remove(self) -> None:
        """Stop listening."""
        self._listeners[:] = [known for known in self._listeners if known is not self._listener]


class _Running(threading.local):
    """What runs in this thread: modes of torch belong to a thread, too."""

    def __init__(self) -> None:
        self.modules: list[int] = []
        """The ids of the modules that run with the mode on, the one that put it on first."""


class _CallMode(TorchFunctionMode):
    """Sees every call of a torch function. It is off while it handles one, so nested calls are not seen."""

    def __init__(self, calls: FunctionalCalls, callback: GraphCallback) -> None:
        super().__init__()
        self._calls, self._callback, self._distributed = calls, callback, distributed_type()
        self.readers: dict[Any, Reader] = {}

    @inside_graph
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called instead of ``func``, also by the compiler while it traces."""
        if func is Tensor.unflatten and is_compiled():
            func = torch.unflatten  # the compiler cannot trace the method, whose code says super(), under a mode
        result = func(*args, **(kwargs or {}))
        if func in self.readers:
            if is_compiled():
                content = self.readers[func](result, *args, **(kwargs or {}))
                if content is not None and not any(isinstance(x, self._distributed) for x in content[1]):
                    self._callback.pass_call(*content, torch.is_grad_enabled(), path_in_graph())
            else:
                try:
                    self._calls.notice(self.readers[func], result, args, kwargs or {})
                except Exception as error:  # we are inside the model
                    tell(self._calls.state, "looking at a call inside the model", error)
        return result


class _EndHook(GraphHook):
    """Notices that the model has run, or has failed."""

    def __init__(self, calls: FunctionalCalls) -> None:
        super().__init__(calls.state, "leaving the model")
        self._calls = calls

    def eager(self, *_: Any) -> None:
        """Take the mode off."""
        self._calls.end()

    def in_graph(self, *_: Any) -> None:
        """Inside a larger graph the mode was not put on."""


def calling_modules(frame: FrameType | None) -> Iterator[nn.Module]:
    """The modules that are running, innermost first."""
    while frame is not None:
        if frame.f_code is MODULE_CALL:
            yield frame.f_locals["self"]
        frame = frame.f_back


def _down(module: nn.Module, path: str) -> list[nn.Module]:
    """The modules on a path below a module, innermost first, as far as they exist."""
    found: list[nn.Module] = []
    for name in path.split(".") if path else ():
        inner = module._modules.get(name)
        if inner is None:
            break
        module = inner
        found.insert(0, module)
    return found
