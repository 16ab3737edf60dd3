"""The values of parameters: those that are read at one time are measured together."""

from typing import Any

from torch import Tensor, nn

from ..numerical.length import as_dense
from ..numerical.notes import Note
from ..numerical.shards import local_part
from ..preprocessor.parameters import find_parameter
from .site import Site


class ParameterTap:
    """Keeps the parameters to be measured until :meth:`flush`."""

    def __init__(self, house: Any) -> None:
        self._house = house
        self._waiting: list[tuple[Note, Tensor, bool]] = []

    def look(self, site: Site, module: nn.Module, parameter: str) -> None:
        """Measure this parameter with the others."""
        tensor = find_parameter(module, parameter)
        if tensor is not None:
            local, part = local_part(tensor)
            if self._house.averages and local is tensor:
                # fully_shard resizes the memory of gathered parameters later, which fails once NumPy holds a view of it
                local = tensor.detach().clone()
            self._waiting.append((Note(site, 0, self._house.state.step, part), as_dense(local), False))

    def flush(self) -> None:
        """Measure all parameters that wait."""
        waiting, self._waiting = self._waiting, []
        self._house.measure_together("gradients", waiting)
