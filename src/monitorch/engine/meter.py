"""A meter measures one tensor of one layer: what is asked for, what it is compared with, and who gets the rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, SkippedSample
from ..numerical.precision import UNIT_DTYPES, full_dtype, wide_dtype_of
from .allocation import Allowance, is_capturing, lasting
from .columns import COMPARED, OF_UPDATES, ON_REQUEST, RATED, WEIGHT, Column, bits
from .graph import GraphCallback
from .kernels.reference import SKETCH as BUCKETS
from .passes import ALL_PASSES
from .rows import Mask, Places, Rows

EXACT, SKETCH, AUTO = "exact", "sketch", "auto"
"""What is kept of a tensor: a copy, a random projection of fixed size, or a copy while there is room for copies."""

OUTPUT, OUTPUT_GRADIENT, GRADIENT, UPDATE, PARAMETER = "output", "output gradient", "gradient", "update", "parameter"
"""What a meter measures: the first part of its key."""

ALL_GRADIENTS = "all gradients"
"""The same, for the gradients of all parameters together."""

TRAINED, LEFT_OUT = 0, 1
"""Kinds of gradients: those that a known optimizer uses, or any where none is known; those that belong to none."""


@dataclass(frozen=True)
class Request:
    """What a preprocessor wants to be measured; requests that do not contradict each other are served by one pass.

    Attributes:
        output_index: which part of an output to measure.
        rates: count active elements: the largest value that counts as zero, and where a layer's channels are.
        correlation: compare with the tensor before: ``"exact"``, ``"sketch"``, ``"auto"`` or not at all.
        updates: for updates, how a parameter is kept during a step: ``"exact"``, ``"sketch"`` or ``"auto"``. If
            tensors are compared, it is done in the same way.
        passes: which forward passes to measure; of gradients of parameters, which kinds to get.
        exact_death: with several processes, count a channel as dead only if it is active in none of them.
        columns: costly columns to fill that are otherwise left out, such as ``LARGEST``.
    """

    output_index: int | str | None = None
    rates: tuple[float, bool | Callable[[str], bool]] | None = None
    correlation: str | None = None
    passes: frozenset[int] = ALL_PASSES
    exact_death: bool = False
    columns: frozenset[Column] = frozenset()
    updates: str = EXACT

    def __post_init__(self) -> None:
        """Refuse columns that are asked for in another way."""
        for column in self.columns:
            if column.of not in (ON_REQUEST, OF_UPDATES):
                choices = [known.name for known in Column if known.of in (ON_REQUEST, OF_UPDATES)]
                rule = f"choose from {', '.join(choices)}; {column.name} is in rows of: {column.of}"
                raise OptionError(f"columns={column.name} is not filled on request; {rule}")

    @property
    def lacks(self) -> frozenset[Column]:
        """The columns that rows do not have for this request."""
        kinds = {RATED: self.rates is not None, COMPARED: self.correlation is not None}
        kinds |= {ON_REQUEST: False, OF_UPDATES: False}
        return frozenset(column for column in Column if not kinds.get(column.of, True)) - self.columns

    def channel_dim(self, name: str, *, in_graph: bool = False) -> int | None:
        """Which dimension of a layer's output holds the channels; None if no rates are wanted."""
        if self.rates is None:
            return None
        last = self.rates[1]
        if in_graph:
            last = getattr(last, "guess", last)
        return -1 if (last(name) if callable(last) else last) else 1

    def joins(self, other: "Request") -> bool:
        """Whether one pass can serve both."""
        return (
            self.output_index == other.output_index
            and (not (self.rates and other.rates) or (self.rates, self.exact_death) == (other.rates, other.exact_death))
            and (self.correlation is None or other.correlation is None or self.correlation == other.correlation)
            and not ({self.correlation, other.correlation} & {SKETCH, AUTO} and (self.rates or other.rates))
            and self.updates == other.updates
        )

    def __or__(self, other: "Request") -> "Request":
        rates, correlation = self.rates or other.rates, self.correlation or other.correlation
        exact_death, passes = self.exact_death or other.exact_death, self.passes | other.passes
        columns = self.columns | other.columns
        return Request(self.output_index, rates, correlation, passes, exact_death, columns, self.updates)


class Measured(Protocol):
    """A preprocessor whose numbers come from rows."""

    names: list[str]
    before_reading: Callable[[], None] | None
    is_estimated: bool
    """Whether a tensor was compared by its sketch."""

    def request(self) -> Request:
        """What to measure."""

    def place(self, key: Any) -> int:
        """The place of a name in rows."""

    def fold(self, rows: Rows, report: Callable[[int, Exception, Rows], None]) -> None:
        """Add the samples in rows."""


class Reporter(Protocol):
    """A gatherer, which knows how to say that a layer cannot be measured."""

    name: str

    def report(self, error: Exception, data: Any) -> None:
        """Report an error with these data."""


class Comparison:
    """What the next tensor of a meter is compared with.

    Args:
        how: ``"exact"`` keeps the last tensor, ``"sketch"`` a random projection of it, ``"auto"`` chooses one of them
            when memory is first needed, None keeps nothing.
        allowance: how much memory all copies may take.
    """

    def __init__(self, how: str | None, allowance: Allowance | None = None) -> None:
        self.how = how
        self.updates: str | None = None
        """For updates, how the parameter is kept during a step."""
        self.previous: Tensor | None = None
        """The last tensor, its sketch, or room for it; with updates also room for the sketch of the parameter."""
        self.sketched = False
        self.interrupted = True
        """Whether something was missed since the last tensor."""
        self.gap = 0
        self.generation = 0
        """How often the memory for the previous tensor was replaced."""
        self._allowance = Allowance() if allowance is None else allowance
        self._chosen: str | None = None
        """The choice made; it stays, whatever comes next."""
        self._layout: Any = None

    def interrupt(self) -> None:
        """Do not compare the next tensor with the last one."""
        self.interrupted = True

    def follows(self, gap: int) -> bool:
        """Whether nothing was missed before the current tensor. ``gap``: the number of gaps so far."""
        continues = self.how is not None and not self.interrupted and self.gap == gap
        self.interrupted, self.gap = False, gap
        return continues

    def close(self) -> None:
        """Give the memory back: nothing will be compared any more."""
        self.previous = self._layout = None
        self._allowance.release(self)

    def knows(self, x: Tensor) -> bool:
        """Whether ``x`` has the layout of the last tensor."""
        return bool((x.shape, x.device, x.dtype, x.stride()) == self._layout)

    def make_room(self, x: Tensor, *, in_graph: bool) -> bool:
        """Make room for a tensor with a new layout; returns whether it can still be compared with the last one."""
        layout = x.shape, x.device, x.dtype, x.stride()
        previous, known, self._layout = self.previous, self._layout, layout
        self.sketched = self._is_sketched(x.shape, x.device, x.dtype)
        is_same = previous is not None and known is not None and known[:2] == layout[:2]
        if is_same and known[2] != layout[2] and UNIT_DTYPES & {known[2], layout[2]}:
            is_same = False  # the norm of the last one is in another unit
        if self.sketched and is_same and known[3] != layout[3]:
            is_same = False  # a sketch depends on the memory layout of the elements
        if in_graph and is_capturing(x.device):
            is_same = False  # a copy would become part of the graph
        if (self.how is not None or self.sketched) and not (is_same and self.sketched):
            self.previous, self.generation = self._room_for(x, in_graph), self.generation + 1
            if is_same and previous is not None:
                self.previous.copy_(previous)
        return is_same

    def _is_sketched(self, shape: torch.Size, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether tensors like this one are kept as sketches; notes how much memory copies take."""
        way = self.updates or self.how
        if way is None:
            return False
        copies = [dtype] * (self.updates is not None) + [self._copied_dtype(dtype)] * (self.how is not None)
        size = shape.numel() * sum(copy.itemsize for copy in copies)
        if way == AUTO:
            if self._chosen is None:
                self._chosen = EXACT if self._allowance.has_room(size, device) else SKETCH
            way = self._chosen
        # otherwise the tensor itself is smaller; and differences of sketches need sums of float64
        has_sums = self.updates is None or wide_dtype_of(device) is torch.float64
        sketched = way == SKETCH and shape.numel() > BUCKETS and has_sums
        self._allowance.hold(self, 0 if sketched else size, device)
        return sketched

    def _copied_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if self.updates is None else full_dtype(dtype)

    def _sketch_dtype(self) -> torch.dtype:
        return torch.float32 if self.updates is None else torch.float64

    def _room_for(self, x: Tensor, in_graph: bool) -> Tensor:
        if self.sketched:
            make = partial(torch.zeros, 2, BUCKETS, dtype=self._sketch_dtype(), device=x.device)
        else:
            make = partial(torch.empty_like, x, dtype=self._copied_dtype(x.dtype), requires_grad=False)
        return lasting(make, x.device, in_graph=in_graph)

    def widen(self, how: str | None) -> None:
        """Also compare in this way from now on."""
        self.how = how
        if self.previous is None:
            self._layout = None  # room for the previous tensor may be needed now

    def state_dict(self, *, with_tensor: bool) -> dict[str, Any]:
        """What the next tensor is compared with; a whole tensor only if it is small enough."""
        previous = self.previous if with_tensor or self.sketched else None
        layout = None if self._layout is None or previous is None else [tuple(self._layout[0]), *self._layout[2:]]
        previous = None if previous is None else previous.clone()  # it is overwritten in the next step
        kept = {"previous": previous, "layout": layout, "sketched": self.sketched, "chosen": self._chosen}
        return {**kept, "interrupted": self.interrupted, "gap": self.gap}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> bool:
        """Continue from a saved state; whether the next tensor can be compared with the last one of that run."""
        self.gap, self.interrupted = state["gap"], True
        self.generation += 1
        self._chosen = state["chosen"]
        if state["layout"] is None:
            return False
        shape, (dtype, stride) = torch.Size(state["layout"][0]), state["layout"][1:]
        if state["sketched"] != self._is_sketched(shape, device, dtype):  # saved with another kind of comparison
            return False
        if state["sketched"] and state["previous"].dtype is not self._sketch_dtype():  # saved by an older release
            return False
        self._layout = shape, device, dtype, tuple(stride)
        self.previous, self.sketched = state["previous"].to(device, copy=True), state["sketched"]
        self.interrupted = state["interrupted"]
        return not self.interrupted


class Meter:
    """Measures one tensor once for several preprocessors.

    Args:
        number: its number among the meters of the engine.
        name: the layer.
        share: the share of the global loss that this process computes; lengths are multiplied by it.
        allowance: how much memory the copies of all meters may take.
    """

    def __init__(
        self, number: int, name: str, request: Request, share: float = 1.0, allowance: Allowance | None = None
    ) -> None:
        self.number, self.name, self.share = number, name, share
        self.request = request
        self.comparison = Comparison(request.correlation, allowance)
        self.subscriptions: list[Subscription] = []
        self.before: Tensor | None = None
        """For updates: the tensor as it was before the step, unless only its sketch is kept."""
        self.weight: float | Tensor | None = None
        """For updates: the sum of its squares before the step, if that is wanted."""
        self.reader: Any = None
        """The function that measures tensors like the last one; chosen by the buffer of their device."""
        self.group: Any = None
        """The tensors that are measured in one launch with those like the last one; chosen by the buffer."""
        self.callback: GraphCallback | None = None
        """The way out of compiled graphs."""
        self.key: tuple[Any, ...] = ()
        """The name of this meter in every process."""
        self.lineage: tuple[int, int] | None = None
        """With CUDA graphs, the generation and gap of the last row: it is compared only with rows of the same."""
        self.failed = False
        self.in_graph = False
        self._measured_layout: Any = None
        self._unfold()

    @property
    def kind(self) -> str:
        """Which kind of tensor it measures, such as ``OUTPUT``."""
        kind: str = self.key[0]
        return kind

    @property
    def parameter_name(self) -> str | None:
        """The name of the parameter that it measures something of; None if it is on a layer's output."""
        name: str | None = None if self.kind in (OUTPUT, OUTPUT_GRADIENT) else self.key[1]
        return name

    @property
    def what(self) -> str:
        """Names the measured tensor, such as ``"output"`` or ``"gradient weight"``."""
        return " ".join(str(part) for part in self.key[:2] if part is not None)

    def widen(self, request: Request) -> None:
        """Also measure what this preprocessor asks for."""
        self.request = self.request | request
        self.comparison.widen(self.request.correlation)
        self._unfold()

    def _unfold(self) -> None:
        """Copy what is asked for into attributes, which hooks read at every pass."""
        request = self.request
        self.rates, self.compares = request.rates is not None, request.correlation is not None
        self.eps = request.rates[0] if request.rates else 0.0
        self.passes, self.index = request.passes, request.output_index
        self.exact_death, self.wanted = request.exact_death, bits(request.columns - {WEIGHT})
        self.weighs = WEIGHT in request.columns
        self.reader = self.group = None
        self.__dict__.pop("channel_dim", None)

    @cached_property
    def channel_dim(self) -> int | None:
        """Which dimension of an output holds the channels; None if no preprocessor needs it."""
        return self.request.channel_dim(self.name, in_graph=self.in_graph)

    def alive(self, x: Tensor) -> Tensor | None:
        """Which channels of an output are active; None where rates are not counted, or inside a graph."""
        if self.in_graph or self.channel_dim is None:
            return None
        by_channel = x.detach().movedim(self.channel_dim, 0).flatten(1)
        return (by_channel.abs() > self.eps).any(dim=1)

    def reads(self, x: Tensor) -> bool:
        """Whether the reader works for ``x``: it has the layout of the last tensor."""
        layout = x.shape, x.device, x.dtype, x.stride()
        known, self._measured_layout = self._measured_layout, layout
        return self.reader is not None and known == layout

    def follows(self, x: Tensor, gap: int) -> bool:
        """Whether ``x`` can be compared with the last tensor; makes room for it."""
        fits = self.comparison.knows(x) or self._make_room(x)
        return self.comparison.follows(gap) and fits

    def _make_room(self, x: Tensor) -> bool:
        self.reader = self.group = None
        fits = self.comparison.make_room(x, in_graph=self.in_graph)
        self._tell_estimates()
        return fits

    def _tell_estimates(self) -> None:
        for subscription in self.subscriptions:
            subscription.learn_estimates()

    def measure_updates(self) -> None:
        """From now on the meter gets parameters after a step: measure how far they moved."""
        self.comparison.updates = self.request.updates

    def before_step(self, x: Tensor) -> None:
        """Make room for what is kept of a parameter during a step."""
        if not self.comparison.knows(x) and not self._make_room(x):
            self.comparison.interrupt()

    def interrupt(self) -> None:
        """Do not compare the next tensor with the last one."""
        self.comparison.interrupt()

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from a saved state of the comparison."""
        continues = self.comparison.load_state_dict(state, device)
        self.lineage = (self.comparison.generation, self.comparison.gap) if continues else None
        self.reader = self.group = None
        self._tell_estimates()

    def close(self) -> None:
        """Give the memory back: nobody gets its rows any more."""
        self.comparison.close()
        self.before = self.weight = self.reader = self.group = None

    def guarded(self, action: Callable[..., Any], *data: Any) -> Any:
        """Call ``action`` unless one failed before; errors are reported and never reach the training loop."""
        if self.failed:
            return None
        try:
            return action(*data)
        except Exception as error:
            self.fail(error, data)
        return None

    def fail(self, error: Exception, data: Any) -> None:
        """Let every gatherer here report the error; then stop measuring, unless only a sample is left out."""
        self.failed |= not isinstance(error, SkippedSample)
        for subscription in list(self.subscriptions):
            subscription.gatherer.report(error, data)


class Subscription:
    """A preprocessor that gets the rows of a meter; can be removed, like the handle of a hook.

    Args:
        meters: the meters of the tensor; the meter leaves them with its last subscription.
        parameter: what the preprocessor keeps numbers under, beside the gatherer's name.
    """

    def __init__(
        self,
        meters: list[Meter],
        meter: Meter,
        gatherer: Reporter,
        subscriber: "Subscriber",
        parameter: str | None = None,
    ) -> None:
        self._meters, self.meter, self.gatherer = meters, meter, gatherer
        self.subscriber, self._parameter = subscriber, parameter
        meter.subscriptions.append(self)
        self.rename()
        self.learn_estimates()

    def learn_estimates(self) -> None:
        """Let the preprocessor know if the meter compares sketches."""
        if self.meter.comparison.sketched:
            self.subscriber.preprocessor.is_estimated = True

    def rename(self) -> None:
        """The gatherer has a new name, which rows are kept under from now on."""
        name = self.gatherer.name
        key = name if self._parameter is None else (name, self._parameter)
        self.subscriber.add(self.meter.number, key, self.gatherer)

    def remove(self) -> None:
        """Unsubscribe from the meter, and close it if it has no other subscriber."""
        if self in self.meter.subscriptions:
            self.meter.subscriptions.remove(self)
            self.subscriber.remove(self.meter.number)
        if not self.meter.subscriptions and self.meter in self._meters:
            self._meters.remove(self.meter)
            self.meter.close()


class Subscriber:
    """One preprocessor, and the meters that measure for it."""

    def __init__(self, preprocessor: Measured) -> None:
        self.preprocessor = preprocessor
        request = preprocessor.request()
        self._wants = np.array([kind in request.passes for kind in range(len(ALL_PASSES))])
        self.lacks = request.lacks
        """The columns that its rows do not have."""
        self._places: Places = np.zeros(0, np.int64)
        self._known: Mask = np.zeros(0, bool)
        """Which layers had rows before, by place."""
        self._gatherers: dict[int, Reporter] = {}

    def add(self, number: int, key: Any, gatherer: Reporter) -> None:
        """Get the rows of a meter under this key."""
        more = number + 1 - len(self._places)
        if more > 0:
            self._places = np.concatenate([self._places, np.full(max(more, len(self._places)), -1, np.int64)])
        place = self._places[number] = self.preprocessor.place(key)
        self._gatherers[int(place)] = gatherer

    def has(self, number: int) -> bool:
        """Whether it gets the rows of this meter."""
        return number < len(self._places) and bool(self._places[number] >= 0)

    def remove(self, number: int) -> None:
        """Get no more rows of this meter."""
        self._places[number] = -1

    @property
    def is_used(self) -> bool:
        """Whether it gets the rows of any meter."""
        return bool((self._places >= 0).any())

    def choose(self, meters: Places, kinds: Places) -> tuple[Places, Places]:
        """Which rows are for this one, and the place of the layer of each."""
        known = meters < len(self._places)
        places = np.where(known, self._places[np.where(known, meters, 0)], -1) if len(self._places) else meters * 0 - 1
        chosen = np.flatnonzero((places >= 0) & self._wants[kinds])
        return chosen, places[chosen]

    def is_first(self, places: Places) -> Mask:
        """Which of these rows are the first of their layer; later calls know them."""
        size = max(len(self._known), int(places.max()) + 1)
        known = np.zeros(size, bool)
        known[: len(self._known)] = self._known
        first = np.zeros(len(places), bool)
        first[np.unique(places, return_index=True)[1]] = True
        first &= ~known[places]
        known[places] = True
        self._known = known
        return first

    def go_on(self, number: int) -> None:
        """The next row of this meter is not the first one of its layer."""
        if self._places[number] >= 0:
            self.is_first(self._places[number : number + 1])

    def report(self, place: int, error: Exception, data: Rows) -> None:
        """Let the gatherer of a layer report an error."""
        self._gatherers[place].report(error, data.numbers)


def find_meter(meters: Sequence[Meter], request: Request) -> Meter | None:
    """The meter whose pass can also serve this request; None if there is none."""
    return next((meter for meter in meters if meter.request.joins(request)), None)


def request_of(preprocessor: Measured, output_index: int | str | None = None) -> Request:
    """What a preprocessor wants; an output index that is given to its gatherer counts."""
    request = preprocessor.request()
    return request if output_index is None else replace(request, output_index=output_index)


Method = TypeVar("Method", bound=Callable[..., Any])


def through_row(method: Method) -> Method:
    """Decorator for a ``process_*`` method that only computes a row: with an engine, the engine computes it instead."""
    method.is_through_row = True  # type: ignore[attr-defined]
    return method


def is_measured(preprocessor: Any) -> bool:
    """Whether the engine may measure for it: not if a subclass has replaced the method that takes tensors.

    A class that defines ``request`` itself is trusted.
    """
    if not hasattr(preprocessor, "request") or not hasattr(preprocessor, "fold"):
        return False
    for kind in type(preprocessor).__mro__:
        if "request" in vars(kind):
            return True
        for name, method in vars(kind).items():
            if name.startswith("process_"):
                return getattr(method, "is_through_row", False)
    return False
