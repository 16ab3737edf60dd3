"""Length and direction of the changes of a tensor."""

from typing import Any

import torch
from torch import Tensor

from ..numerical.geometry_computation import comparable
from ..numerical.memory import renewed
from .abstract import AbstractTensorPreprocessor
from .ask import Ask
from .geometry import GeometryPreprocessor


class ParameterDifferenceGeometry(GeometryPreprocessor, AbstractTensorPreprocessor):
    """Norms of the differences between consecutive tensors, and correlations of those differences.

    The first tensor of a name is only kept: there is nothing to subtract from it yet.
    """

    def __init__(
        self, correlation: bool, normalize: bool, inplace: bool, eps: float = 1e-8, *, sketch: bool = False
    ) -> None:
        super().__init__(correlation, normalize, inplace, eps, sketch=sketch)
        self._previous: dict[str, Tensor] = {}

    @torch.no_grad()
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take the tensor as it is now."""
        previous = self._previous.get(name)
        if previous is not None and comparable(previous, tensor):
            # the old copy becomes the difference in place: it is renewed right after, and allocating is slow
            self._measure(name, torch.sub(tensor.detach(), previous, out=previous))
        self.remember(name, tensor)

    @torch.no_grad()
    def remember(self, name: str, tensor: Tensor) -> None:
        """Measure the next change from here."""
        self._previous[name] = renewed(self._previous.get(name), tensor)

    def interrupt(self, name: str) -> None:
        """The next tensor is not one step after the last one."""
        super().interrupt(name)
        self._previous.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """Also the last tensors, from which changes are measured."""
        return {**super().state_dict(), "tensors": dict(self._previous)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._previous = dict(state["tensors"])

    def clear(self) -> None:
        """Forget the last tensors as well."""
        self._previous.clear()
        super().clear()

    def ask(self) -> Ask:
        """What gatherers are to measure in passing."""
        return Ask(correlation=self.comparison)
