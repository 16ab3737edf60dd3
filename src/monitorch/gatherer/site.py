"""One tensor of one layer that is measured at each pass, and the preprocessors that want its rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.columns import UNIT
from ..engine.kernels.reference import SKETCH
from ..errors import SkippedSample
from ..numerical.memory import is_capturing, lasting
from ..numerical.notes import LEAD, Rows
from ..numerical.precision import UNIT_DTYPES, difference_dtype
from ..numerical.sync import several_processes
from ..preprocessor.ask import Ask


class Site:
    """Measures one tensor once for several preprocessors, and keeps what the next pass needs.

    Args:
        name: the layer.
        share: the share of the global loss that this process computes; lengths are multiplied by it.
    """

    def __init__(self, name: str, ask: Ask, share: float = 1.0) -> None:
        self.name, self.ask, self.share = name, ask, share
        self.takers: list[tuple[Any, Any]] = []  # gatherer, preprocessor
        self.previous: Tensor | None = None
        self.before: Tensor | None = None
        """For updates: the tensor that the next one is compared with."""
        self.reader: Any = None
        """The function that measures tensors like the last one; chosen by the page of their device."""
        self.door: Any = None
        self.key: tuple[Any, ...] = ()
        """The name of this site in every process."""
        self.interrupted = True
        self.gap = 0
        self.failed = False
        self.sketched = False
        self.in_graph = self.seen = False
        self.room = 0
        """How often the memory for the previous tensor was replaced."""
        self.line: tuple[int, int] | None = None
        """The place of the last row, if there may be CUDA graphs."""
        self._like: Any = None
        self._unfold()

    def widen(self, ask: Ask) -> None:
        """Also measure what this preprocessor asks for."""
        self.ask = self.ask | ask
        if self.previous is None:
            self._like = None  # memory for the previous tensor may be needed now
        self._unfold()

    def _unfold(self) -> None:
        """Copy what is asked for into attributes, which hooks read at every pass."""
        self.rates, self.correlation = self.ask.rates is not None, self.ask.correlation
        self.eps = self.ask.rates[0] if self.ask.rates else 0.0
        self.passes, self.index = self.ask.passes, self.ask.output_index
        self.exact_death = self.ask.exact_death
        self.reader = None
        self.__dict__.pop("channel_dim", None)

    @cached_property
    def channel_dim(self) -> int | None:
        """Which dimension of an output holds the channels; None if no preprocessor needs it."""
        if self.ask.rates is None:
            return None
        last = self.ask.rates[1]
        if self.in_graph:
            last = getattr(last, "guess", last)
        return -1 if (last(self.name) if callable(last) else last) else 1

    def alive(self, x: Tensor) -> Tensor | None:
        """Which channels of an output are active; None unless other processes need to know."""
        if self.in_graph or self.channel_dim is None or not several_processes():
            return None
        by_channel = x.detach().movedim(self.channel_dim, 0).flatten(1)
        return (by_channel.abs() > self.eps).any(dim=1)

    def knows(self, x: Tensor) -> bool:
        """Whether ``x`` has the same layout as the last tensor, so that the same reader works."""
        like = x.shape, x.device, x.dtype, x.stride()
        known, self._like = self._like, like
        return self.reader is not None and known == like

    def follows(self, x: Tensor, gap: int) -> bool:
        """Make room for ``x``; whether it can be compared with the last tensor. ``gap``: how many gaps there were."""
        like = x.shape, x.device, x.dtype, x.stride()
        continues = (like == self._like or self._fit(x, like)) and not self.interrupted and self.gap == gap
        self.interrupted, self.gap = False, gap
        return continues and self.correlation is not None

    def _fit(self, x: Tensor, like: Any) -> bool:
        """Make room for a tensor with another layout; whether it can still be compared with the last one."""
        self.reader = None
        previous, known, self._like = self.previous, self._like, like
        self.sketched = self.correlation == "sketch" and x.numel() > SKETCH  # otherwise the tensor itself is smaller
        is_same = previous is not None and known is not None and known[:2] == like[:2]
        if is_same and known[2] != like[2] and UNIT_DTYPES & {known[2], like[2]}:
            is_same = False  # the length of the last one is in another unit
        if self.sketched and is_same and known[3] != like[3]:
            is_same = False  # a sketch depends on the memory layout of the elements
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
        """What the next tensor is compared with; a whole tensor only if it is small enough."""
        previous = self.previous if with_tensor or self.sketched else None
        like = None if self._like is None or previous is None else [tuple(self._like[0]), *self._like[2:]]
        previous = None if previous is None else previous.clone()  # it is overwritten in the next step
        return {"previous": previous, "like": like, "interrupted": self.interrupted, "gap": self.gap}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from a saved state; without the last tensor, the next one is not compared."""
        self.gap, self.interrupted = state["gap"], state["interrupted"] or state["like"] is None
        self.room, self.line = self.room + 1, None
        if state["like"] is not None:
            self.line = self.room, self.gap
            shape, dtype, stride = state["like"]
            self._like = torch.Size(shape), device, dtype, tuple(stride)
            self.previous, self.reader = state["previous"].to(device, copy=True), None
            self.sketched = self.correlation == "sketch" and self.previous.shape != torch.Size(shape)

    def guarded(self, action: Callable[..., Any], *data: Any) -> Any:
        """Call ``action`` unless one failed before; errors are reported and never reach the training loop."""
        if self.failed:
            return None
        try:
            return action(*data)
        except Exception as error:
            self.fail(error, data)
        return None

    def fail(self, error: Exception, data: Any) -> None:
        """Let every gatherer here report the error; then stop measuring, unless only a sample is left out."""
        self.failed = not isinstance(error, SkippedSample)
        for gatherer, _ in self.takers:
            gatherer.report(error, data)

    def deliver(self, rows: Rows, tags: Sequence[int]) -> None:
        """Pass rows to all preprocessors, each those of the passes it asked for."""
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
    """A gatherer's subscription to a site; can be removed, like the handle of a hook."""

    def __init__(self, sites: list[Site], site: Site, taker: tuple[Any, Any]) -> None:
        self._sites, self.site, self._taker = sites, site, taker
        site.takers.append(taker)

    def remove(self) -> None:
        """Unsubscribe from the site, and close it if it has no other subscriber."""
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
    """Subscribe a preprocessor to one of ``sites``, or to a new one."""
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
    """Whether gatherers may measure for it: only its own class can say so, an inherited answer may not fit any more."""
    return "ask" in vars(type(preprocessor))
