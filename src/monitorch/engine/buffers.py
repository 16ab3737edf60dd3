"""Buffers for rows: on the host, on a device, or captured by a CUDA graph. A tick takes all rows at once.

There is one buffer per device. Its methods measure a tensor with a suitable kernel and write one row, without waiting.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import SkippedSample
from ..numerical.norms import as_dense, as_real
from ..numerical.precision import difference, wide_dtype_of
from ..numerical.waiting import HostCopy, Pending
from .allocation import is_capturing, lasting
from .columns import FOLLOWS, NONFINITE, SIZE, SQUARES, UNIT, WEIGHT, WIDTH
from .distributed_tensors import OWN
from .kernels import fused, fused_many, host, reference
from .loss_scale import Correction
from .meter import Meter
from .passes import ALL_PASSES
from .rows import Numbers
from .torch_private import norm_all

CAPACITY = 1 << 15
"""The most rows kept before they are folded; limits memory between ticks."""

CAPTURED = 1 << 12
"""How many rows CUDA graphs may write, per device."""

KEPT_TABLES = 256
"""How many tables of launches for many tensors are cached."""

BASELINE = len(ALL_PASSES)
"""Tag bit above those for the kind of pass: the row only serves as a baseline for the next one."""

ALONE, SKETCHED = "alone", "sketched"
"""Names of two groups: tensors measured one by one, and parameters whose sketches are kept."""

NO_GRAPH = -1
"""The generation of rows that no CUDA graph can have written."""


class Info(NamedTuple):
    """Where a row comes from."""

    meter: int
    step: int
    tag: int = 0
    """The kind of the pass, and :data:`BASELINE`."""
    part: int = OWN
    """With several processes, which part of the tensor this is; rows of the same part are duplicates."""
    generation: int = NO_GRAPH
    """With CUDA graphs, rows of a meter are compared only within one generation and gap, see ``Engine._drop_stale``."""
    gaps: int = 0


METER, STEP, TAG, PART, GENERATION, GAPS = range(len(Info._fields))

NOWHERE = Info(-1, -1)
"""Placeholder for a tensor that gets no row."""

Infos: TypeAlias = NDArray[np.int64]
Entry: TypeAlias = tuple[Meter, Info, Tensor, bool]
"""A tensor to measure with others, and whether it is compared with the one before."""


class Chunk:
    """Rows taken from a buffer. Rows from a device must be copied before they can be read."""

    def __init__(self, infos: Infos, rows: Numbers | Tensor, alive: dict[int, Tensor]) -> None:
        self.infos, self.alive = infos, alive
        self.rows = rows if isinstance(rows, np.ndarray) else np.zeros((0, WIDTH))
        self._there = rows if isinstance(rows, Tensor) else None

    def pending(self) -> list[Pending]:
        """What to copy."""
        there, self._there = self._there, None
        return [] if there is None else [(self._arrive, there)]

    def _arrive(self, rows: Numbers) -> None:
        self.rows = rows


class Buffer:
    """The rows of one device; a subclass measures.

    Args:
        when_full: called with rows that must be folded before there is room for others.
    """

    def __init__(self, when_full: Callable[[Chunk], None]) -> None:
        self._when_full = when_full
        self.infos = array("q")
        self.alive: dict[int, Tensor] = {}
        """The active channels of each row, if several processes count dead channels together."""

    def __len__(self) -> int:
        return len(self.infos) // len(Info._fields)

    def note(self, info: Info, alive: Tensor | None = None) -> None:
        """Note where the next row comes from."""
        if alive is not None:
            self.alive[len(self)] = alive
        self.infos.extend(info)

    def _take_infos(self, count: int) -> tuple[Infos, dict[int, Tensor]]:
        """Give the first ``count`` away."""
        size, alive = count * len(Info._fields), self.alive
        infos = np.array(self.infos[:size], np.int64).reshape(-1, len(Info._fields))
        self.infos = self.infos[size:]
        self.alive = {row - count: flags for row, flags in alive.items() if row >= count}
        return infos, {row: flags for row, flags in alive.items() if row < count}


class HostBuffer(Buffer):
    """Rows of CPU tensors, computed at once."""

    def __init__(self, when_full: Callable[[Chunk], None]) -> None:
        super().__init__(when_full)
        self.rows = array("d")
        self._correction: tuple[float, float] | None = None

    @contextmanager
    def corrected(self, unit: Tensor, follows: Tensor | None = None) -> Iterator[None]:
        """Multiply these columns of all rows that are written inside the block, see :meth:`DeviceBuffer.corrected`."""
        self._correction = float(unit), 1.0 if follows is None else float(follows)
        try:
            yield
        finally:
            self._correction = None

    def output(self, meter: Meter, info: Info, x: Tensor, alive: Tensor | None = None) -> bool:
        """Measure a layer's output; returns whether it is not finite."""
        row = host.output(x.detach(), meter.channel_dim, meter.eps, meter.wanted)
        self._write(info, row, alive)
        return row[NONFINITE] > 0

    def geometry(self, meter: Meter, info: Info, x: Tensor, follows: bool) -> None:
        """Measure a tensor and compare it with the one before, which it replaces."""
        previous = meter.comparison.previous
        if meter.comparison.sketched and previous is not None:
            self._write(info, host.sketch(x, previous, follows, meter.wanted))
        else:
            self._write(info, host.geometry(x, previous, follows, meter.eps if meter.rates else None, meter.wanted))

    def gradients(self, entries: Sequence[Entry]) -> None:
        """Measure the gradients of many parameters; if one fails, the others are still measured."""
        for meter, info, x, follows in sorted(entries, key=_size):
            try:
                self.geometry(meter, info, x, follows)
            except Exception as error:
                meter.fail(error, x)

    def lengths(self, entries: Sequence[Entry]) -> None:
        """Measure many tensors that are neither compared nor counted."""
        try:
            rows = host.lengths([entry[2] for entry in entries])
        except Exception:  # measured again one by one, to find the tensor at fault
            self.gradients(entries)
            return
        if self._correction is not None:
            rows[:, UNIT] *= self._correction[0]
        self.rows.frombytes(rows.tobytes())
        for entry in entries:
            self.infos.extend(entry[1])
        self._make_room()

    def add_sum(self, info: Info, squares: float | Tensor, count: int, works: Tensor | None = None) -> None:
        """Write the row of many tensors together, see :meth:`DeviceBuffer.add_sum`."""
        row = [0.0] * WIDTH
        row[SQUARES], row[UNIT] = float(squares), 1.0 if works is None else float(works)
        row[SIZE], row[NONFINITE] = float(count), math.nan
        self._write(info, tuple(row))

    def keep_sketches(self, entries: Sequence[Entry]) -> None:
        """Keep the sketches of many parameters before a step; no rows are written."""
        for meter, _, x, _ in sorted(entries, key=_size):
            try:
                host.keep_sketch(x.detach(), sketch_of(meter))
            except Exception as error:
                meter.fail(error, x)

    def weigh(self, entries: Sequence[Entry]) -> None:
        """Store the squared norm of each parameter in its meter before a step; writes no rows."""
        try:
            self._weigh(entries)
        except Exception:  # found again with the tensor that it comes from
            for entry in entries:
                entry[0].guarded(self._weigh, [entry])

    @np.errstate(over="ignore")
    def _weigh(self, entries: Sequence[Entry]) -> None:
        rows = host.lengths([as_dense(entry[2]) for entry in entries])
        squares = rows[:, SQUARES] * rows[:, UNIT] ** 2
        for entry, weight in zip(entries, squares.tolist(), strict=True):
            entry[0].weight = weight

    def updates(self, entries: Sequence[Entry]) -> None:
        """Measure how far many parameters have moved."""
        for meter, info, x, follows in sorted(entries, key=_size):
            try:
                self._update(meter, info, x, follows)
            except Exception as error:
                meter.fail(error, x)

    def _update(self, meter: Meter, info: Info, x: Tensor, follows: bool) -> None:
        if meter.comparison.sketched:
            row = host.sketched_update(x.detach(), sketch_of(meter), follows)
        else:
            before = x if meter.before is None else meter.before
            row = host.update(x, before, meter.comparison.previous, follows, meter.wanted)
        if isinstance(meter.weight, float):
            row = (*row[:WEIGHT], meter.weight, *row[WEIGHT + 1 :])
        self._write(info, row)

    def _write(self, info: Info, row: tuple[float, ...], alive: Tensor | None = None) -> None:
        if self._correction is not None:
            unit, follows = self._correction
            row = (*row[:UNIT], row[UNIT] * unit, row[FOLLOWS] * follows, *row[FOLLOWS + 1 :])
        self.note(info, alive)
        self.rows.extend(row)
        self._make_room()

    def _make_room(self) -> None:
        if len(self.rows) >= CAPACITY * WIDTH:
            for chunk in self.take():
                self._when_full(chunk)

    def take(self) -> list[Chunk]:
        """Return all rows and empty the buffer."""
        count = min(len(self), len(self.rows) // WIDTH)  # a signal handler may come between the two parts of a row
        if not count:
            return []
        rows, self.rows = np.array(self.rows[: count * WIDTH]).reshape(-1, WIDTH), self.rows[count * WIDTH :]
        infos, alive = self._take_infos(count)
        return [Chunk(infos, rows, alive)]


def sketch_of(meter: Meter) -> Tensor:
    """The sketches that a meter keeps."""
    state = meter.comparison.previous
    if state is None:
        raise RuntimeError("there is no room for its sketch")
    return state


def _keep_sketch(meter: Meter, x: Tensor) -> None:
    reference.keep_sketch(x, sketch_of(meter))


def _size(entry: Entry) -> int:
    """Small tensors first: a large one evicts the code for the others from the cache."""
    return entry[2].numel()


class DeviceBuffer(Buffer):
    """Rows of tensors on a GPU or another device, written by kernels and copied to the CPU in one piece."""

    def __init__(self, device: torch.device, when_full: Callable[[Chunk], None]) -> None:
        super().__init__(when_full)
        dtype = wide_dtype_of(device)
        self.block = torch.zeros(CAPACITY, WIDTH, dtype=dtype, device=device)
        self.captured = torch.zeros(CAPTURED, WIDTH, dtype=dtype, device=device)
        """Where CUDA graphs write: each row always to the same place."""
        self._captured: list[Info] = []
        self._moving: list[tuple[HostCopy, Chunk]] = []
        self._many: dict[Any, Any] = {}
        self._sum: tuple[int, Tensor, Tensor] | None = None
        """For ``add_sum``: the last count, the mask of the sum's column, and the other columns."""
        self._correction: Correction | None = None
        self._uncorrected = 0

    @contextmanager
    def corrected(self, unit: Tensor, follows: Tensor | None = None) -> Iterator[None]:
        """Correct all rows that are written inside the block.

        Args:
            unit: multiplies their units; 0 leaves the rows out.
            follows: 0 if none of them is compared with the row before.
        """
        self._correction, self._uncorrected = Correction(unit, follows), len(self)
        try:
            yield
            self._correct()
        finally:
            self._correction = None

    def _correct(self) -> None:
        if self._correction is not None and self._uncorrected < len(self):
            rows = self.block[self._uncorrected : len(self)]
            for column, factor in zip((UNIT, FOLLOWS), self._correction, strict=True):
                if factor is not None:
                    rows[:, column] *= factor.to(rows.device, non_blocking=True)
        self._uncorrected = 0

    def output(self, meter: Meter, info: Info, x: Tensor, alive: Tensor | None = None) -> bool:
        """Measure a layer's output. Always False: whether it is finite is not known without waiting."""
        if not meter.reads(x):
            meter.reader = self._output_reader(meter, x)
        block, index = self._place(meter, info, alive)
        meter.reader(x, block, index)
        self._keep_for_graph(meter, block)
        return False

    def geometry(self, meter: Meter, info: Info, x: Tensor, follows: bool) -> None:
        """Measure a tensor and compare it with the one before, which it replaces; the meter knows its layout."""
        if meter.reader is None:
            meter.reader = self._geometry_reader(meter, x)
        block, index = self._place(meter, info)
        meter.reader(x, block, index, follows or block is self.captured)  # gaps are noticed on the CPU
        self._keep_for_graph(meter, block)

    def _keep_for_graph(self, meter: Meter, block: Tensor) -> None:
        """Keep the memory that a CUDA graph writes to while it may run, whatever the meter uses next."""
        if block is self.captured and meter.callback is not None:
            reader = None if isinstance(meter.reader, partial) else meter.reader
            meter.callback.hold(block, meter.comparison.previous, reader)

    def _output_reader(self, meter: Meter, x: Tensor) -> Any:
        if not fused.can_fill(meter.wanted) or not fused.supports(x):
            return partial(_output_plainly, meter)
        make = partial(torch.zeros, fused.scratch_size(x, meter.channel_dim), dtype=torch.float64, device=x.device)
        scratch = lasting(make, x.device, in_graph=meter.in_graph)
        return fused.OutputReader(x, meter.channel_dim, meter.eps, scratch)

    def _geometry_reader(self, meter: Meter, x: Tensor) -> Any:
        whole = x if fused.supports(x) else x.contiguous()
        previous = meter.comparison.previous
        is_fused = fused.can_fill(meter.wanted) and fused.supports(whole)
        if meter.rates or not is_fused or meter.comparison.updates is not None:
            return partial(_geometry_plainly, meter)
        if meter.comparison.sketched and previous is not None:
            reader: Any = fused.SketchReader(whole, previous)
        else:
            reader = fused.GeometryReader(whole, previous)
        return reader if whole is x else lambda x, *where: reader(x.contiguous(), *where)

    def gradients(self, entries: Sequence[Entry]) -> None:
        """Measure the gradients of many parameters in a constant number of launches."""
        for key, group in self._groups(entries):
            if key is ALONE:
                for meter, info, x, follows in group:
                    meter.guarded(self.geometry, meter, info, x, follows)
                continue
            meters, infos, measured, flags = zip(*group, strict=True)
            previous = [meter.comparison.previous for meter in meters] if key[0] else None
            many = self._many_for(fused_many.ManyGradients, meters)
            many(measured, previous, flags, key[1], self.block, self._reserve(infos))

    lengths = gradients

    def add_sum(self, info: Info, squares: float | Tensor, count: int, works: Tensor | None = None) -> None:
        """Write one row for many tensors together, given the sum of all squares.

        Args:
            info: where it comes from.
            squares: the sum.
            count: the number of tensors.
            works: 0 drops the row.
        """
        row = self.block[self._reserve([info])]
        if self._sum is None or self._sum[0] != count:
            others = torch.zeros_like(row)
            others[UNIT], others[SIZE], others[NONFINITE] = 1.0, float(count), math.nan
            self._sum = count, torch.arange(WIDTH, dtype=torch.int64, device=row.device) == SQUARES, others
        _, is_sum, others = self._sum
        squares = squares if isinstance(squares, Tensor) else others.new_tensor(squares)
        torch.where(is_sum, squares, others, out=row)  # one launch
        if works is not None:
            row[UNIT] *= works.to(row.device)

    def keep_sketches(self, entries: Sequence[Entry]) -> None:
        """Keep the sketches of many parameters before a step in a constant number of launches; no rows are written."""
        for key, group in self._groups(entries):
            if key is SKETCHED:
                meters, _, measured, _ = zip(*group, strict=True)
                self._many_for(fused_many.ManySketches, meters).keep(measured, [sketch_of(meter) for meter in meters])
                continue
            for meter, _, x, _ in group:
                meter.guarded(_keep_sketch, meter, x)

    def weigh(self, entries: Sequence[Entry]) -> None:
        """Let meters know how large many parameters are before a step; no rows are written."""
        norms = norm_all([as_real(entry[2]) for entry in entries], 2, dtype=self.block.dtype)
        for entry, weight in zip(entries, torch.stack(norms).square_().unbind(), strict=True):
            entry[0].weight = weight

    def _write_weights(self, meters: Sequence[Meter], first: int) -> None:
        """Write the norms of parameters before the step into the rows of their updates, starting at ``first``."""
        weights = [meter.weight for meter in meters]
        if any(weight is not None for weight in weights):
            none = self.block.new_zeros(())
            column = [weight if isinstance(weight, Tensor) else none for weight in weights]
            self.block[first : first + len(meters), WEIGHT] = torch.stack(column)

    def updates(self, entries: Sequence[Entry]) -> None:
        """Measure how far many parameters have moved in a constant number of launches."""
        for key, group in self._groups(entries):
            if key is SKETCHED:
                meters, infos, measured, flags = zip(*group, strict=True)
                states, first = [sketch_of(meter) for meter in meters], self._reserve(infos)
                self._many_for(fused_many.ManySketches, meters)(measured, states, flags, self.block, first)
                self._write_weights(meters, first)
                continue
            if key is ALONE:
                for meter, info, x, follows in group:
                    meter.guarded(self._update_alone, meter, info, x.detach(), follows)
                continue
            meters, infos, measured, flags = zip(*group, strict=True)
            previous = [meter.comparison.previous for meter in meters] if key[0] else None
            before = [meter.before for meter in meters]
            many, first = self._many_for(fused_many.ManyUpdates, meters), self._reserve(infos)
            many(measured, before, previous, flags, self.block, first)
            self._write_weights(meters, first)

    def _update_alone(self, meter: Meter, info: Info, x: Tensor, follows: bool) -> None:
        self.geometry(meter, info, x, follows)
        self._write_weights([meter], len(self) - 1)

    def _many_for(self, kind: Any, meters: Sequence[Meter]) -> Any:
        """The cached tables of an earlier launch for the same tensors; making them costs time."""
        key = kind, len(meters), meters[0].number, meters[-1].number
        if key not in self._many:
            if len(self._many) >= KEPT_TABLES:
                self._many.clear()
            self._many[key] = kind()
        return self._many[key]

    def _groups(self, entries: Sequence[Entry]) -> Iterable[tuple[Any, list[Entry]]]:
        """Tensors that one launch can measure together; some must be measured one by one."""
        groups: dict[Any, list[Entry]] = defaultdict(list)
        for entry in entries:
            meter = entry[0]
            if meter.group is None or not meter.compares:  # otherwise it was chosen for a tensor of this layout
                meter.group = _group(meter, entry[2])
            groups[meter.group].append(entry)
        return groups.items()

    def take(self) -> list[Chunk]:
        """Give all rows away; those that are already being copied come first."""
        moved = [chunk for _, chunk in self._moving]
        for copy, _ in self._moving:
            copy.deliver()
        self._moving = []
        return [*moved, *self._empty()]

    @property
    def has_captured(self) -> bool:
        """Whether CUDA graphs write rows here."""
        return bool(self._captured)

    def collect(self, step: int, tag: int, gaps: int) -> None:
        """Move rows written by CUDA graphs since the last call into the main block.

        Args:
            step: the number of the step.
            tag: bits for all of them.
            gaps: how many gaps in recording there were so far.
        """
        if not self._captured:
            return
        infos = [info._replace(step=step, tag=info.tag | tag, gaps=gaps) for info in self._captured]
        first = self._reserve(infos)
        rows = self.captured[: len(infos)]
        self.block[first : first + len(rows)] = rows
        rows.zero_()

    def forget_graphs(self) -> None:
        """All graphs were dropped, except for backward passes that may still run."""
        if self._captured:
            self.captured, self._captured = torch.zeros_like(self.captured), []

    def _place(self, meter: Meter, info: Info, alive: Tensor | None = None) -> tuple[Tensor, int]:
        """Where to write a row: at the next place or, in a CUDA graph, at a fixed one."""
        if meter.in_graph and is_capturing(self.block.device):
            if len(self._captured) == CAPTURED:
                raise SkippedSample(f"CUDA graphs hold more than {CAPTURED} measurements")
            self._captured.append(info._replace(tag=info.tag & ~BASELINE))  # each run has its own tag
            index = len(self._captured) - 1
            self.captured[index].zero_()
            return self.captured, index
        if len(self) == CAPACITY:
            self._make_room()
        self.note(info, alive)
        return self.block, len(self) - 1

    def _reserve(self, infos: Sequence[Info]) -> int:
        if len(infos) > CAPACITY:
            raise SkippedSample(f"{len(infos)} parameters at once are more than {CAPACITY}")
        if len(self) + len(infos) > CAPACITY:
            self._make_room()
        first = len(self)
        for info in infos:
            self.infos.extend(info)
        return first

    def _make_room(self) -> None:
        for copy, chunk in self._moving:  # started one full buffer ago, so this does not wait
            copy.deliver()
            self._when_full(chunk)
        self._moving = [(HostCopy(chunk.pending()), chunk) for chunk in self._empty()]

    def _empty(self) -> list[Chunk]:
        """A copy of the rows; later writes come after the copy on the device's stream."""
        if not self.infos:
            return []
        self._correct()
        used = self.block[: len(self)]
        rows = used.clone()
        used.zero_()
        infos, alive = self._take_infos(len(self))
        return [Chunk(infos, rows, alive)]


def _group(meter: Meter, x: Tensor) -> Any:
    """The group of a tensor: a name, or (whether it has a previous tensor, the threshold for zero)."""
    comparison = meter.comparison
    if not fused.AVAILABLE or not fused.supports(x):
        return ALONE
    if comparison.sketched:
        return ALONE if comparison.updates is None else SKETCHED
    if not fused.can_fill(meter.wanted):
        return ALONE
    return comparison.previous is not None, meter.eps if meter.rates else None


def _output_plainly(meter: Meter, x: Tensor, block: Tensor, index: int) -> None:
    block[index] = reference.output(x, meter.channel_dim, meter.eps)


def _geometry_plainly(meter: Meter, x: Tensor, block: Tensor, index: int, follows: bool) -> None:
    previous = meter.comparison.previous
    if meter.comparison.sketched:
        measure = reference.sketch if meter.comparison.updates is None else reference.sketched_update
        block[index] = measure(x, sketch_of(meter), follows)
        return
    if meter.before is not None:  # the update
        x = difference(x, meter.before)
    block[index] = reference.geometry(x, previous if follows else None, meter.eps if meter.rates else None)
    if previous is not None:
        previous.copy_(x)


class Buffers(dict[torch.device, HostBuffer | DeviceBuffer]):
    """One buffer per device, made when it is first needed.

    Args:
        when_full: called with rows that must be folded before there is room for others.
    """

    def __init__(self, when_full: Callable[[Chunk], None]) -> None:
        super().__init__()
        self._when_full = when_full

    def __missing__(self, device: torch.device) -> HostBuffer | DeviceBuffer:
        make = HostBuffer if device.type == "cpu" else partial(DeviceBuffer, device)
        buffer = self[device] = make(self._when_full)
        return buffer

    @property
    def have_captured(self) -> bool:
        """Whether CUDA graphs write rows."""
        return any(isinstance(buffer, DeviceBuffer) and buffer.has_captured for buffer in self.values())

    def collect(self, step: int, tag: int, gaps: int, unit: Tensor | None) -> None:
        """Collect what CUDA graphs have written, multiplied by ``unit``; see :meth:`DeviceBuffer.collect`."""
        for buffer in self.values():
            if isinstance(buffer, DeviceBuffer):
                with nullcontext() if unit is None else buffer.corrected(unit):
                    buffer.collect(step, tag, gaps)

    def forget_graphs(self) -> None:
        """Make room for new graphs, after all graphs were dropped."""
        for buffer in self.values():
            if isinstance(buffer, DeviceBuffer):
                buffer.forget_graphs()

    def take(self) -> list[Chunk]:
        """Give all rows away."""
        return [chunk for buffer in self.values() for chunk in buffer.take()]
