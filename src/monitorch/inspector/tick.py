"""The end of a tick: from devices through lenses to the visualizer."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import torch.distributed as dist

from ..engine.ranks import exchange, offer, several_processes
from ..engine.reports import is_news
from ..errors import ExchangeError, warn
from ..lens.abstract_lens import AbstractLens
from ..lens.base import Lens
from ..lens.pushed_lens import PushedLens
from ..numerical.waiting import HostCopy
from ..preprocessor import ExplicitCall
from ..store.types import Event
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


def _synchronise(parts: Sequence[ExplicitCall | AbstractLens], state: InspectorState, master_rank: int) -> None:
    own = [part for part in parts if isinstance(part, (ExplicitCall, Lens))]
    foreign = [part for part in parts if not isinstance(part, (ExplicitCall, Lens))]
    for part in own:
        part.start_sync(dst_rank=master_rank)
    offer(SharedCadence(state))
    offer(SharedEvents(state, is_main=dist.get_rank() == master_rank))
    if state.engine is not None:
        state.engine.settle()
        offer(state.engine.ranks)  # last: it adds to what the other lenses have merged
    exchange(partial(state.meeting.gather, step=state.step))
    for part in own:
        part.finish_sync()
    if state.meeting.is_ending:
        return
    for lens in foreign:  # they may use collectives, and only now we know that all processes are here
        lens.start_sync(dst_rank=master_rank)
    for lens in foreign:
        lens.finish_sync()


class SharedCadence:
    """Makes all processes observe and tick at the same steps: as often as the slowest one can afford."""

    def __init__(self, state: InspectorState) -> None:
        self._state = state

    def payload(self) -> tuple[int, int]:
        """Every how many steps this process wants to observe one, and in how many it wants the next tick."""
        state = self._state
        since = max(1, state.step - state.agreed_at)
        wanted = state.steps_to_next_tick or since
        return state.cadence.affordable_n(max(wanted, since)), wanted

    def merge_ranks(self, payloads: dict[int, tuple[int, int]]) -> None:
        """Take the largest numbers of all processes."""
        n, steps = (max(wishes) for wishes in zip(*payloads.values(), strict=True))
        self._state.cadence.common_n, self._state.cadence.has_agreed = n, True
        self._state.steps_to_next_tick, self._state.agreed_at = steps, self._state.step


class SharedEvents:
    """Shows the events of all processes in one of them, and lets all stop training at the same step.

    Args:
        is_main: whether this process shows them.
    """

    def __init__(self, state: InspectorState, *, is_main: bool) -> None:
        self._state, self._is_main = state, is_main

    def payload(self) -> tuple[list[Event], Event | None]:
        """The new events of this process, and the one for which it wants to stop."""
        events = self._state.events
        return events.take_unsent(), events.stop

    def merge_ranks(self, payloads: dict[int, tuple[list[Event], Event | None]]) -> None:
        """Take the events of the others, and the first one for which any process wants to stop."""
        own = dist.get_rank()
        if self._is_main:
            self._state.events.receive(
                {rank: sent for rank, (sent, _) in payloads.items() if rank != own}, payloads[own][0]
            )
        wishes = [stop for _, stop in payloads.values() if stop is not None]
        if wishes and len(payloads) == dist.get_world_size():  # otherwise those that are missing would go on
            self._state.events.stop = min(wishes, key=lambda event: event.step)
            self._state.agreed_stop = True


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
        self._engine = state.engine
        self._chunks = [] if self._engine is None else self._engine.take()
        known = [lens for lens in lenses if isinstance(lens, Lens)]
        preprocessors = chain([pushed], *(lens._preprocessors for lens in known))
        self._held = [(preprocessor, preprocessor.release()) for preprocessor in preprocessors]
        rows = chain.from_iterable(chunk.pending() for chunk in self._chunks)
        samples = chain.from_iterable(preprocessor.pending(kept) for preprocessor, kept in self._held)
        self._diagnosis = state.diagnosis
        more = [] if self._diagnosis is None else self._diagnosis.pending()
        self._copy = HostCopy(chain(rows, samples, more))

    def show(self, visualizer: Any) -> None:
        """Wait for the numbers, and hand them to ``visualizer``, if there is one."""
        with ExitStack() as stack:
            for preprocessor, kept in self._held:
                stack.enter_context(preprocessor.showing(kept))
            self._copy.deliver()
            if self._engine is not None:
                self._engine.fold_chunks(self._chunks, self.step)
            for preprocessor, _ in self._held:
                preprocessor.finish()
            for lens in self._lenses:
                lens.finalize_epoch()
                if isinstance(lens, Lens):
                    lens.date(self._ticks, *self._moment)
            if visualizer is not None:
                self._visualize(visualizer)
            if self._diagnosis is not None:
                self._diagnosis.end_tick()
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
