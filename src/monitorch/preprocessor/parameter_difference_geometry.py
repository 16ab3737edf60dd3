"""Length and direction of the changes of a tensor, and their length as a share of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.allocation import renewed
from ..engine.columns import WEIGHT
from ..engine.meter import EXACT, Request, through_row
from ..engine.rows import Rows
from ..numerical.norms import as_real, l2_norm
from .abstract import AbstractTensorPreprocessor
from .accumulating import Samples
from .geometry import COSINE_ERROR, NORM_ERROR, GeometryPreprocessor, comparable, norms


class ParameterDifferenceGeometry(GeometryPreprocessor, AbstractTensorPreprocessor):
    """Norms of the differences between consecutive tensors, and correlations of those differences.

    The first tensor of a name is only kept: there is nothing to subtract yet.

    With sketches, norms are estimated too, and no tensor is copied.
    """

    _errors: Mapping[str, float] = {"norm": NORM_ERROR, "correlation": COSINE_ERROR}

    def __init__(
        self, correlation: bool, normalize: bool, inplace: bool, eps: float = 1e-8, *, comparison: str = EXACT
    ) -> None:
        super().__init__(correlation, normalize, inplace, eps, comparison=comparison)
        self._before: dict[str, Tensor] = {}

    def request(self) -> Request:
        """What gatherers should measure for it."""
        return replace(super().request(), updates=self.comparison)

    @through_row
    @torch.no_grad()
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take the tensor as it is now."""
        before = self._before.get(name)
        if before is not None and comparable(before, tensor):
            # computed in place in the old copy, which is renewed right after: allocating is slow
            weight = l2_norm(as_real(before)).square() if WEIGHT in self.request().columns else None
            self.measure(name, torch.sub(tensor.detach(), before, out=before), weight)
        self.remember(name, tensor)

    @torch.no_grad()
    def remember(self, name: str, tensor: Tensor) -> None:
        """Measure the next change from here."""
        self._before[name] = renewed(self._before.get(name), tensor)

    def interrupt(self, name: str) -> None:
        """Do not compare the next tensor with the last one."""
        super().interrupt(name)
        self._before.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """Also the last tensors, which the next ones are compared with."""
        return {**super().state_dict(), "tensors": dict(self._before)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._before = dict(state["tensors"])

    def clear(self) -> None:
        """Forget the last tensors as well."""
        self._before.clear()
        super().clear()


class ParameterDifferenceRatio(ParameterDifferenceGeometry):
    """Norm of each change of a tensor divided by the norm of the tensor before it; no sample if that is 0.

    Args:
        inplace: keep only running moments, instead of every sample.
        comparison: what gatherers keep during a step: an ``"exact"`` copy, a ``"sketch"``, or ``"auto"``.
    """

    statistics = ("ratio",)
    _errors: Mapping[str, float] = {"ratio": NORM_ERROR}

    def __init__(self, inplace: bool, *, comparison: str = EXACT) -> None:
        super().__init__(correlation=False, normalize=False, inplace=inplace, comparison=comparison)

    def request(self) -> Request:
        """What gatherers should measure for it."""
        return replace(super().request(), columns=frozenset({WEIGHT}))

    def derive(self, rows: Rows) -> Samples:
        """The ratios."""
        weights = np.sqrt(rows[WEIGHT])
        has_none = (weights == 0) | (np.isinf(weights) & ~rows.is_broken)  # the squares of finite numbers overflow
        return np.ma.array(norms(rows, by_size=False) / weights, mask=has_none)
