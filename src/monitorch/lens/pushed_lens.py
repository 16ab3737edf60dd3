"""The common part of the lenses on numbers that belong to no layer."""

import math
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..numerical import Accumulator
from ..preprocessor import AbstractPreprocessor, ExplicitCall
from ..preprocessor.run_numbers import RunNumbers
from ..visualizer.frame import TagFrame
from ..visualizer.record import Record
from .base import Lens


class PushedLens(Lens):
    """Shows numbers that the user pushes into the inspector; needs no layers.

    Some numbers belong to an earlier step than the tick that shows them: these are shown first, step by step.
    """

    _call: ExplicitCall | None = None

    def __init__(self, preprocessors: Iterable[RunNumbers], views: Iterable[Any]) -> None:
        super().__init__(preprocessors, views)
        self.earlier: dict[int, list[TagFrame]] = {}
        """The numbers of the last tick that belong to earlier steps, by step."""
        self._read: dict[RunNumbers, dict[int | None, dict[str, Accumulator]]] = {}

    def register_foreign_preprocessor(self, ext_ppr: AbstractPreprocessor, inspector_state: Any) -> None:
        """Receive the pushed numbers."""
        super().register_foreign_preprocessor(ext_ppr, inspector_state)
        if isinstance(ext_ppr, ExplicitCall):
            self._call = ext_ppr

    def finalize_epoch(self) -> None:
        """Read every view, for every step that has numbers."""
        sources = [*self._preprocessors, *([] if self._call is None else [self._call])]
        self._read = {source: source.by_step() for source in sources}
        super().finalize_epoch()
        self.earlier = {}
        for step in sorted({step for found in self._read.values() for step in found if step is not None}):
            frames = [view.read((), step) for view in self._views]
            self.earlier[step] = [frame for frame in frames if frame.layers]
        self._read = {}

    def date(self, tick: int, step: int, moment: float) -> None:
        """The same; numbers of a later step than the tick are shown at the tick."""
        super().date(tick, step, moment)
        earlier, self.earlier = self.earlier, {}
        for found, frames in earlier.items():
            self.earlier.setdefault(min(found, step), []).extend(frames)

    def show_earlier(self, visualizer: Any, epoch: int, step: int) -> None:
        """Pass the numbers of one earlier step to the visualizer."""
        self._show(self.earlier.get(step, []), visualizer, epoch, step)

    def records(self, epoch: int) -> list[Record]:
        """The numbers of the last tick, one by one, those of earlier steps first."""
        before = [self._records(frames, epoch, step) for step, frames in self.earlier.items()]
        return [record for records in (*before, super().records(epoch)) for record in records]

    def detach_from_module(self) -> None:
        """Also forget the numbers of earlier steps."""
        super().detach_from_module()
        self.earlier = {}

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Ignore all layers."""

    def finish_attach(self) -> None:
        """Do nothing: this lens needs no layers."""

    def _pushed(self, names: Iterable[str], step: int | None) -> dict[str, Accumulator]:
        """The pushed numbers of these names, of an earlier step or, with None, of the tick itself."""
        known = {} if self._call is None else self._at(self._call, step)
        return {name: known[name] for name in names if name in known}

    def _at(self, source: RunNumbers, step: int | None) -> dict[str, Accumulator]:
        """The numbers of a source at a step; while all steps are read, from the cache."""
        return self._read[source].get(step, {}) if source in self._read else source.at(step)

    def _last_number(self, line: str) -> float:
        """The number that the last tick showed under the first tag; NaN if it showed none."""
        self._state.settle()
        if self._state.ticks == 0:
            raise KeyError("there are no numbers yet: end a tick first")
        return self._frames[0].number(line) if self._is_fresh() else math.nan

    def _loss_names(self) -> tuple[str, str]:
        """The names of the training loss and the validation loss."""
        if self._call is None:
            raise AttributeError("this lens has no inspector yet: pass it to PyTorchInspector(lenses=[...])")
        return self._call.train_loss_str, self._call.non_train_loss_str
