"""The end of a tick: from devices through lenses to the visualizer."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from ..engine.engine import Engine
from ..engine.rank_rows import RankMerge
from ..engine.ranks import Participant, merge_all, own_seat
from ..engine.reports import is_news
from ..errors import ExchangeError, warn
from ..lens.abstract_lens import AbstractLens
from ..lens.base import Lens
from ..lens.pushed_lens import PushedLens
from ..numerical.waiting import HostCopy, Pending
from ..preprocessor import ExplicitCall
from ..preprocessor.accumulating import AccumulatingPreprocessor, Kept
from .agreements import SharedEvents, Wishes
from .inspector_state import InspectorState

APART = "not all processes came"
"""Key in ``InspectorState.told``; removed once all processes have met again, so that it can be reported again."""

CURE = (
    "This process shows only its own numbers. For those of all processes, watch the model in each of them and tick at "
    "the same steps. If each process should show its own, pass per_rank=True"
)


class RankExchange:
    """The exchange of a tick with the same inspector in the other processes.

    What it does is decided when the tick begins; it may be done later, by another thread.

    Args:
        state: that of the inspector.
        master_rank: the rank of the process that shows the numbers.
    """

    def __init__(self, state: InspectorState, master_rank: int) -> None:
        self._state, self._meeting, self._step = state, state.meeting, state.step
        self._meeting.begin()
        self._seat, self._number = own_seat(), state.agreements.begin()
        self._agreements, self._wishes = state.agreements, Wishes(state)
        self._events = SharedEvents(state, self._seat, is_main=self._seat.rank == master_rank)
        self._master_rank = master_rank

    def merge(self, preprocessors: Iterable[AccumulatingPreprocessor], engine: Engine | None) -> None:
        """Merge the numbers of all processes; if they cannot be reached, warn once and keep this process's own."""
        state = self._state
        participants: list[Participant | RankMerge] = [*{id(one): one for one in preprocessors}.values()]
        participants += [self._wishes, self._events]
        participants += [] if engine is None else [engine.ranks]
        try:
            merge_all(participants, partial(self._meeting.exchange, step=self._step), self._seat)
            if self._wishes.agreement is not None:
                self._agreements.reach(self._number, self._wishes.agreement._replace(stop=self._events.stop))
            state.told.pop(APART, None)
        except ExchangeError as error:
            if state.on_error == "raise":
                raise
            if self._meeting.is_over and self._meeting is state.meeting:
                state.work_alone()
            if is_news(state, APART):
                warn(f"{error}. {CURE}")

    def merge_foreign(self, lenses: Iterable[AbstractLens]) -> None:
        """Sync the users' own lenses: they may use collectives, and only now all processes are known to be here."""
        if self._meeting.is_ending or not self._meeting.has_met:
            return
        others = [lens for lens in lenses if not isinstance(lens, Lens)]
        for lens in others:
            lens.start_sync(dst_rank=self._master_rank)
        for lens in others:
            lens.finish_sync()


class Tick:
    """The numbers of one tick. Until they are shown, they may still be on the GPU.

    Making one starts the copies, one per device, and gives lenses new accumulators for the next tick.

    Args:
        lenses: the lenses that show something.
        pushed: the numbers that the user has pushed.
        axis: what ticks are counted in, ``"epoch"``, ``"step"`` or ``"tick"``.
        exchange: the exchange with other processes, if there are any.
        adopt: called after the exchange, and returns the lenses to show: other processes may have logged numbers.
    """

    def __init__(
        self,
        lenses: Sequence[AbstractLens],
        pushed: ExplicitCall,
        state: InspectorState,
        axis: str,
        exchange: RankExchange | None = None,
        adopt: Callable[[], Sequence[AbstractLens]] = list,
    ) -> None:
        self._lenses, self._state, self._axis = list(lenses), state, axis
        self._exchange, self._adopt = exchange, adopt
        self.step = state.step if state.attached else state.counter  # without a model, ticks are the only steps
        self._moment = self.step, time.time()
        self.number, self._ticks = state.counter, state.ticks
        self._engine = state.engine
        self._chunks = [] if self._engine is None else self._engine.take()
        known = [lens for lens in lenses if isinstance(lens, Lens)]
        preprocessors = chain([pushed], *(lens.preprocessors for lens in known))
        self._held = [(preprocessor, preprocessor.release()) for preprocessor in preprocessors]
        rows = chain.from_iterable(chunk.pending() for chunk in self._chunks)
        samples = chain.from_iterable(self._pending(preprocessor, kept) for preprocessor, kept in self._held)
        self._diagnosis = state.diagnosis
        more = [] if self._diagnosis is None else self._diagnosis.pending()
        self._errors: list[Exception] = []
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
                self._state.rest()
                preprocessor.finish()
            if self._exchange is not None:
                self._exchange.merge([preprocessor for preprocessor, _ in self._held], self._engine)
                self._exchange.merge_foreign(self._lenses)
                adopted = self._adopt()
                self._lenses = [lens for lens in self._lenses if any(lens is known for known in adopted)]
            ready = [lens for lens in self._lenses if self._guard(self._finalize, lens)]
            if visualizer is not None:
                self._visualize(visualizer, ready)
            if self._diagnosis is not None:
                self._diagnosis.end_tick()
        for lens in self._lenses:
            if not isinstance(lens, Lens):
                self._guard(lens.reset_epoch)
        if self._errors:
            raise self._errors[0]

    def _pending(self, preprocessor: AccumulatingPreprocessor, kept: Kept) -> list[Pending]:
        pending: list[Pending] = []
        self._guard(lambda: pending.extend(preprocessor.pending(kept)))
        return pending

    def _guard(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Run the action; whether it succeeded.

        Its error is raised when the tick has ended: one lens must not keep the others from being shown.
        """
        try:
            action(*arguments)
        except OSError:
            raise
        except Exception as error:
            self._errors.append(error)
            return False
        return True

    def _finalize(self, lens: AbstractLens) -> None:
        self._state.rest()
        lens.finalize_epoch()
        if isinstance(lens, Lens):
            lens.date(self._ticks, *self._moment)
            self._state.newest = {**self._state.newest, **lens.whole_run_numbers()}

    def _visualize(self, visualizer: Any, lenses: Sequence[AbstractLens]) -> None:
        pushed = [lens for lens in lenses if isinstance(lens, PushedLens)]
        try:
            for step in sorted({step for lens in pushed for step in lens.earlier}):
                self._begin(visualizer, step)
                for each in pushed:
                    each.show_earlier(visualizer, self.number, step)
            self._begin(visualizer, self.step)
            for lens in lenses:
                self._state.rest()
                self._guard(lens.vizualize, visualizer, self.number)
            if hasattr(visualizer, "flush"):
                visualizer.flush()
        except OSError as error:  # a full disk must not end a training run
            if self._state.on_error == "raise":
                raise
            text = f"{type(visualizer).__name__} could not show tick {self.number}: {error}"
            warn(text)

    def _begin(self, visualizer: Any, step: int) -> None:
        if hasattr(visualizer, "begin_tick"):
            visualizer.begin_tick(self.number, step, self._axis)
