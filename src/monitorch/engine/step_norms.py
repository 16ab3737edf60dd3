"""The norms of all gradients and parameters at every step, where that costs next to nothing.

On a GPU one pass reads all of them, and what it finds stays there: see :mod:`.norm_ring`. On a CPU gradients are read,
for the norm of all of them together, if that takes little of the time of a step.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..numerical.norms import as_dense, as_real
from ..numerical.waiting import Pending
from .allocation import is_capturing
from .buffers import Chunk, Entry, Info, Infos
from .columns import NONFINITE, SIZE, SQUARES, UNIT, WIDTH
from .distributed_tensors import PLAIN, SHARED, part_here
from .gradients import AT_STEP
from .kernels import host
from .loss_scale import Unscaling
from .meter import ALL_GRADIENTS, GRADIENT, PARAMETER, Measured, Meter, Subscription
from .norm_ring import OF_GRADIENTS, OF_PARAMETERS, STEPS, UNMEASURED, NormRing, RingCopy, RingReader
from .optimizers import Owned, has_closure
from .origin import UNUSUAL
from .parameters import ParameterRef, find_parameter, own_parameters
from .reports import tell
from .rows import Numbers, Places
from .state import is_observed
from .torch_private import norm_all

if TYPE_CHECKING:
    from .engine import Engine

SHARE = 0.005
"""The share of a step's time that reading all gradients may take, and the same for all parameters."""

FIRST, ENOUGH, AGAIN = 2, 5, 16
"""How many warm-up passes are not measured, from how many passes the price is known, and the pass from which on one
pass is measured again whenever their number has doubled."""

NOTICING = 1e-4
"""Seconds that a step costs more on a CPU if it cannot be quiet."""


KEPT_LAYOUTS = 64
"""How many layouts are cached."""


def is_kept_on(device: torch.device) -> bool:
    """Whether norms of every step stay on this device."""
    return device.type not in ("cpu", "meta")


class Group(NamedTuple):
    """The parameters of one optimizer on one device that have gradients and names."""

    device: torch.device
    chosen: list[int]
    """Which of the optimizer's parameters that have gradients."""
    places: Places
    places_there: Tensor
    """The same on the device."""
    counted: Tensor | None
    """Which of the group count towards the total norm; None for all."""


class Layout(NamedTuple):
    """The parameters of an optimizer that have gradients, as they were when this was made."""

    groups: list[Group]
    is_whole: bool
    """Whether the norm of all gradients can be known from the steps of the optimizers."""


class RecentNorms(NamedTuple):
    """What is known on the host: ``numbers[i, line, j]`` is the norm of ``names[j]`` after ``steps[i]`` steps."""

    steps: Places
    names: list[tuple[str, str]]
    """Layer and parameter."""
    numbers: Numbers


class Price:
    """Whether reading norms is cheap compared with a step: measured in the first passes, and ever more rarely later.

    On CUDA it is the time between events before and after a pass: kernel time if the device always has queued work,
    host time if the device waits. In the first steps it often has work from before, and no longer later. What was found
    too dear once stays so.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_low: bool | None = None
        """None while not known."""
        self._passes, self._steps, self._last_step = 0, 0, -1
        self._seconds: deque[float] = deque(maxlen=ENOUGH)
        self._spans: list[tuple[Any, Any]] = []
        self._is_new = False

    @property
    def is_measured(self) -> bool:
        """Whether enough passes were measured."""
        return len(self._seconds) + len(self._spans) >= ENOUGH

    @property
    def _is_measured_now(self) -> bool:
        passes = self._passes
        if passes <= FIRST or self.is_low is False:
            return False
        return not self.is_measured or (passes >= AGAIN and passes & (passes - 1) == 0)

    @contextmanager
    def measuring(self, step: int) -> Iterator[None]:
        """Measure the pass inside the block, if that is still needed."""
        self._passes, self._steps = self._passes + 1, self._steps + (step != self._last_step)
        self._last_step = step
        if not self._is_measured_now:
            yield
            return
        self._is_new = True
        begin, event = perf_counter(), self._event()
        yield
        if event is None:
            self._seconds.append(perf_counter() - begin)
        else:
            self._spans.append((event, self._event()))

    def decide(self, bare: float | None, share: float, more: float) -> None:
        """Compare it with the duration of a step once both are known; ``more`` seconds are added to it."""
        if self.is_low is False or not self._is_new or bare is None or not self.is_measured:
            return
        while self._spans and self._spans[0][1].query():
            begin, end = self._spans.pop(0)
            self._seconds.append(begin.elapsed_time(end) / 1000)
        if len(self._seconds) >= ENOUGH:
            seconds = statistics.median_low(self._seconds) * self._passes / self._steps
            self.is_low, self._is_new = seconds + more <= share * bare, bool(self._spans)

    def _event(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


class StepNorms:
    """Reads all gradients before each step of the optimizers, and on a GPU also all parameters.

    The norm of all gradients together goes to those who have subscribed to it, for steps that are not observed: in
    those that are, it comes from the rows of the gradients. On a GPU the norms of single tensors stay there, those of
    the last steps. If one is not finite, the host learns it a little later without waiting; then the tick is closed
    early, and the search for the origin gets these norms as rows.
    """

    name = ""
    """The layer name for all gradients together: the model itself."""

    def __init__(self, engine: "Engine") -> None:
        self._engine, self.state = engine, engine.state
        self.layers: Iterable[tuple[str, nn.Module, bool]] = ()
        """The layers of the model: name, module, and whether it is a leaf."""
        self._optimizers: list[Optimizer] = []
        self._is_kept = False
        self._sums: list[Meter] = []
        self._price = Price(engine.device)
        self._places: dict[tuple[str, str], int] = {}
        self._found: list[ParameterRef] = []
        self._known: dict[int, int] = {}
        """Places of parameters by id."""
        self._layouts: dict[tuple[int, ...], Layout] = {}
        """By the ids of parameters that have gradients: these may be others in each step."""
        self._rings: dict[torch.device, NormRing] = {}
        self._early: list[NormChunk] = []
        self._meters: list[dict[str, Meter]] = []
        """Those of each place, by kind."""
        self._copies: dict[torch.device, RingCopy] = {}
        self._judged: dict[torch.device, int] = {}
        self._calm_until = 0

    # who wants them

    def keep(self) -> None:
        """Keep those of the last steps, if the model is where that is cheap."""
        self._is_kept = True

    def watch(self, preprocessor: Measured) -> Subscription:
        """Measure all gradients together for a preprocessor, in steps that are not observed, where that is cheap."""
        return self._engine.subscribe(self._sums, self.name, self, preprocessor, ALL_GRADIENTS)

    def report(self, error: Exception, data: Any) -> None:
        """Report an error with the sum of all gradients."""
        tell(self.state, "adding up all gradients", error)

    def follow(self, optimizers: Sequence[Optimizer]) -> None:
        """Look at the steps of these."""
        for optimizer in optimizers:
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
                steps = self._engine.steps(optimizer)
                steps.before.append(self._before_step)
                steps.after.insert(0, self._after_step)  # before the step is counted

    @property
    def wants_every_step(self) -> bool:
        """Whether a step must not go by unnoticed."""
        if not self._optimizers or not (self._stays_there or self._has_sums) or self._price.is_low is False:
            return False
        return self._price.is_low is True or self._stays_there or not self._price.is_measured

    @property
    def _stays_there(self) -> bool:
        return (self._is_kept or self._has_sums) and is_kept_on(self._engine.device)

    @property
    def _has_sums(self) -> bool:
        return bool(self._sums) and self.state.gradient == AT_STEP

    # measuring

    def _before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not has_closure(args, kwargs):
            self._take(args[0], has_ended=False)

    def _after_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if has_closure(args, kwargs):  # it has just computed the gradients that the optimizer used
            self._take(args[0], has_ended=True)

    def _take(self, optimizer: Optimizer, *, has_ended: bool) -> None:
        stays, price = self._stays_there, self._price
        wants_sum = self._has_sums and not is_observed(self.state)
        if not (stays or wants_sum) or price.is_low is False or not self.state.is_recording():
            return
        if is_capturing(self._engine.device):
            return
        try:
            with price.measuring(self.state.step), torch.no_grad():
                self._read(optimizer, stays=stays, has_ended=has_ended, wants_sum=wants_sum)
        except Exception:
            price.is_low = False  # it would fail at every step
            raise
        lists, more = (2, 0.0) if stays else (1, NOTICING)
        price.decide(self.state.bare_step, lists * SHARE, more)

    def _read(self, optimizer: Optimizer, *, stays: bool, has_ended: bool, wants_sum: bool) -> None:
        trained = [own for group in optimizer.param_groups for own in group["params"] if own.grad is not None]
        layout, unscaling = self._layout(trained), self._engine.step_scales.of(optimizer)
        if not stays and not layout.is_whole:
            self._price.is_low = False  # there is nothing to gain
            return
        wants_sum = wants_sum and layout.is_whole and (self._price.is_low is True or stays)
        for group in layout.groups:
            tensors = [trained[place] for place in group.chosen]
            if is_kept_on(group.device):
                self._keep(group, tensors, unscaling, has_ended=has_ended, wants_sum=wants_sum)
            else:
                self._add_up(group, tensors, unscaling, wants_sum=wants_sum)

    def _layout(self, trained: list[Tensor]) -> Layout:
        ids = tuple(map(id, trained))
        known = self._layouts.get(ids)
        if known is not None:  # nearly always
            return known
        if not self._known.keys() >= set(ids):
            self._look_for_names()
        by_device: dict[torch.device, list[int]] = defaultdict(list)
        for number, own in enumerate(trained):
            if id(own) in self._known and not own.is_meta:
                by_device[own.device].append(number)
        owned = Owned(*self._optimizers)
        watched = [own for own in self._engine.gradients.parameters if own.requires_grad and own in owned]
        is_whole = bool(watched) and all(type(own) in PLAIN for own in watched)
        counted = set(map(id, watched)) if is_whole else set()
        groups = []
        for device, chosen in by_device.items():
            places = np.array([self._known[ids[number]] for number in chosen], np.int64)
            counts = [place for place, number in enumerate(chosen) if ids[number] in counted]
            are_all = len(counts) == len(chosen)
            there = torch.from_numpy(places).to(device, non_blocking=True)
            some = None if are_all else torch.from_numpy(np.array(counts, np.int64)).to(device, non_blocking=True)
            groups.append(Group(device, chosen, places, there, some))
        if len(self._layouts) >= KEPT_LAYOUTS:
            self._layouts.clear()
        self._layouts[ids] = Layout(groups, is_whole)
        return self._layouts[ids]

    def _look_for_names(self) -> None:
        """Find the names of all parameters; a tied parameter gets its first name."""
        self._known, self._found = {}, []
        for name, module, _ in self.layers:
            for parameter in own_parameters(module):
                tensor = find_parameter(module, parameter)
                if tensor is not None and id(tensor) not in self._known:
                    place = self._places.setdefault((name, parameter), len(self._places))
                    self._known[id(tensor)] = place
                    self._found.append(ParameterRef(module, parameter))

    def refresh(self) -> None:
        """Follow parameters that were replaced, added or removed."""
        if any(id(known.find()) not in self._known for known in self._found):
            self._known = {}
        self._layouts = {}

    def _keep(
        self, group: Group, tensors: list[Tensor], unscaling: Unscaling, *, has_ended: bool, wants_sum: bool
    ) -> None:
        """Keep norms on their device, and look whether an earlier one was not finite."""
        ring = self._rings.get(group.device)
        if ring is None or ring.numbers.shape[-1] < len(self._places):
            ring = self._rings[group.device] = NormRing(group.device, len(self._places))
        both = [part_here(own.grad) for own in tensors if own.grad is not None] + [part_here(own) for own in tensors]
        norms = torch.stack(_norms(both, ring.numbers.dtype)).reshape(2, -1)
        if unscaling.unit is not None:
            norms[OF_GRADIENTS] *= unscaling.unit.to(norms.device, non_blocking=True)
        step, works = self.state.step, unscaling.works
        if wants_sum:
            counted = norms[OF_GRADIENTS] if group.counted is None else norms[OF_GRADIENTS][group.counted]
            self._write_sum(group, counted.square().sum(), counted.numel(), works)
        ring.flag.check(norms, works)
        if works is not None:
            norms[OF_GRADIENTS] = norms[OF_GRADIENTS].where(works.to(norms.device) > 0, UNMEASURED)
        ring.write(step, has_ended, group.places, group.places_there, norms)
        if ring.flag.is_set():
            ring.flag.clear()
            if self._is_news():  # with several processes the next tick may come when the ring has forgotten it
                self._early.append(self._chunk(group.device, ring, ring.numbers.clone()))

    def _is_news(self) -> bool:
        """Whether a non-finite number is new. If so, asks for an early tick and more observed steps."""
        if self.state.first_not_finite is not None or self.state.step < self._calm_until:
            return False
        self._calm_until = self.state.step + STEPS  # what follows is a consequence
        self.state.notice(UNUSUAL)
        self.state.close_tick_soon()
        return True

    def _add_up(self, group: Group, tensors: list[Tensor], unscaling: Unscaling, *, wants_sum: bool) -> None:
        """Measure gradients on a CPU. If one is not finite, write rows for all of them and for the parameters."""
        if unscaling.works is not None and not float(unscaling.works):
            return  # the step is skipped
        gradients = [as_dense(part_here(own.grad)) for own in tensors if own.grad is not None]
        counted = gradients if group.counted is None else [gradients[place] for place in group.counted.tolist()]
        rows = host.lengths(counted)
        squares = float((rows[:, SQUARES] * rows[:, UNIT] ** 2).sum())
        if not wants_sum:
            return
        if unscaling.unit is not None:
            squares *= float(unscaling.unit) ** 2
        self._write_sum(group, squares, len(rows), None)
        if not math.isfinite(squares) and self._is_news():
            self._make_meters()
            parameters = [as_dense(part_here(own)) for own in tensors]
            entries = list[Entry]()
            for kind, measured in ((PARAMETER, parameters), (GRADIENT, gradients)):
                for place, tensor in zip(group.places.tolist(), measured, strict=True):
                    meter = self._meters[place][kind]
                    entries.append((meter, Info(meter.number, self.state.step, part=SHARED), tensor, False))
            self._engine.measure_together("lengths", entries)

    def _write_sum(self, group: Group, squares: float | Tensor, count: int, works: Tensor | None) -> None:
        buffer = self._engine.buffers[group.device]
        for meter in self._sums:
            buffer.add_sum(Info(meter.number, self.state.step, part=SHARED), squares, count, works)

    # from rings to rows

    def take(self) -> list["NormChunk"]:
        """What was kept since the last call, as rows; those of an alarm come first."""
        early, self._early = self._early, []
        new = [(device, ring) for device, ring in self._rings.items() if ring.is_new]
        for _, ring in new:
            ring.is_new = False
        return [*early, *(self._chunk(device, ring, ring.numbers) for device, ring in new)]

    def _chunk(self, device: torch.device, ring: NormRing, numbers: Tensor) -> "NormChunk":
        self._make_meters()
        return NormChunk(self, device, ring.reader(), numbers)

    def _make_meters(self) -> None:
        """Make the two meters of every place, once; another thread makes rows for them."""
        if len(self._meters) < len(self._places):
            for name, parameter in list(self._places)[len(self._meters) :]:
                kinds = (GRADIENT, PARAMETER)
                self._meters.append({kind: self._engine.unread_meter(kind, parameter, name) for kind in kinds})

    def receive(self, device: torch.device, copy: RingCopy) -> tuple[Infos, Numbers]:
        """Take a copy that has arrived on the host: the rows of steps that were not judged before.

        While everything is finite, a single row is enough.
        """
        self._copies[device] = copy
        judged, infos, rows = self._judged.get(device, -1), list[Info](), list[float]()
        steps = [place for place, entry in enumerate(copy.entries) if entry.step > judged]
        if steps:
            self._judged[device] = copy.entries[-1].step
        if self.state.first_not_finite is not None:
            steps = []  # all else is a consequence
        broken = [place for place in steps if not np.isfinite(copy.numbers[place]).all()]
        for place in steps[-1:] if not broken else [step for step in steps if step >= broken[0] - 1]:
            entry = copy.entries[place]
            measured = entry.places if broken else entry.places[:1]
            for line, kind in ((OF_PARAMETERS, PARAMETER), (OF_GRADIENTS, GRADIENT)):
                step = entry.step + (entry.has_ended and kind == PARAMETER)
                infos += [Info(self._meters[number][kind].number, step) for number in measured.tolist()]
                rows += copy.numbers[place, line, measured].tolist()
        norms = np.array(rows)
        found = np.zeros((len(rows), WIDTH))
        found[:, SQUARES], found[:, UNIT] = norms**2, norms != UNMEASURED
        found[:, SIZE], found[:, NONFINITE] = 1, math.nan
        return np.array(infos, np.int64).reshape(-1, len(Info._fields)), found

    def read(self, until: int | None = None) -> RecentNorms:
        """What has arrived on the host, up to step ``until``."""
        parts, names = list(self._copies.values()), list(self._places)
        steps = sorted(
            {entry.step for entries, _ in parts for entry in entries if until is None or entry.step <= until}
        )
        rows = {step: row for row, step in enumerate(steps)}
        numbers = np.full((len(steps), 2, len(names)), UNMEASURED)
        for entries, own in parts:
            for entry, lines in zip(entries, own, strict=True):
                if entry.step in rows:
                    numbers[rows[entry.step]][:, entry.places] = lines[:, entry.places]
        return RecentNorms(np.array(steps, np.int64), names, numbers)

    def close(self) -> None:
        """Keep nothing any more."""
        self._rings, self._layouts, self._early, self._optimizers = {}, {}, [], []


class NormChunk(Chunk):
    """A snapshot of a ring on its way to the host, where it becomes rows."""

    def __init__(self, owner: StepNorms, device: torch.device, reader: RingReader, numbers: Tensor) -> None:
        super().__init__(np.zeros((0, len(Info._fields)), np.int64), np.zeros((0, WIDTH)), {})
        self._owner, self._device, self._reader, self._numbers = owner, device, reader, numbers

    def pending(self) -> list[Pending]:
        """What to copy."""
        return [(self._read, self._numbers)]

    def _read(self, numbers: Numbers) -> None:
        self.infos, self.rows = self._owner.receive(self._device, self._reader(numbers))


def _norms(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The norm of each, in this dtype; tensors that cannot be read together are read one by one."""
    try:
        return list(norm_all(tensors, 2, dtype=dtype))
    except Exception:  # sparse and complex tensors, and rare dtypes
        return [torch.linalg.vector_norm(as_real(tensor), dtype=dtype) for tensor in tensors]
