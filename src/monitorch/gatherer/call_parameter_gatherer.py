"""A parameter, on request."""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..engine.parameters import find_parameter
from ..preprocessor import AbstractTensorPreprocessor
from .abstract_gatherer import Gatherer, GathererState


class CallParameterGatherer(Gatherer):
    """Passes on one parameter of a module each time it is called."""

    def __init__(
        self,
        module: nn.Module,
        parameter: str,
        preprocessors: Sequence[AbstractTensorPreprocessor],
        name: str,
        inspector_state: GathererState,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module, self._parameter = weakref.ref(module), parameter

    def __call__(self, *_: Any) -> None:
        """Pass on the parameter as it is now; one that is not initialised yet is skipped."""
        parameter = self._current_parameter()
        if parameter is not None or self.inspector_state is None:
            self._hand_over(parameter)

    def _current_parameter(self) -> Tensor | None:
        """The parameter as it is now; None if there is nothing to pass on."""
        module = None if self.inspector_state is None else self._module()
        return None if module is None else find_parameter(module, self._parameter)

    def _process(self, preprocessor: AbstractTensorPreprocessor, *data: Any) -> None:
        preprocessor.process_tensor(self.name, *data)
