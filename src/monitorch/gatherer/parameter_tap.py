"""Parameters as they are: all that are looked at in one go are measured together."""

from typing import Any

from torch import Tensor, nn

from ..numerical.length import as_dense
from ..numerical.notes import Note
from ..preprocessor.parameters import find_parameter
from .site import Site


class ParameterTap:
    """Keeps the parameters to be measured until :meth:`flush`."""

    def __init__(self, house: Any) -> None:
        self._house = house
        self._waiting: list[tuple[Site, Tensor]] = []

    def look(self, site: Site, module: nn.Module, parameter: str) -> None:
        """Have a parameter measured with the others."""
        tensor = find_parameter(module, parameter)
        if tensor is not None:
            self._waiting.append((site, as_dense(tensor)))

    def flush(self) -> None:
        """Measure what was looked at."""
        waiting, self._waiting = self._waiting, []
        step = self._house.state.step
        self._house.measure_together("gradients", [(Note(site, 0, step), tensor, False) for site, tensor in waiting])
