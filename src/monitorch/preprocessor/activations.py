"""How healthy activations are: zeros, saturation, spread, and units that were never active."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..engine.functional_calls import Content, Reader
from ..engine.passes import passes_to_measure
from ..errors import SkippedSample
from ..numerical.precision import HOST, wide_dtype
from ..numerical.spread import Array, device_deviations, host_numbers, host_spreads, norms_of_each
from .accumulating import Kept
from .counting import CountingStatistics, CountsKept

ZEROS, SATURATION, DEATH = "zeros", "saturation", "death"
BATCH_SPREAD, UNIT_SPREAD = "batch spread", "unit spread"
NORM = "norm"
"""Spreads are divided by it; it is not shown itself."""

ENTRIES = 256
"""A window has at least this many batch entries,"""
POSITIONS, STEPS = 16_384, 4
"""or this many positions from this many observed steps, so that one long text or large image per batch is enough."""

MOST = 1 << 20
"""The most elements read per call; larger results are sampled evenly, at other places in each step."""

SMALL = 1 << 14
"""CPU results up to this many elements are copied, to be measured together with others."""

NEAR = 0.01
"""How near to its bound a function that never reaches it counts as saturated."""

Bounds: TypeAlias = tuple[float, float, float]
"""The lower and the upper bound of a function, NaN if there is none, and how near to it counts."""

ACTIVATION, WEIGHTS = "activation", "weights"
"""What is passed on from calls: the result of an activation with its bounds, or that a layer with weights ran."""

FREE = math.nan, math.nan, 0.0
FIXED_BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(("sigmoid", "expit"), (0.0, 1.0, NEAR)),
    **dict.fromkeys(("tanh", "softsign"), (-1.0, 1.0, NEAR)),
    "hardsigmoid": (0.0, 1.0, 0.0),
    "relu6": (math.nan, 6.0, 0.0),
    **dict.fromkeys(("relu", "leaky_relu", "prelu", "rrelu", "threshold", "elu", "selu", "celu", "glu"), FREE),
    **dict.fromkeys(("gelu", "silu", "mish", "softplus", "logsigmoid", "hardswish"), FREE),
    **dict.fromkeys(("hardshrink", "softshrink", "tanhshrink"), FREE),
}
"""Activation functions whose bounds do not depend on their arguments."""

LAST_DIM_FUNCTIONS = (
    *("linear", "bilinear", "addmm", "matmul", "__matmul__", "embedding", "embedding_bag", "layer_norm", "rms_norm"),
    *("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
DIM_1_FUNCTIONS = (
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("batch_norm", "instance_norm", "group_norm"),
)
"""Functions with weights, by where the channels of their results are."""


def _activation(result: Any, bounds: Bounds) -> Content | None:
    """The content of a call, if it looks like a layer: not a scalar, not integers."""
    is_layer = isinstance(result, Tensor) and result.is_floating_point() and result.dim() > 0
    return (ACTIVATION, (result,), bounds) if is_layer else None


def _hard_bounds(low: Any, high: Any) -> Bounds:
    """Bounds chosen by the user. A lower bound of 0 is ReLU's: elements there count as zeros, not as saturated."""
    has_low = isinstance(low, (int, float)) and low != 0
    return (low if has_low else math.nan), (high if isinstance(high, (int, float)) else math.nan), 0.0


def _read_clamp(result: Any, _: Any, min: Any = None, max: Any = None, **named: Any) -> Content | None:
    return _activation(result, _hard_bounds(min, max))


def _read_clamp_min(result: Any, _: Any, min: Any = None, **named: Any) -> Content | None:
    return _activation(result, _hard_bounds(min, None))


def _read_clamp_max(result: Any, _: Any, max: Any = None, **named: Any) -> Content | None:
    return _activation(result, _hard_bounds(None, max))


def _read_hardtanh(
    result: Any, _: Any = None, min_val: Any = -1.0, max_val: Any = 1.0, *others: Any, **named: Any
) -> Content | None:
    return _activation(result, _hard_bounds(min_val, max_val))


def _fixed(bounds: Bounds) -> Reader:
    def read(result: Any, *args: Any, **named: Any) -> Content | None:
        return _activation(result, bounds)

    return read


def _read_channels_last(*args: Any, **named: Any) -> Content:
    return WEIGHTS, (), (1.0,)


def _read_channels_in_dim_1(*args: Any, **named: Any) -> Content:
    return WEIGHTS, (), (0.0,)


def _in_all_places(readers: dict[str, Reader]) -> dict[Any, Reader]:
    """The same function has several names: ``torch.relu``, ``x.relu()``, ``x.relu_()``, ``functional.relu``."""
    places = (torch, Tensor, functional, torch.special)
    return {
        getattr(place, found): reader
        for name, reader in readers.items()
        for found in (name, f"{name}_")
        for place in places
        if hasattr(place, found)
    }


READERS = _in_all_places(
    {
        **{name: _fixed(bounds) for name, bounds in FIXED_BOUNDS.items()},
        **dict.fromkeys(("clamp", "clip"), _read_clamp),
        "clamp_min": _read_clamp_min,
        "clamp_max": _read_clamp_max,
        "hardtanh": _read_hardtanh,
        **dict.fromkeys(LAST_DIM_FUNCTIONS, _read_channels_last),
        **dict.fromkeys(DIM_1_FUNCTIONS, _read_channels_in_dim_1),
    }
)
"""Activation functions and what is taken from their calls, and functions with weights, which come before them."""


def thinned(x: Tensor, units: int, step: int) -> Tensor:
    """Evenly spread entries and positions of a result, with all units, if it is large; a view.

    >>> thinned(torch.zeros(4, 512, 4096), 2, step=0).shape
    torch.Size([4, 64, 4096])
    """
    others = [dim for dim in range(x.dim()) if dim != units]
    for dim in sorted(others, key=lambda dim: x.shape[dim], reverse=True):
        stride = min(-(-x.numel() // MOST), x.shape[dim] // 2)  # two are needed to see a spread
        if stride > 1:
            x = x[(slice(None),) * dim + (slice(step % stride, None, stride),)]
    return x


def active_counts(x: Tensor, units: int) -> Tensor:
    """How often each unit along this dimension is not 0; NaN counts as not 0."""
    return x.count_nonzero(tuple(dim for dim in range(x.dim()) if dim != units))


def saturated(x: Tensor, low: float, high: float, near: float) -> dict[str, Tensor]:
    """How many elements are at the bounds of a function, if it has any."""
    sides = [] if math.isnan(low) else [x <= low + near]
    sides += [] if math.isnan(high) else [x >= high - near]
    return {SATURATION: reduce(torch.logical_or, sides).count_nonzero()} if sides else {}


def spreads(x: Tensor, units: int) -> dict[str, Tensor]:
    """The norm, and the mean standard deviations over the batch and over units, where there are several."""
    found = {NORM: torch.linalg.vector_norm(x, dtype=wide_dtype(x))}
    for statistic, dim in ((BATCH_SPREAD, 0), (UNIT_SPREAD, units)):
        if x.shape[dim] > 1:
            found[statistic] = device_deviations(x[None], dim + 1)[0]
    return found


@lru_cache
def rounded(bound: float, dtype: torch.dtype) -> float:
    """A bound, rounded to this dtype."""
    return float(torch.tensor(bound, dtype=dtype, device=HOST))


@np.errstate(all="ignore")
def measured_here(
    x: Tensor, units: int, low: float | None, high: float | None, near: float
) -> tuple[dict[str, Array], Tensor]:
    """The samples of stacked results on the CPU, and which of their units were active."""
    numbers = host_numbers(x)
    flat = numbers.reshape(len(x), -1)
    active, size = numbers != 0, flat.shape[1]
    found = {ZEROS: 1 - np.count_nonzero(active.reshape(len(x), -1), 1) / size}
    sides = [] if low is None else [flat <= rounded(low + near, x.dtype)]
    sides += [] if high is None else [flat >= rounded(high - near, x.dtype)]
    if sides:
        found[SATURATION] = np.count_nonzero(reduce(np.logical_or, sides), 1) / size
    norms = norms_of_each(numbers)
    for statistic, dim in ((BATCH_SPREAD, 1), (UNIT_SPREAD, units + 1)):
        if numbers.shape[dim] > 1:
            found[statistic] = host_spreads(numbers, dim, norms)
    for dim in reversed(range(1, numbers.ndim)):
        active = active if dim == units + 1 else np.logical_or.reduce(active, dim)
    return found, torch.from_numpy(active)


def is_here(x: Tensor) -> bool:
    """Whether a tensor is on the CPU, where NumPy measures it."""
    return x.device == HOST


class Whole(NamedTuple):
    """What waiting results have in common: the unit dimension and the bounds, None if there are none."""

    units: int
    low: float | None
    high: float | None
    near: float


class Parts(NamedTuple):
    """What waiting sums have in common."""

    elements: int
    statistics: tuple[str, ...]


@dataclass
class AliveUnits:
    """Which units of a layer were active since the last full window. Entries and positions are known from shapes."""

    alive: Tensor
    """How often each unit was active, or only whether it was, on its device."""
    entries: int = 0
    positions: int = 0
    steps: int = 0
    last_step: int = -1

    def add(self, alive: Tensor, step: int, entries: int, positions: int) -> None:
        """Add one pass."""
        self.alive = self.alive.to(alive.device) + alive
        self.entries, self.positions = self.entries + entries, self.positions + positions
        self.steps, self.last_step = self.steps + (step != self.last_step), step

    @property
    def is_full(self) -> bool:
        """Whether a unit that was never active can be called dead."""
        return self.entries >= ENTRIES or (self.positions >= POSITIONS and self.steps >= STEPS)


class Activations(CountingStatistics):
    """Zeros, saturation, spread and dead units, of the results of activation functions.

    A function with a lower bound below 0, such as tanh, is steepest near 0: a unit that gives 0 there is not dead.

    Args:
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too, not only those of training.
        evaluation_from_grad: how to tell evaluation from training, see ``is_training_pass``.
        in_graphs: whether to measure activations inside compiled graphs as well.
        exact_death: with several processes, count a unit as dead only if it was never active in any of them.

    >>> health = Activations()
    >>> health.process_activation("relu", torch.tensor([[0.0, 3.0], [0.0, 0.0]]), FREE, channel_last=True, step=0)
    >>> health.value["relu"]["zeros"].mean
    0.75
    """

    statistics = (ZEROS, SATURATION, DEATH, BATCH_SPREAD, UNIT_SPREAD)
    readers, kinds = READERS, frozenset({ACTIVATION, WEIGHTS})

    def __init__(
        self,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool | None = None,
        in_graphs: bool = True,
        exact_death: bool = False,
    ) -> None:
        super().__init__(inplace)
        self.record_eval, self.evaluation_from_grad = record_eval, evaluation_from_grad
        self.in_graphs, self.exact_death = in_graphs, exact_death
        self._windows: dict[str, AliveUnits] = {}

    def passes(self) -> frozenset[int]:
        """The passes to measure, as ``kind_of_pass`` numbers them."""
        return passes_to_measure(record_eval=self.record_eval, evaluation_from_grad=self.evaluation_from_grad)

    def process_activation(
        self, name: str, result: Tensor, bounds: Sequence[float], *, channel_last: bool, step: int
    ) -> None:
        """Take the result of one call, whose first dimension is the batch; it is neither changed nor kept."""
        if type(result) not in (Tensor, nn.Parameter) or result.is_nested:
            raise SkippedSample(f"activations in a {type(result).__name__} or a nested tensor are not measured")
        if not result.numel():
            return
        x = result.detach()
        x = x[:, None] if x.dim() == 1 else x
        units = x.dim() - 1 if channel_last else 1
        x = thinned(x, units, step) if x.numel() > MOST else x
        if is_here(x):
            low, high, near = bounds
            common = Whole(units, None if low != low else low, None if high != high else high, near)
            if x.numel() <= SMALL:
                self._gather((name, step), x.clone(), common=(common,))
            else:
                self._take_here(self._kept, [(name, step)], [self._kept.series.now()], x[None], common)
            return
        with torch.autocast(x.device.type, enabled=False):
            active = active_counts(x, units)
            found = {ZEROS: active, **saturated(x, *bounds), **spreads(x, units)}
        self._gather(name, *found.values(), common=(Parts(x.numel(), tuple(found)),))
        alive = torch.ones_like(active) if bounds[0] < 0 else active
        window = self._note_alive(name, alive, step, len(x), x.numel() // len(active))
        if window is not None and self.exact_death:
            self._keep_for_all(self._kept, name, window)
        elif window is not None:
            self._gather(name, window, common=(Parts(x.numel(), (DEATH,)),))

    def _note_alive(self, name: str, active: Tensor, step: int, entries: int, positions: int) -> Tensor | None:
        """Add active units to the window; once it is full, return how often each unit was active."""
        window = self._windows.get(name)
        if window is None or window.alive.shape != active.shape:
            window = self._windows[name] = AliveUnits(torch.zeros_like(active))
        window.add(active, step, entries, positions)
        return self._windows.pop(name).alive if window.is_full else None

    def _take_here(
        self, kept: Kept, calls: Sequence[tuple[str, int]], steps: Sequence[int], x: Tensor, common: Whole
    ) -> None:
        """Make the samples of stacked results on the CPU."""
        samples, active = measured_here(x, *common)
        active = torch.ones_like(active) if common.low is not None and common.low < 0 else active
        names = [name for name, _ in calls]
        for statistic, numbers in samples.items():
            kept.series.add_all([(name, statistic) for name in names], numbers.tolist(), steps)
        entries, positions = x.shape[1], x[0].numel() // active.shape[1]
        for (name, step), logged, own in zip(calls, steps, active.unbind(), strict=True):
            window = self._note_alive(name, own, step, entries, positions)
            if window is not None and self.exact_death:
                self._keep_for_all(kept, name, window)
            elif window is not None:
                dead = 1 - int(window.count_nonzero()) / len(window)
                kept.series.add((name, DEATH), dead, step=logged)

    def _keep_for_all(self, kept: Kept, name: str, window: Tensor) -> None:
        """Keep the active units of a window until the tick; a last entry marks that there was one."""
        assert isinstance(kept, CountsKept)
        kept.add((name,), functional.pad((window != 0).to(torch.int64), (0, 1), value=1)[None])

    def take_deaths(self) -> None:
        """With ``exact_death``: at the end of a tick, take the units that no process has seen active in its windows."""
        for name, counts in self.counts().items() if self.exact_death else ():
            self._kept.series.add((name, DEATH), float(np.mean(counts[:-1] == 0)))

    def _handle(
        self, kept: Kept, keys: tuple[Any, ...], steps: tuple[int, ...], columns: list[Tensor], *common: Any
    ) -> None:
        """Make the samples of several calls; on other devices, death rates come in batches of their own."""
        (what,) = common
        if isinstance(what, Whole):
            self._take_here(kept, keys, steps, columns[0], what)
            return
        elements, statistics = what
        wide, found = wide_dtype(columns[0]), dict(zip(statistics, columns, strict=True))
        norms = found.pop(NORM, columns[0])  # with spreads there is one
        for statistic, column in found.items():
            if statistic == ZEROS:
                sample = 1 - column.sum(1).to(wide) / elements
            elif statistic == DEATH:
                sample = 1 - column.count_nonzero(1).to(wide) / column.shape[1]
            elif statistic == SATURATION:
                sample = column.to(wide) / elements
            else:  # a spread; that of zeros is 0
                sample = column / (norms / math.sqrt(elements)).clamp_min(torch.finfo(torch.float32).tiny)
            kept.series.add_all([(name, statistic) for name in keys], sample, steps)

    def clear(self) -> None:
        """Also forget which units were active."""
        super().clear()
        self._windows = {}

    def state_dict(self) -> dict[str, Any]:
        """Also the windows that are not full."""
        found = super().state_dict()  # first, because pending results also belong to windows
        return {**found, "windows": {name: asdict(window) for name, window in self._windows.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._windows = {name: AliveUnits(**own) for name, own in state["windows"].items()}
