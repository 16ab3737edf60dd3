"""Whatever the user logs by name."""

from typing import Any

from torch import nn

from ..numerical import Accumulator
from ..preprocessor import AbstractPreprocessor
from .base import Lens
from .views import NamedLines


class LoggedScalars(Lens):
    """Shows pushed numbers that nobody declared; an inspector makes one when something is logged."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._call: AbstractPreprocessor | None = None
        super().__init__([], [NamedLines("Logged", self._read_logged, ("mean",), ())])

    def register_foreign_preprocessor(self, ext_ppr: AbstractPreprocessor, inspector_state: Any) -> None:
        """Meet the pushed numbers."""
        super().register_foreign_preprocessor(ext_ppr, inspector_state)
        self._call = ext_ppr

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """This lens needs no layers."""

    def finish_attach(self) -> None:
        """Nor does it miss them."""

    def _read_logged(self) -> dict[str, Accumulator]:
        pushed = {} if self._call is None else self._call.value
        return {name: pushed[name] for name in self.names if name in pushed}
