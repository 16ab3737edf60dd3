"""A hook on a module that hands over some tensors of its calls, also from inside a compiled graph."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

from ..numerical.norms import as_dense
from .allocation import is_capturing
from .distributed_tensors import distributed_type, local_samples, samples_here
from .graph import GraphCallback, GraphHook, handed_on
from .module_hook import ModuleHook
from .passes import kind_of_pass
from .state import is_observed

if TYPE_CHECKING:
    from .engine import Engine

NamedTensors: TypeAlias = dict[str, Tensor]

Picker: TypeAlias = Callable[..., NamedTensors]
"""Gets the hook's arguments and returns the tensors to pass on. It is traced by the compiler, so it must not
compute."""


class ModuleTap(GraphHook):
    """Hands tensors of a module to a reader, at each call in an observed step.

    While nothing is recorded its hook is off; the engine puts it back in time.

    Args:
        engine: puts the hook back.
        module: what is called.
        pick: which tensors of a call to hand over.
        read: called with them and with the kind of the pass, as ``kind_of_pass`` numbers it.
        what: what the hook does, for reports of errors.
        before: whether to look before the module runs instead of after it.
    """

    def __init__(
        self,
        engine: "Engine",
        module: nn.Module,
        pick: Picker,
        read: Callable[[NamedTensors, int], None],
        what: str,
        *,
        before: bool = False,
    ) -> None:
        super().__init__(engine.state, what)
        self._engine, self._state = engine, engine.state
        self._pick, self._read = pick, read
        self._distributed = distributed_type()
        self._callback = GraphCallback(engine.device, self._receive, engine.state)
        self.is_eager = False
        """Whether the module is called, instead of being part of a compiled graph."""
        engine.module_taps.append(self)
        self._before = before
        self._hook = ModuleHook(module, self, before=before)

    def wake(self) -> None:
        """Put the hook back."""
        self._hook.wake()

    def rest(self) -> None:
        """Take it off until :meth:`wake`."""
        self._hook.rest()

    def remove(self) -> None:
        """Take it off for good."""
        self._engine.forget(self)
        self._engine.module_taps.remove(self)
        self._hook.remove()

    def eager(self, module: nn.Module, *call: Any) -> None:
        """Called at each pass."""
        self.is_eager = True
        if self._state.wants_data():
            begin = self._state.clock.enter()
            try:
                self._receive(self._pick(module, *call), kind_of_pass(module))
            finally:
                self._state.clock.leave(begin)
        elif self._state.is_steady:  # the first pass was idle
            self._engine.send_to_rest(self)

    def in_graph(self, module: nn.Module, *call: Any) -> Any:
        """Leave an operator in the graph that passes the tensors on; returns new arguments, or a new output."""
        named = self._pick(module, *call)
        if not named or not self._state.observing:
            return None
        self._callback.pass_named(kind_of_pass(module), in_graph(named, self._distributed))
        read = list(named.values())
        if not self._before:
            return handed_on(call[-1], read)
        args, kwargs = call
        return tuple(handed_on(x, read) for x in args), {name: handed_on(x, read) for name, x in kwargs.items()}

    def _receive(self, named: NamedTensors, kind: int) -> None:
        if is_observed(self._state):
            self._read(here(named), kind)


def in_graph(named: Mapping[str, Tensor], distributed: Any) -> NamedTensors:
    """What operators can take; distributed tensors cannot leave a graph."""
    return {name: samples_here(x)[0] if isinstance(x, distributed) else x for name, x in named.items()}


def here(named: Mapping[str, Tensor]) -> NamedTensors:
    """The part of each tensor that this process has, without those that have no numbers yet."""
    found = {name: x if type(x) is Tensor else local_samples(x)[0] for name, x in named.items() if not x.is_meta}
    return {name: as_dense(x) for name, x in found.items() if not is_capturing(x.device)}
