"""One tensor of one layer that is measured at each pass, and those who want its rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SkippedSample
from ..numerical.kernels.reference import SKETCH
from ..numerical.kernels.row import UNIT
from ..numerical.ledger import Rows
from ..preprocessor.ask import Ask

LEAD = 4
"""The bit of a row's tag that says: measured only so that the next one has something to be compared with."""


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
        self.version = -1
        self.scratch: Tensor | None = None
        self.door: Any = None
        self.interrupted = True
        self.gap = 0
        self.failed = False
        self.sketched = False
        self.in_graph = False
        self._channel_dim: int | None = None

    @property
    def eps(self) -> float:
        """Up to which absolute value a number counts as zero."""
        return self.ask.rates[0] if self.ask.rates else 0.0

    @property
    def rates(self) -> bool:
        """Whether active numbers are counted."""
        return self.ask.rates is not None

    @property
    def channel_dim(self) -> int | None:
        """Which dimension of an output holds the channels; None where nobody asks."""
        if self._channel_dim is None and self.ask.rates is not None:
            last = self.ask.rates[1]
            if self.in_graph:
                last = getattr(last, "guess", last)
            self._channel_dim = -1 if (last(self.name) if callable(last) else last) else 1
        return self._channel_dim

    def follows(self, x: Tensor, gap: int) -> bool:
        """Make room for ``x``, and say whether the tensor before is there: ``gap`` counts interruptions so far."""
        if self.ask.correlation is None:
            return False
        self.sketched = self.ask.correlation == "sketch" and x.numel() > SKETCH  # else the tensor itself is smaller
        fits = self._fits(x)
        continues = fits and not self.interrupted and self.gap == gap
        if not fits:
            self.previous = self._room_for(x)
        self.interrupted, self.gap, self._seen = False, gap, (x.shape, x.device)
        return continues

    def _fits(self, x: Tensor) -> bool:
        previous = self.previous
        if previous is None or self._seen != (x.shape, x.device):
            return False
        if self.sketched or (previous.dtype == x.dtype and previous.stride() == x.stride()):
            return True
        self.previous = torch.empty_like(x).copy_(previous)
        return True

    def _room_for(self, x: Tensor) -> Tensor:
        if self.sketched:
            return torch.zeros(2, SKETCH, dtype=torch.float32, device=x.device)
        return torch.empty_like(x, requires_grad=False)

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
        kinds = np.asarray(tags)
        is_lead = (kinds & LEAD) > 0
        for gatherer, preprocessor in self.takers:
            passes = preprocessor.ask().passes
            wanted = np.isin(kinds & ~LEAD, list(passes)) if len(passes) < 4 else slice(None)
            gatherer.guarded(preprocessor.take, self.name, rows[wanted], is_lead[wanted])


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
        site.ask = site.ask | ask
    return Subscription(sites, site, (gatherer, preprocessor))


def asks(preprocessor: Any) -> bool:
    """Whether gatherers may measure for it: its own class says so, an inherited answer may be out of date."""
    return "ask" in vars(type(preprocessor))
