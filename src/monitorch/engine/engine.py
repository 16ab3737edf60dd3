"""Everything that measures for one inspector: the taps that lenses share, their meters, and their rows."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import warn
from ..numerical.waiting import HostCopy, ReentrantLock
from .allocation import Allowance
from .buffers import BASELINE, GAPS, GENERATION, METER, NO_GRAPH, STEP, TAG, Buffers, Chunk, Entry, Infos
from .columns import FOLLOWS, UNIT
from .compilation import spare_the_compiler
from .functional_calls import FunctionalCalls
from .gradients import GradientTap
from .inputs import InputTap
from .loss_scale import Correction, StepScales
from .meter import (
    ALL_GRADIENTS,
    GRADIENT,
    OUTPUT_GRADIENT,
    PARAMETER,
    UPDATE,
    Measured,
    Meter,
    Reporter,
    Request,
    Subscriber,
    Subscription,
    find_meter,
    request_of,
)
from .module_hook import Resting
from .optimizers import OptimizerSteps
from .origin import UNUSUAL, OriginFinder
from .outputs import OutputTap
from .parameters import ParameterBank, ParameterTap
from .passes import TrainingBackward
from .rank_rows import RankMerge
from .ranks import several_processes
from .recent_rows import RecentRows
from .reports import tell
from .rows import LastRows, Mask, Numbers, Rows, RowTable, are_broken
from .state import State
from .step_checks import StepCheck
from .step_norms import StepNorms
from .torch_private import number_of_graphs
from .updates import UpdateTap

COMPILES_AGAIN = (
    "torch.compile has made graphs while no step was observed; in case the watched model is inside, "
    "torch.compiler.reset() was called, so they compile again"
)


class Engine:
    """One tap per module output, one for gradients, one per optimizer for updates, and the rows they write.

    Rows are folded under one lock, in measuring order. Reading a number waits until earlier rows are folded, whichever
    thread does it.

    Args:
        state: the state of the inspector: whether to record, and the step.
        device: the device of the model.
        averages: whether gradients are averaged over processes while backward ends.
        model: the model that is trained.
    """

    def __init__(
        self, state: State, device: torch.device, *, averages: bool = False, model: nn.Module | None = None
    ) -> None:
        self.state, self.device, self.averages = state, device, averages
        self.may_wait = True
        """Whether gradients of one backward pass may be measured together at its end."""
        self.joins = not state.per_rank
        """With several processes, whether rows wait until those of all processes are merged."""
        self.ranks = RankMerge(self.fold)
        self.buffers = Buffers(self._fold_early)
        self.buffers[device]  # before a compiled model runs with memory of its own
        self.meters: list[Meter] = []
        self.allowance = Allowance()
        self._subscribers: dict[int, Subscriber] = {}
        self.origins = OriginFinder(state, self.meters)
        self._last = LastRows()
        self.recent_rows: RecentRows | None = None
        """Keeps the rows of the last steps, if asked for; not those of parameters, which are read at ticks."""
        self._seen: set[int] = set()
        self._lock = ReentrantLock()
        self.gradients = GradientTap(self)
        self.parameters = ParameterTap(self)
        self.calls = FunctionalCalls(self)
        self.inputs = InputTap(state)
        self.module_taps: list[Resting] = []
        """Other objects with hooks on modules, such as taps that pass tensors on instead of measuring them."""
        self.backward = TrainingBackward(model, state, lambda: self.gradients.followed)
        self.step_scales = StepScales()
        self._outputs: dict[int, OutputTap] = {}
        self._updates: dict[int, UpdateTap] = {}
        self._steps: dict[int, OptimizerSteps] = {}
        self.when_no_pass_has_begun: Callable[[nn.Module], None] | None = None
        """Called with the first layer that runs, if no pass of the model was noticed before."""
        self.is_awake = True
        """Whether the hooks are in place; during idle steps they are not."""
        self._resting: set[Resting] = set()
        self._graphs_before = number_of_graphs()
        self._step_checks: list[StepCheck] = []
        self.norms = StepNorms(self)

    @classmethod
    def of(cls, model: nn.Module, state: State) -> "Engine":
        """The engine for a model; a model without tensors counts as being on the CPU."""
        spare_the_compiler()
        tensor = next(chain(model.parameters(), model.buffers()), None)
        device = torch.device("cpu") if tensor is None else tensor.device
        return cls(state, device, averages=state.averages, model=model)

    @property
    def is_blind(self) -> bool:
        """Whether outputs are watched, but none was ever seen."""
        taps = [tap for tap in self._outputs.values() if not isinstance(tap.module(), ParameterBank)]
        meters = [meter for tap in taps for meter in tap.outputs]
        return bool(meters) and not any(meter.number in self._seen for meter in meters)

    @property
    def checks_steps(self) -> bool:
        """Whether something is measured at every step, so that none may go by unnoticed."""
        return any(check.is_open for check in self._step_checks) or self.norms.wants_every_step

    # taps and meters

    def output(self, module: nn.Module, name: str) -> OutputTap:
        """The tap on a module's output."""
        tap = self._outputs.get(id(module))
        if tap is None or tap.module() is not module:  # another module may have had the same id
            tap = self._outputs[id(module)] = OutputTap(self, module, name)
        return tap

    def updates(self, optimizer: Optimizer) -> UpdateTap:
        """The tap on an optimizer's steps."""
        tap = self._updates.get(id(optimizer))
        if tap is None:
            tap = self._updates[id(optimizer)] = UpdateTap(self, optimizer)
            steps = self.steps(optimizer)
            steps.keeping.append(tap.before_step)
            steps.after.insert(0, tap.after_step)  # right after the step of the optimizer
        return tap

    def check_steps(self, optimizer: Optimizer) -> StepCheck:
        """What checks gradients and parameters at steps that are not observed."""
        self._step_checks.append(StepCheck(self, optimizer))
        return self._step_checks[-1]

    def end_check(self, check: StepCheck) -> None:
        """A step check is over."""
        if check in self._step_checks:
            self._step_checks.remove(check)

    def steps(self, optimizer: Optimizer) -> OptimizerSteps:
        """What notices an optimizer's steps."""
        if id(optimizer) not in self._steps:
            self._steps[id(optimizer)] = OptimizerSteps(optimizer, self.state, self.state.clock)
        return self._steps[id(optimizer)]

    def subscribe(
        self,
        meters: list[Meter],
        name: str,
        gatherer: Reporter,
        preprocessor: Measured,
        *what: Any,
        parameter: str | None = None,
        output_index: int | str | None = None,
        share: float = 1.0,
    ) -> Subscription:
        """Measure for a preprocessor, with one of ``meters`` or a new one.

        Args:
            meters: the meters of the tensor.
            name: the layer.
            gatherer: reports what fails.
            preprocessor: gets the rows.
            what: what is measured; together with the layer's name, the same in every process.
            parameter: the key for the preprocessor's numbers, in addition to the gatherer's name.
            output_index: which part of an output to measure.
            share: the share of the global loss that this process computes.
        """
        request = request_of(preprocessor, output_index)
        subscriber = self._subscribers.get(id(preprocessor))
        if subscriber is None:
            subscriber = self._subscribers[id(preprocessor)] = Subscriber(preprocessor)
        # a tensor with two names is measured twice: a preprocessor has one slot per meter
        meter = find_meter([meter for meter in meters if not subscriber.has(meter.number)], request)
        if meter is None:
            meter = self._new_meter(name, request, share)
            self.ranks.register(meter, *what, name)
            meters.append(meter)
        else:
            meter.widen(request)
        preprocessor.before_reading = self.settle
        return Subscription(meters, meter, gatherer, subscriber, parameter)

    def unread_meter(self, *what: Any) -> Meter:
        """A meter whose rows no preprocessor gets; ``what`` ends with the name of the layer."""
        meter = self._new_meter(what[-1], Request(), 1.0)
        self.ranks.register(meter, *what)
        return meter

    def _new_meter(self, name: str, request: Request, share: float) -> Meter:
        meter = Meter(len(self.meters), name, request, share, self.allowance)
        self.meters.append(meter)
        return meter

    def _leave(self, place: int) -> None:
        """Stop measuring the updates of this optimizer."""
        tap, steps = self._updates.pop(place), self._steps[place]
        steps.keeping.remove(tap.before_step)
        steps.after.remove(tap.after_step)
        if not steps.keeping and not steps.before and not steps.after:
            self._steps.pop(place).remove()

    def come_last(self) -> None:
        """Let all other hooks run before a step is measured."""
        for steps in self._steps.values():
            steps.come_last()

    @property
    def compares(self) -> bool:
        """Whether tensors of consecutive steps are compared."""
        return bool(self._compared())

    @property
    def takes_scaled_gradients(self) -> bool:
        """Whether gradients are measured before a GradScaler has unscaled them."""
        return self.gradients.takes_scaled or any(tap.gradients for tap in self._outputs.values())

    # measuring

    def measure_together(self, verb: str, entries: Iterable[Entry], correction: Correction | None = None) -> None:
        """Measure many tensors, each in the buffer of its device."""
        by_device: dict[torch.device, list[Entry]] = defaultdict(list)
        for entry in entries:
            if not entry[2].is_meta:  # there are no numbers in it
                by_device[entry[2].device].append(entry)
        for device, own in by_device.items():
            buffer = self.buffers[device]
            try:
                with nullcontext() if correction is None else buffer.corrected(*correction):
                    getattr(buffer, verb)(own)
            except Exception as error:
                for meter, _, *data in own:
                    meter.fail(error, data)

    def rest(self) -> None:
        """Nothing is recorded until :meth:`wake`: take the hooks off, so that idle steps cost nothing."""
        self.is_awake = False
        self.gradients.rest()
        self.calls.rest()
        for updates in self._updates.values():
            updates.rest()
        taps: list[Resting] = [*self._outputs.values(), *self.module_taps]
        for tap in taps:
            if tap.is_eager:
                self.send_to_rest(tap)

    def send_to_rest(self, tap: Resting) -> None:
        """Take the hook of one module off; not once graphs are compiled, which might be made without it."""
        if not self._compiles:
            self._resting.add(tap)
            tap.rest()

    @property
    def _compiles(self) -> bool:
        """Whether graphs were compiled since the model is watched, maybe with the model inside."""
        return number_of_graphs() != self._graphs_before

    def wake(self) -> None:
        """Recording begins again: put all hooks back."""
        self.is_awake = True
        if self._resting and self._compiles:
            torch.compiler.reset()  # graphs that were compiled in the meantime do not contain the taps
            warn(COMPILES_AGAIN)
            self.collect()
            self.buffers.forget_graphs()
        while self._resting:
            self._resting.pop().wake()
        self.gradients.wake()

    def forget(self, tap: Resting) -> None:
        """A tap was closed: do not wake it."""
        self._resting.discard(tap)

    def average(self, share: float) -> None:
        """From now on gradients are averaged over processes, and this process computes this share of the loss."""
        self.averages = True
        for tap in self._outputs.values():
            for meter in tap.gradients:
                meter.share = share

    def skip_step(self, optimizer: Optimizer) -> None:
        """An optimizer's step is skipped."""
        self.origins.skip([self.state.step])
        self.gradients.skip_step(optimizer)
        if id(optimizer) in self._updates:
            self._updates[id(optimizer)].skip_step()

    def collect(self) -> None:
        """Take what CUDA graphs have measured, before their next run overwrites it."""
        if not self.buffers.have_captured:
            return
        state = self.state
        unit = None if state.loss_scale is None else state.loss_scale.unit()
        self.buffers.collect(state.step, BASELINE if state.is_baseline else 0, state.gaps, unit)

    # from rows to preprocessors

    def take(self) -> list[Chunk]:
        """All rows so far; :meth:`fold_chunks` after they were copied."""
        self.collect()
        return [*self.norms.take(), *self.buffers.take()]

    def settle(self) -> None:
        """Bring all rows to their preprocessors now; with several processes they wait for those of the others."""
        if self.state.settle():
            with self._lock:
                self.fold_now()

    def fold_now(self) -> None:
        """The same for rows that no tick has taken; with one copy per device."""
        chunks, ended = self.take(), self.state.step
        if chunks:
            HostCopy(pending for chunk in chunks for pending in chunk.pending()).deliver()
            self.fold_chunks(chunks, ended)
        if self.ranks.waits and not self._waits_for_others():
            self.ranks.hand_out_alone()

    def find_origin(self) -> None:
        """Check the rows so far for non-finite numbers, including a step that may never end."""
        self.settle()
        self._search(self.origins.judge, self.state.step, is_last=True)

    def _search(self, search: Callable[..., None], *args: Any, **options: Any) -> None:
        """Look for the first tensor that was not finite."""
        try:
            with self._lock:
                search(*args, **options)
        except Exception as error:
            tell(self.state, "looking for what was not finite first", error)

    def _is_recent(self, infos: Infos, rows: Numbers) -> Mask:
        """Which rows belong in the flight record: those of observed steps, and broken ones of other steps."""
        in_steps = np.array([meter.kind not in (PARAMETER, ALL_GRADIENTS) for meter in self.meters])[infos[:, METER]]
        is_read = np.array([bool(meter.subscriptions) for meter in self.meters])[infos[:, METER]]
        found: Mask = in_steps & ((infos[:, TAG] & BASELINE) == 0) & (is_read | are_broken(rows))
        return found

    def _fold_early(self, chunk: Chunk) -> None:
        """A buffer is full."""
        self.state.settle()
        self.fold_chunks([chunk])

    def fold_chunks(self, chunks: Sequence[Chunk], ended: int = 0) -> None:
        """Fold rows of this process, or with several processes keep them for the exchange.

        ``ended``: how many steps had ended when these rows were taken.
        """
        with self._lock:
            shares = np.array([meter.share for meter in self.meters])
            for chunk in chunks:
                was_written = chunk.rows[:, UNIT] != 0  # otherwise its kernel failed, or its graph did not run
                infos, rows = chunk.infos[was_written], chunk.rows[was_written]
                rows[:, UNIT] *= shares[infos[:, METER]]
                self._note_skipped(chunk.infos[~was_written])
                self._drop_stale(infos, rows)
                if self.recent_rows is not None:
                    is_wanted = self._is_recent(infos, rows)
                    self.recent_rows.keep(infos[is_wanted], rows[is_wanted])
                if self._waits_for_others():
                    places = np.cumsum(was_written) - 1
                    alive = {int(places[row]): flags for row, flags in chunk.alive.items() if was_written[row]}
                    self.ranks.keep(infos, rows, alive)
                else:
                    self.fold(infos, rows)
            self._search(self.origins.judge, ended)

    def _note_skipped(self, infos: Infos) -> None:
        """Rows that were never written: if they are gradients or updates, the optimizer skipped the step."""
        used = [info for info in infos.tolist() if self.meters[info[METER]].kind in (GRADIENT, UPDATE)]
        self.origins.skip(info[STEP] for info in used)

    def fold(self, infos: Infos, rows: Numbers) -> None:
        """Let every preprocessor add its samples, those of all layers at once."""
        if not len(rows):
            return
        with self._lock:
            table = RowTable(infos[:, METER], rows, self._last, infos[:, STEP])
            is_broken = are_broken(rows)
            self._search(self.origins.take, infos, is_broken)
            if is_broken.any():
                self.state.notice(UNUSUAL)
            tags = infos[table.order, TAG]
            is_baseline, kinds = (tags & BASELINE) > 0, tags % BASELINE
            self._seen.update(np.unique(table.owners).tolist())
            for subscriber in list(self._subscribers.values()):
                chosen, places = subscriber.choose(table.owners, kinds)
                if len(chosen):
                    flags = is_baseline[chosen], subscriber.is_first(places), subscriber.lacks
                    own = Rows(table, chosen, places, subscriber.preprocessor.names, *flags)
                    subscriber.preprocessor.fold(own, subscriber.report)

    def _drop_stale(self, infos: Infos, rows: Numbers) -> None:
        """Undo comparisons that CUDA graphs made with anything older than the previous row.

        Such a graph compares with what is in its memory. Whether that is the last tensor is known only here: there may
        have been a gap, or a graph for another shape, with its own memory, may have run in between.
        """
        for row in np.flatnonzero(infos[:, GENERATION] != NO_GRAPH):
            meter, lineage = self.meters[infos[row, METER]], (int(infos[row, GENERATION]), int(infos[row, GAPS]))
            if lineage != meter.lineage:
                rows[row, FOLLOWS] = 0
            meter.lineage = lineage

    def _waits_for_others(self) -> bool:
        return self.joins and several_processes()

    # the life of a run

    def state_dict(self) -> dict[str, Any]:
        """What the next tensors are compared with; output gradients are left out because they are too large."""
        meters = {}
        for meter in self._compared():
            comparison = meter.comparison.state_dict(with_tensor=meter.kind != OUTPUT_GRADIENT)
            meters[meter.key] = {**comparison, "last": self._last.row(meter.number)}
        return {"meters": meters, "ranks": self.ranks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; a layer that is not in it starts from the beginning."""
        for meter in self._compared():
            if meter.key in state["meters"]:
                saved = state["meters"][meter.key]
                meter.load_state_dict(saved, self.device)
                if saved["last"] is not None:
                    self._last.set(meter.number, saved["last"])
                    for subscription in meter.subscriptions:
                        subscription.subscriber.go_on(meter.number)
        self.ranks.load_state_dict(state["ranks"])

    def _compared(self) -> list[Meter]:
        return [meter for tap in self._taps() for meter in tap.meters if meter.compares]

    def _taps(self) -> Iterable[GradientTap | OutputTap | UpdateTap]:
        return self.gradients, *self._outputs.values(), *self._updates.values()

    def refresh(self) -> None:
        """Follow parameters that were replaced, and remove hooks that are no longer needed."""
        self._subscribers = {place: known for place, known in self._subscribers.items() if known.is_used}
        self.gradients.refresh()
        self.norms.refresh()
        self.calls.refresh()
        for place, updates in list(self._updates.items()):
            updates.refresh()
            if not updates.meters:
                self._leave(place)
        for place, output in list(self._outputs.items()):
            if not output.meters:
                self._outputs.pop(place).close()

    def close(self) -> None:
        """Remove all hooks."""
        for tap in self._taps():
            tap.close()
        for steps in self._steps.values():
            steps.remove()
        self.calls.close()
        self.norms.close()
        self._outputs, self._updates, self._steps = {}, {}, {}
