"""The end of a tick: from devices through lenses to the visualizer."""

import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from ..errors import MonitorchWarning
from ..lens.abstract_lens import AbstractLens
from ..lens.base import Lens
from ..numerical.deferred import parcels_of
from ..numerical.transfer import Transfer
from ..preprocessor import ExplicitCall
from .inspector_state import InspectorState


class Tick:
    """What was gathered until one moment; its numbers are on their way to the host until it is shown.

    Making one starts the copies, one per device, and gives lenses new accumulators for the next tick.

    Args:
        lenses: who shows something.
        pushed: the numbers that the user has pushed.
    """

    def __init__(self, lenses: Sequence[AbstractLens], pushed: ExplicitCall, state: InspectorState) -> None:
        self._lenses, self._state = list(lenses), state
        self._moment = state.step, time.time()
        self.number, self._ticks = state.counter, state.ticks
        known = [lens for lens in lenses if isinstance(lens, Lens)]
        for lens in known:
            lens.collect()
        if state.house is not None:
            state.house.end_step()
        rows = [] if state.house is None else state.house.ledger.parcels()
        waiting = chain(pushed.accumulators(), *(lens.accumulators() for lens in known))
        self._transfer = Transfer([*rows, *parcels_of(waiting)])
        preprocessors = chain([pushed], *(lens._preprocessors for lens in known))
        self._held = [(preprocessor, preprocessor.release()) for preprocessor in preprocessors]

    def show(self, visualizer: Any) -> None:
        """Wait for the numbers, and hand them to ``visualizer``, if there is one."""
        with ExitStack() as stack:
            for preprocessor, values in self._held:
                stack.enter_context(preprocessor.showing(values))
            self._transfer.deliver()
            for lens in self._lenses:
                lens.finalize_epoch()
                if isinstance(lens, Lens):
                    lens.date(self._ticks, *self._moment)
            if visualizer is not None:
                self._visualize(visualizer)
        for lens in self._lenses:
            if not isinstance(lens, Lens):
                lens.reset_epoch()

    def _visualize(self, visualizer: Any) -> None:
        try:
            for lens in self._lenses:
                lens.vizualize(visualizer, self.number)
            if hasattr(visualizer, "flush"):
                visualizer.flush()
        except OSError as error:  # a full disk must not end a training run
            if self._state.on_error == "raise":
                raise
            text = f"{type(visualizer).__name__} could not show tick {self.number}: {error}"
            warnings.warn(text, MonitorchWarning, stacklevel=4)
