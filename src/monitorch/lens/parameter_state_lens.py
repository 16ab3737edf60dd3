"""The common half of the lenses that look at parameters themselves, once a tick or when asked."""

from typing import Any

from torch import nn

from ..gatherer import EpochModuleGatherer
from .base import ParameterLens


class ParameterStateLens(ParameterLens):
    """Takes a sample of each parameter at every tick, and whenever :meth:`collect_data` is called."""

    def collect_data(self) -> None:
        """Take one more sample now."""
        for gatherer in self._gatherers:
            gatherer()

    def finalize_epoch(self) -> None:
        """Take the tick's sample, then read every view."""
        self.collect_data()
        super().finalize_epoch()

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> EpochModuleGatherer:
        return EpochModuleGatherer(module, [preprocessor], module_name, inspector_state)
