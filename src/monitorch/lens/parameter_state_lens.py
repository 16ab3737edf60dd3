"""The common part of the lenses on the parameters themselves, read once per tick or on request."""

from collections import deque
from typing import Any

from torch import nn

from ..engine.torch_private import is_traced
from ..gatherer import EpochModuleGatherer
from ..gatherer.abstract_gatherer import Gatherer
from .parameter_lens import ParameterLens


class ParameterStateLens(ParameterLens):
    """Takes a sample of each parameter at every tick, and whenever :meth:`collect_data` is called."""

    def __init__(self, preprocessors: Any, views: Any) -> None:
        super().__init__(preprocessors, views)
        self._collected = deque[None]()
        """One entry for each tick whose sample was taken and that was not shown yet; several ticks may wait."""

    def detach_from_module(self) -> None:
        """Also forget ticks that were not shown."""
        self._collected.clear()
        super().detach_from_module()

    def collect_data(self) -> None:
        """Take one more sample now, in one go where the engine measures."""
        readers = [gatherer for gatherer in self._gatherers if isinstance(gatherer, EpochModuleGatherer)]
        engine = getattr(self._state, "engine", None)
        if engine is not None and self._state.is_active and not is_traced():
            engine.parameters.measure([target for gatherer in readers for target in gatherer.targets])
        for gatherer in [gatherer for gatherer in readers if not gatherer.targets]:
            gatherer()

    def collect(self) -> None:
        """Take the tick's sample."""
        self.collect_data()
        self._collected.append(None)

    def finalize_epoch(self) -> None:
        """Take the tick's sample if that was not done yet, then read every view.

        An inspector has taken it. This may run in its thread, where the parameters must not be read: training goes on,
        and sharded ones may be gone.
        """
        try:
            self._collected.popleft()
        except IndexError:
            self.collect_data()
        super().finalize_epoch()

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> Gatherer:
        return EpochModuleGatherer(module, [preprocessor], module_name, inspector_state, parameter=parameter)
