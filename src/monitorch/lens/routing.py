"""Whether the experts of a mixture of experts get the same share of tokens."""

from typing import Any

from torch import nn

from ..gatherer.module_gatherers import RouterGatherer
from ..preprocessor.routing import DROPPED, ENTROPY, ExpertShares
from . import options
from .base import Lens
from .module_distinction import experts_per_token, isrouter
from .options import Strings
from .views import ComputedLines, LayerLines, Source


class Routing(Lens):
    """How evenly the routers of mixture-of-experts layers spread tokens over experts, in training passes.

    A token may go to several experts. The share of an expert is that of all these choices: n_e / sum(n). *Entropy* is
    -sum(share ln(share)) / ln(experts) of each pass: 1 if all experts get the same, 0 if one gets everything. *Load* is
    the largest and the smallest share of a tick times the number of experts, which is 1 if all get the same: a layer
    with a capacity factor below the largest one drops tokens. *Unused experts* got no token in a tick. *Dropped tokens*
    are those that a router gives to no expert; what a layer drops later is not known.

    How to read it: an entropy that falls, with unused experts, means that routing collapses. Raise the load-balancing
    loss, or lower the learning rate of the routers. Below about 0.7, much of the model is unused.

    A router is a module that returns a number for each token and expert, ``[..., experts]``. If it also returns
    integers, these say which experts are chosen: indices after the numbers, as in nearly all models of the transformers
    library, or a mask before them, as in its Switch Transformers. Otherwise the largest ``top_k`` are chosen. Modules
    are taken for routers if the name of their class contains "Router", or if it contains "Gate" or "Gating" and they
    have an attribute ``top_k``. Padding counts like any token.

    Each observed step costs about ten small operations for each router, and nothing waits for the device. Idle steps
    cost nothing. Compiled routers are seen, too, without a graph break. With several processes counts add up.

    Args:
        routers: names of the modules that are routers, such as ``"layers.0.gate"``, or the ends of such names, as
            ``"gate"``; None to find them.
        top_k: how many experts each token goes to, for routers that do not say which ones they choose. None: the
            router's own attribute ``top_k``.
        experts: layers with at most this many experts have a line for each of them.
    """

    _cure = "name its routers with routers="

    def __init__(self, routers: Strings | None = None, *, top_k: int | None = None, experts: int = 16) -> None:
        self._routers = None if routers is None else options.strings("routers", routers)
        self._top_k = None if top_k is None else options.whole("top_k", top_k, 1)
        shares = ExpertShares(options.whole("experts", experts, 1))
        views = [
            LayerLines("Routing Entropy", Source(shares, ENTROPY), ["mean"], ["min-max"], ylim=(0, 1)),
            ComputedLines("Expert Shares", shares.shares, ylim=(0, 1)),
            ComputedLines("Expert Load", shares.load),
            ComputedLines("Unused Experts", shares.unused),
            LayerLines("Dropped Tokens", Source(shares, DROPPED), ["mean"], ["min-max"], ylim=(0, 1)),
        ]
        super().__init__([shares], views)

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the module if it is a router."""
        if self._is_router(module, module_name):
            top_k = experts_per_token(module) if self._top_k is None else self._top_k
            gatherer = RouterGatherer(module, self._preprocessors, module_name, inspector_state, top_k)
            self._watch(gatherer, module_name, module_name)

    register_non_leaf_module = register_leaf_module

    def _is_router(self, module: nn.Module, name: str) -> bool:
        if self._routers is not None:
            return any(name == end or name.endswith(f".{end}") for end in self._routers)
        return isrouter(module)
