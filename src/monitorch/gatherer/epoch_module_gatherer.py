"""A whole module, whenever somebody asks."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..preprocessor import AbstractModulePreprocessor
from .abstract_gatherer import Gatherer, State
from .site import subscribe


class EpochModuleGatherer(Gatherer):
    """Hands over a module each time it is called."""

    def __init__(
        self, module: nn.Module, preprocessors: Sequence[AbstractModulePreprocessor], name: str, inspector_state: State
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module: nn.Module | None = module
        self._house = self._shared_house()
        if self._house is not None:
            self._handles += [subscribe([], name, self, preprocessor) for preprocessor in preprocessors]
            for preprocessor, place in zip(self._preprocessors, self._handles, strict=True):
                self._house.enrol(place.site, "parameter", *preprocessor.attrs_)

    def __call__(self) -> None:
        """Hand over the module as it is now; where taps are shared its parameters wait for those of other modules."""
        if self._house is None or self._module is None:
            self._hand_over(self._module)
        elif self._wants_data():
            for preprocessor, place in zip(self._preprocessors, self._handles, strict=True):
                for parameter in preprocessor.attrs_:
                    place.site.guarded(self._house.parameters.look, place.site, self._module, parameter)

    def detach(self) -> None:
        """Let go of the module."""
        super().detach()
        self._module = None

    def _process(self, preprocessor: AbstractModulePreprocessor, *data: Any) -> None:
        preprocessor.process_module(self._name, *data)
