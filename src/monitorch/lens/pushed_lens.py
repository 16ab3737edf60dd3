"""The common half of the lenses on numbers that belong to no layer."""

import math
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..numerical import Accumulator
from ..preprocessor import AbstractPreprocessor, ExplicitCall
from .base import Lens


class PushedLens(Lens):
    """Knows the numbers that the user pushes into the inspector, and misses no layers."""

    _call: ExplicitCall | None = None

    def register_foreign_preprocessor(self, ext_ppr: AbstractPreprocessor, inspector_state: Any) -> None:
        """Meet the pushed numbers."""
        super().register_foreign_preprocessor(ext_ppr, inspector_state)
        if isinstance(ext_ppr, ExplicitCall):
            self._call = ext_ppr

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Pass over all layers."""

    def finish_attach(self) -> None:
        """Be content without layers."""

    def _pushed(self, names: Iterable[str]) -> dict[str, Accumulator]:
        """The pushed numbers of those names that there are."""
        known = {} if self._call is None else self._call.value
        return {name: known[name] for name in names if name in known}

    def _last_number(self, line: str) -> float:
        """What the tick that has just ended showed under the first tag; NaN if it showed nothing."""
        self._state.settle()
        if self._state.ticks == 0:
            raise KeyError("there was no tick yet whose numbers could be told")
        values = self._frames[0].values.get(self._frames[0].tag, {}) if self._is_fresh() else {}
        return values.get(line, math.nan)

    def _loss_names(self) -> tuple[str, str]:
        """The names of the training loss and the other one."""
        if self._call is None:
            raise AttributeError("this lens belongs to no inspector yet")
        return self._call.train_loss_str, self._call.non_train_loss_str
