"""The end of a tick: from devices through lenses to the visualizer."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from ..errors import ExchangeError, warn
from ..gatherer.reports import is_news
from ..lens.abstract_lens import AbstractLens
from ..lens.base import Lens
from ..lens.pushed_lens import PushedLens
from ..numerical.deferred import parcels_of
from ..numerical.sync import exchange, offer, several_processes
from ..numerical.transfer import Transfer
from ..preprocessor import ExplicitCall
from .cadence import Cadence
from .inspector_state import InspectorState

APART = "not all processes came"
"""The problem in ``InspectorState.told``; once all processes have met again, it may be reported again."""

CURE = (
    "This process shows only its own numbers. For those of all processes, watch the model in each of them and tick at "
    "the same steps. If each process should show its own, pass per_rank=True"
)


def collect(lenses: Sequence[AbstractLens], pushed: ExplicitCall, state: InspectorState, master_rank: int) -> None:
    """Collect what is measured only at ticks, and merge the numbers of several processes."""
    for lens in lenses:
        if isinstance(lens, Lens):
            lens.collect()
    if several_processes() and not state.per_rank:
        try:
            _synchronise([pushed, *lenses], state, master_rank)
            state.told.pop(APART, None)
        except ExchangeError as error:
            if state.on_error == "raise":
                raise
            if state.meeting.is_over:
                state.work_alone()
            if is_news(state, APART):
                warn(f"{error}. {CURE}", stacklevel=4)


def _synchronise(parties: Sequence[ExplicitCall | AbstractLens], state: InspectorState, master_rank: int) -> None:
    own = [party for party in parties if isinstance(party, (ExplicitCall, Lens))]
    foreign = [party for party in parties if not isinstance(party, (ExplicitCall, Lens))]
    for party in own:
        party.start_sync(dst_rank=master_rank)
    offer(Pace(state.cadence))
    if state.house is not None:
        state.house.ledger.deliver()
        offer(state.house.ledger.joint)  # last: it adds to what the other lenses have merged
    exchange(partial(state.meeting.gather, step=state.step))
    for party in own:
        party.finish_sync()
    if state.meeting.is_ending:
        return
    for lens in foreign:  # they may use collectives, and only now we know that all processes are here
        lens.start_sync(dst_rank=master_rank)
    for lens in foreign:
        lens.finish_sync()


class Pace:
    """Makes all processes observe the same steps: as many as the slowest one can afford."""

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence

    def accumulators(self) -> tuple[()]:
        """None."""
        return ()

    def payload(self) -> int:
        """The n of this process: it wants to observe every n-th step."""
        return self._cadence.n

    def merge_ranks(self, loads: dict[int, int]) -> None:
        """Take the largest n of all processes."""
        self._cadence.common_n = max(loads.values())


class Tick:
    """The numbers of one tick; until they are shown, they may still be on their way from the GPU.

    Making one starts the copies, one per device, and gives lenses new accumulators for the next tick.

    Args:
        lenses: the lenses that show something.
        pushed: the numbers that the user has pushed.
        axis: what ticks are counted in, ``"epoch"``, ``"step"`` or ``"tick"``.
    """

    def __init__(self, lenses: Sequence[AbstractLens], pushed: ExplicitCall, state: InspectorState, axis: str) -> None:
        self._lenses, self._state, self._axis = list(lenses), state, axis
        self.step = state.step if state.attached else state.counter  # without a model, ticks are the only steps
        self._moment = self.step, time.time()
        self.number, self._ticks = state.counter, state.ticks
        known = [lens for lens in lenses if isinstance(lens, Lens)]
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
        pushed = [lens for lens in self._lenses if isinstance(lens, PushedLens)]
        try:
            for step in sorted({step for lens in pushed for step in lens.earlier}):
                self._begin(visualizer, step)
                for each in pushed:
                    each.show_earlier(visualizer, self.number, step)
            self._begin(visualizer, self.step)
            for lens in self._lenses:
                lens.vizualize(visualizer, self.number)
            if hasattr(visualizer, "flush"):
                visualizer.flush()
        except OSError as error:  # a full disk must not end a training run
            if self._state.on_error == "raise":
                raise
            text = f"{type(visualizer).__name__} could not show tick {self.number}: {error}"
            warn(text, stacklevel=4)

    def _begin(self, visualizer: Any, step: int) -> None:
        if hasattr(visualizer, "begin_tick"):
            visualizer.begin_tick(self.number, step, self._axis)
