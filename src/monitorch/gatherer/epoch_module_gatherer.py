"""A whole module, on request."""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..engine.parameters import Target, find_parameter
from ..preprocessor import AbstractModulePreprocessor
from .abstract_gatherer import Gatherer, GathererState


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
        inspector_state: GathererState,
        *,
        parameter: str | None = None,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module, self._parameter = weakref.ref(module), parameter
        self.targets: list[Target] = []
        """What the engine measures, if it does."""
        engine = self._engine()
        self._tap = None if engine is None else engine.parameters
        if self._tap is not None:
            for preprocessor in self._preprocessors:
                for own in preprocessor.attrs_ if parameter is None else (parameter,):
                    kept_under = own if parameter is None else preprocessor.attrs_[0]
                    subscription = self._tap.watch(own, name, self, preprocessor, kept_under)
                    self._handles.append(subscription)
                    self.targets.append(Target(subscription.meter, self._module, own))

    def __call__(self) -> None:
        """Pass on the module as it is now."""
        module = self._module()
        if module is None and self.inspector_state is not None:
            return
        if self._tap is None or self.inspector_state is None:
            self._hand_over(module)
        elif self._wants_data():
            self._tap.measure(self.targets)

    def _is_step_observed(self) -> bool:
        return True  # it is read at ticks, at whatever step they come

    def _process(self, preprocessor: Any, *data: Any) -> None:
        if self._parameter is None:
            preprocessor.process_module(self.name, *data)
            return
        parameter = find_parameter(data[0], self._parameter)
        if parameter is not None:
            preprocessor.process_parameter(self.name, parameter)
