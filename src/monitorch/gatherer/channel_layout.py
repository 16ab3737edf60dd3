"""Which dimension of an activation holds the channels, judged by the layer that made its input."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..engine.graph import GraphHook
from ..engine.module_hook import ModuleHook
from ..engine.parameters import own_parameters
from ..engine.tensors import pick_tensor
from ..engine.torch_private import Convolution, Normalization
from ..preprocessor.data import IMAGE

if TYPE_CHECKING:
    from ..engine.engine import Engine

CHANNELS_IN_DIM_1 = (Convolution, Normalization, nn.GroupNorm)
CHANNELS_LAST = (
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag),
    *(nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention, nn.RNNBase),
)


class LayoutHook(GraphHook):
    """Notices that a module with weights has run.

    Args:
        last_dim: whether its channels are the last dimension; None if that depends on what it returns.
    """

    def __init__(self, layout: "ChannelLayout", last_dim: bool | None, engine: "Engine | None") -> None:
        super().__init__(None if engine is None else engine.state, "looking where channels are")
        self._layout, self._last_dim = layout, last_dim

    def eager(self, _: nn.Module, *call: Any) -> None:
        """It has run; no keyword arguments come if a hook before this one has removed it."""
        if self._last_dim is None:
            self._layout.note_own(call[-1])
        else:
            self._layout.note(self._last_dim)

    def in_graph(self, *_: Any) -> None:
        """Inside a graph, which module ran is not known."""


class ChannelLayout:
    """Decides, per layer, whether channels are the last dimension.

    The last weighted module that ran before the layer's first observed pass decides: convolutions and batch norms have
    their channels in dimension 1, linear layers, embeddings, layer norms and attention in the last. Other modules with
    weights count as channels-last unless they return images; then the layout before them is kept. The answer for a
    layer never changes; when all layers have one, the hooks are removed. Inside a compiled graph no hook can see which
    module ran: there the last weighted module defined before the layer decides, and the hooks stay, because removing
    them would cause a recompilation.

    With an engine, the hooks are off while nothing is recorded, like those of taps.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._last_dim = self._last_built = False
        self._ran = self._has_graphs = False
        self._guesses: dict[str, bool] = {}
        self._decided: dict[str, bool] = {}
        self._undecided: set[str] = set()
        self._hooks: dict[int, ModuleHook] = {}

    @property
    def is_eager(self) -> bool:
        """Whether modules are called, instead of being parts of compiled graphs."""
        return self._ran

    def expect(self, name: str) -> None:
        """Announce a layer that will need an answer."""
        self._undecided.add(name)
        self._guesses[name] = self._last_built

    def watch(self, module: nn.Module, engine: "Engine | None" = None) -> None:
        """Notice when ``module`` runs, if it has weights of its own, parametrised ones included."""
        if engine is not None and self._engine is None:
            self._engine = engine
            engine.module_taps.append(self)
        if isinstance(module, (torch.jit.ScriptModule, nn.PReLU)):  # a PReLU does not move channels
            return
        if id(module) not in self._hooks and own_parameters(module):
            in_dim_1, in_last = isinstance(module, CHANNELS_IN_DIM_1), isinstance(module, CHANNELS_LAST)
            self._last_built = not in_dim_1
            hook = LayoutHook(self, in_last if in_dim_1 or in_last else None, engine)
            self._hooks[id(module)] = ModuleHook(module, hook)

    def __call__(self, name: str) -> bool:
        """Whether the channels of layer ``name`` are its last dimension."""
        if name not in self._decided:
            self._decided[name] = self._last_dim if self._ran else self._guesses.get(name, False)
            self._undecided.discard(name)
            if self._ran and not self._undecided and not self._has_graphs:
                self._remove_hooks()
        return self._decided[name]

    def guess(self, name: str) -> bool:
        """The same for a layer inside a compiled graph, where no hook can see which module ran before."""
        self._has_graphs = True
        self._undecided.discard(name)
        return self._decided.setdefault(name, self._guesses.get(name, False))

    def detach(self) -> None:
        """Forget everything."""
        self._remove_hooks()
        self.__init__()  # type: ignore[misc]

    def rest(self) -> None:
        """Take the hooks off until :meth:`wake`."""
        for hook in self._hooks.values():
            hook.rest()

    def wake(self) -> None:
        """Put them back."""
        for hook in self._hooks.values():
            hook.wake()

    def note(self, last_dim: bool) -> None:
        """A module with weights has run."""
        self._last_dim, self._ran = last_dim, True
        engine = self._engine
        if engine is not None and not engine.is_awake:  # the first pass was idle
            engine.send_to_rest(self)

    def note_own(self, output: Any) -> None:
        """The same for a module of an unknown class."""
        try:
            found = pick_tensor(output)
        except Exception:  # an output that cannot be looked at says nothing about channels
            return
        self.note(self._last_dim or found is None or found.dim() < IMAGE)

    def _remove_hooks(self) -> None:
        self.rest()
        self._hooks = {}
        if self._engine is not None:
            self._engine.forget(self)
            self._engine.module_taps.remove(self)
            self._engine = None
