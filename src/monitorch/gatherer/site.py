"""One tensor of one layer that is measured at each pass, and those who want its rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SkippedSample
from ..numerical.kernels.reference import SKETCH
from ..numerical.kernels.row import UNIT
from ..numerical.memory import is_capturing, lasting
from ..numerical.notes import LEAD, Rows
from ..numerical.precision import UNIT_DTYPES, difference_dtype
from ..numerical.sync import several_processes
from ..preprocessor.ask import Ask


class Site:
    """Grants the wishes of several preprocessors with one pass, and keeps what the next pass needs.

    Args:
        name: the layer.
        share: what part of the global loss this process computes; lengths are multiplied by it.
    """

    def __init__(self, name: str, ask: Ask, share: float = 1.0) -> None:
        self.name, self.ask, self.share = name, ask, share
        self.takers: list[tuple[Any, Any]] = []  # gatherer, preprocessor
        self.previous: Tensor | None = None
        self.before: Tensor | None = None
        """For updates: what the next tensor is measured from."""
        self.reader: Any = None
        """What measures tensors like the last one; the page of their device chooses it."""
        self.door: Any = None
        self.key: tuple[Any, ...] = ()
        """The name of this site in every process."""
        self.interrupted = True
        self.gap = 0
        self.failed = False
        self.sketched = False
        self.in_graph = self.seen = False
        self.room = 0
        """How often the memory for the tensor before was replaced."""
        self.line: tuple[int, int] | None = None
        """The line of the last row, where there may be CUDA graphs."""
        self._like: Any = None
        self._unfold()

    def widen(self, ask: Ask) -> None:
        """Grant one more wish."""
        self.ask = self.ask | ask
        if self.previous is None:
            self._like = None  # there may be something to make room for now
        self._unfold()

    def _unfold(self) -> None:
        """Have the wish in attributes: hooks ask for them at every pass."""
        self.rates, self.correlation = self.ask.rates is not None, self.ask.correlation
        self.eps = self.ask.rates[0] if self.ask.rates else 0.0
        self.passes, self.index = self.ask.passes, self.ask.output_index
        self.exact_death = self.ask.exact_death
        self.reader = None
        self.__dict__.pop("channel_dim", None)

    @cached_property
    def channel_dim(self) -> int | None:
        """Which dimension of an output holds the channels; None where nobody asks."""
        if self.ask.rates is None:
            return None
        last = self.ask.rates[1]
        if self.in_graph:
            last = getattr(last, "guess", last)
        return -1 if (last(self.name) if callable(last) else last) else 1

    def alive(self, x: Tensor) -> Tensor | None:
        """Which channels of an output have an active number, where other processes have to know."""
        if self.in_graph or self.channel_dim is None or not several_processes():
            return None
        by_channel = x.detach().movedim(self.channel_dim, 0).flatten(1)
        return (by_channel.abs() > self.eps).any(dim=1)

    def knows(self, x: Tensor) -> bool:
        """Whether ``x`` is laid out like the last tensor, so that its reader serves."""
        like = x.shape, x.device, x.dtype, x.stride()
        known, self._like = self._like, like
        return self.reader is not None and known == like

    def follows(self, x: Tensor, gap: int) -> bool:
        """Make room for ``x``, and say whether the tensor before is there: ``gap`` counts interruptions so far."""
        like = x.shape, x.device, x.dtype, x.stride()
        continues = (like == self._like or self._fit(x, like)) and not self.interrupted and self.gap == gap
        self.interrupted, self.gap = False, gap
        return continues and self.correlation is not None

    def _fit(self, x: Tensor, like: Any) -> bool:
        """Have room for a tensor unlike the last one; whether the last one can still be compared with it."""
        self.reader = None
        previous, known, self._like = self.previous, self._like, like
        self.sketched = self.correlation == "sketch" and x.numel() > SKETCH  # else the tensor itself is smaller
        is_same = previous is not None and known is not None and known[:2] == like[:2]
        if is_same and known[2] != like[2] and UNIT_DTYPES & {known[2], like[2]}:
            is_same = False  # the length of the last one is known in another unit
        if self.sketched and is_same and known[3] != like[3]:
            is_same = False  # a sketch depends on how the elements lie in memory
        if self.in_graph and is_capturing(x.device):
            is_same = False  # a copy would become part of the graph
        if self.correlation is not None and not (is_same and self.sketched):
            self.previous, self.room = self._room_for(x), self.room + 1
            if is_same and previous is not None:
                self.previous.copy_(previous)
        return is_same

    def _room_for(self, x: Tensor) -> Tensor:
        if self.sketched:
            make = partial(torch.zeros, 2, SKETCH, dtype=torch.float32, device=x.device)
        else:
            dtype = x.dtype if self.before is None else difference_dtype(x)
            make = partial(torch.empty_like, x, dtype=dtype, requires_grad=False)
        return lasting(make, x.device, in_graph=self.in_graph)

    def state_dict(self, *, with_tensor: bool) -> dict[str, Any]:
        """What the next tensor is compared with; a whole tensor only if that is small enough to be kept."""
        previous = self.previous if with_tensor or self.sketched else None
        like = None if self._like is None or previous is None else [tuple(self._like[0]), *self._like[2:]]
        previous = None if previous is None else previous.clone()  # it is overwritten in the next step
        return {"previous": previous, "like": like, "interrupted": self.interrupted, "gap": self.gap}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Go on from there; without its tensor the next one does not follow."""
        self.gap, self.interrupted = state["gap"], state["interrupted"] or state["like"] is None
        self.room, self.line = self.room + 1, None
        if state["like"] is not None:
            self.line = self.room, self.gap
            shape, dtype, stride = state["like"]
            self._like = torch.Size(shape), device, dtype, tuple(stride)
            self.previous, self.reader = state["previous"].to(device, copy=True), None
            self.sketched = self.correlation == "sketch" and self.previous.shape != torch.Size(shape)

    def guarded(self, action: Callable[..., Any], *data: Any) -> Any:
        """Call ``action`` unless one failed before; what goes wrong is told and never reaches the training loop."""
        if self.failed:
            return None
        try:
            return action(*data)
        except Exception as error:
            self.fail(error, data)
        return None

    def fail(self, error: Exception, data: Any) -> None:
        """Have every gatherer here tell what went wrong; after more than a sample left out, nothing is measured."""
        self.failed = not isinstance(error, SkippedSample)
        for gatherer, _ in self.takers:
            gatherer.report(error, data)

    def deliver(self, rows: Rows, tags: Sequence[int]) -> None:
        """Hand rows to all takers, each those of the passes it asked for."""
        if self.share != 1:
            rows[:, UNIT] *= self.share
        self.seen = True
        kinds = np.asarray(tags)
        is_lead = (kinds & LEAD) > 0
        for gatherer, preprocessor in self.takers:
            passes = preprocessor.ask().passes
            wanted = np.isin(kinds & 3, list(passes)) if len(passes) < 4 else slice(None)
            gatherer.guarded(preprocessor.take, gatherer.name, rows[wanted], is_lead[wanted])


class Subscription:
    """A gatherer's place at a site; like the handle of a hook it can be removed."""

    def __init__(self, sites: list[Site], site: Site, taker: tuple[Any, Any]) -> None:
        self._sites, self.site, self._taker = sites, site, taker
        site.takers.append(taker)

    def remove(self) -> None:
        """Leave the site, and close it if nobody else is there."""
        if self._taker in self.site.takers:
            self.site.takers.remove(self._taker)
        if not self.site.takers and self.site in self._sites:
            self._sites.remove(self.site)


def subscribe(
    sites: list[Site],
    name: str,
    gatherer: Any,
    preprocessor: Any,
    *,
    output_index: int | str | None = None,
    share: float = 1.0,
) -> Subscription:
    """Have a preprocessor's wish granted at one of ``sites``, or at a new one."""
    ask = preprocessor.ask()
    if output_index is not None:
        ask = replace(ask, output_index=output_index)
    site = next((site for site in sites if site.ask.joins(ask)), None)
    if site is None:
        site = Site(name, ask, share)
        sites.append(site)
    else:
        site.widen(ask)
    return Subscription(sites, site, (gatherer, preprocessor))


def asks(preprocessor: Any) -> bool:
    """Whether gatherers may measure for it: its own class says so, an inherited answer may be out of date."""
    return "ask" in vars(type(preprocessor))
