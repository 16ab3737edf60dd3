"""A whole module, on request."""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..engine.meter import Meter
from ..engine.parameters import find_parameter
from ..preprocessor import AbstractModulePreprocessor
from .abstract_gatherer import Gatherer, State


class EpochModuleGatherer(Gatherer):
    """Passes on a module each time it is called.

    Args:
        parameter: pass on only this parameter; by default preprocessors choose.
    """

    def __init__(
        self,
        module: nn.Module,
        preprocessors: Sequence[AbstractModulePreprocessor],
        name: str,
        inspector_state: State,
        *,
        parameter: str | None = None,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module, self._parameter = weakref.ref(module), parameter
        self._meters: list[tuple[Meter, str]] = []
        self._measures = self._engine()
        if self._measures is not None:
            watch = self._measures.parameters.watch
            for preprocessor in self._preprocessors:
                for own in preprocessor.attrs_ if parameter is None else (parameter,):
                    kept_under = own if parameter is None else preprocessor.attrs_[0]
                    subscription = watch(own, name, self, preprocessor, kept_under)
                    self._handles.append(subscription)
                    self._meters.append((subscription.meter, own))

    def __call__(self) -> None:
        """Pass on the module as it is now; where an engine measures, the parameters of all modules together."""
        module = self._module()
        if module is None and self.inspector_state is not None:
            return
        if self._measures is None or self.inspector_state is None:
            self._hand_over(module)
        elif self._wants_data():
            for meter, parameter in self._meters:
                meter.guarded(self._measures.parameters.look, meter, module, parameter)

    def _is_step_observed(self) -> bool:
        return True  # it is read at ticks, at whatever step they come

    def _process(self, preprocessor: Any, *data: Any) -> None:
        if self._parameter is None:
            preprocessor.process_module(self.name, *data)
            return
        parameter = find_parameter(data[0], self._parameter)
        if parameter is not None:
            preprocessor.process_parameter(self.name, parameter)
