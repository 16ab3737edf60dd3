"""A whole module, on request."""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..preprocessor import AbstractModulePreprocessor
from ..preprocessor.parameters import find_parameter
from .abstract_gatherer import Gatherer, State
from .site import subscribe


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
        self._house = self._shared_house()
        if self._house is not None:
            self._handles += [subscribe([], name, self, preprocessor) for preprocessor in preprocessors]
            for preprocessor, place in zip(self._preprocessors, self._handles, strict=True):
                self._house.enrol(place.site, "parameter", *self._parameters_for(preprocessor))

    def __call__(self) -> None:
        """Pass on the module as it is now; with shared taps, the parameters of all modules are measured together."""
        module = self._module()
        if module is None and self.inspector_state is not None:
            return
        if self._house is None or self.inspector_state is None:
            self._hand_over(module)
        elif self._wants_data():
            for preprocessor, place in zip(self._preprocessors, self._handles, strict=True):
                for parameter in self._parameters_for(preprocessor):
                    place.site.guarded(self._house.parameters.look, place.site, module, parameter)

    def _is_step_observed(self) -> bool:
        return True  # it is read at ticks, at whatever step they come

    def _parameters_for(self, preprocessor: Any) -> Sequence[str]:
        return preprocessor.attrs_ if self._parameter is None else (self._parameter,)

    def _process(self, preprocessor: Any, *data: Any) -> None:
        if self._parameter is None:
            preprocessor.process_module(self.name, *data)
            return
        parameter = find_parameter(data[0], self._parameter)
        if parameter is not None:
            preprocessor.process_parameter(self.name, parameter)
