"""The samples of a run that a diagnosis looks at: single observed steps, and the loss of every step.

Tick averages would not do: no median and no first bad step can be read from them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..store.samples import SampleArrays

Numbers = NDArray[np.float64]
Steps = NDArray[np.int64]
Mask = NDArray[np.bool_]

FIRST_KEPT, MOST_KEPT = 64, 1024
"""How many steps are kept: always the first ``FIRST_KEPT``, and up to ``MOST_KEPT`` in all. Beyond that, every second
step of the older half is dropped."""

MOST_LOSSES = 1_000_000
"""The same for losses."""

TRAINING, VALIDATION = "training", "validation"
"""The two kinds of losses."""


@dataclass(frozen=True)
class Table:
    """A signal: ``values[step, place]``; NaN where nothing was measured or the value was not finite."""

    steps: Steps
    places: tuple[str, ...]
    values: Numbers

    def __bool__(self) -> bool:
        return self.values.size > 0

    def select(self, places: Iterable[str]) -> "Table":
        """Only these places, as far as they exist, in this order."""
        known = {place: number for number, place in enumerate(self.places)}
        chosen = [place for place in places if place in known]
        return Table(self.steps, tuple(chosen), self.values[:, [known[place] for place in chosen]])

    def column(self, place: str) -> Numbers:
        """The numbers of one place."""
        found: Numbers = self.values[:, self.places.index(place)]
        return found

    def at_steps(self, steps: Steps) -> Numbers:
        """The numbers at these steps; NaN where there is none."""
        found = np.full((len(steps), len(self.places)), np.nan)
        if not self:
            return found
        where = np.searchsorted(self.steps, steps)
        known = (where < len(self.steps)) & (self.steps[np.minimum(where, len(self.steps) - 1)] == steps)
        found[known] = self.values[where[known]]
        return found

    def at(self, steps: Steps, places: Sequence[str]) -> Numbers:
        """The numbers of these places at these steps; NaN where there is none."""
        found = np.full((len(steps), len(places)), np.nan)
        known = [number for number, place in enumerate(places) if place in self.places]
        found[:, known] = self.select(places).at_steps(steps)
        return found


class Samples:
    """The samples of one signal, in the order in which they came.

    >>> samples = Samples()
    >>> samples.add(["a", "b"], np.array([0, 1, 0]), np.array([1, 1, 2]), np.array([5.0, 6.0, 7.0]))
    >>> samples.table().values
    array([[ 5.,  6.],
           [ 7., nan]])
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self.names: list[str] = []
        self._places: dict[str, int] = {}
        self._parts: list[SampleArrays] = []
        self._most, self._kept = most, 0
        self.steps_seen, self._last = 0, -1
        """How many steps had samples, also those that were dropped."""
        self._unsaved: list[SampleArrays] | None = []
        """What was added since the last :meth:`take_new`; None if older samples were forgotten since."""
        self._named = 0

    def add(self, names: Sequence[str], places: Steps, steps: Steps, values: Numbers) -> None:
        """Add samples; ``names`` are those of all places."""
        if not len(values):
            return
        used, inverse = np.unique(places, return_inverse=True)
        own = np.array([self._place(names[place]) for place in used.tolist()], np.int64)
        part = SampleArrays(np.asarray(steps, np.int64), own[inverse], np.asarray(values, np.float64))
        self._parts.append(part)
        if self._unsaved is not None:
            self._unsaved.append(part)
        known = np.unique(steps)
        self._kept += len(known)
        self.steps_seen += int(np.sum(known > self._last))
        self._last = max(self._last, int(known[-1]))
        if self._kept > self._most:
            self._thin()

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.names)
            self.names.append(name)
        return self._places[name]

    def arrays(self) -> SampleArrays:
        """Steps, places and values of all samples."""
        if len(self._parts) > 1:
            self._parts = [SampleArrays.joined(self._parts)]
        return self._parts[0] if self._parts else _NOTHING

    def take_new(self) -> "NewSamples | None":
        """What to store since the last call; None if there is nothing."""
        parts, self._unsaved = self._unsaved, []
        if parts is not None and not parts:
            return None
        first, self._named = self._named, len(self.names)
        samples = self.arrays() if parts is None else SampleArrays.joined(parts)
        return NewSamples(samples, first, tuple(self.names[first:]), parts is None)

    def store_again(self) -> None:
        """The last :meth:`take_new` was not stored: return everything next time, with all names."""
        self._unsaved, self._named = None, 0

    def _thin(self) -> None:
        steps = self.arrays().steps
        known = np.unique(steps)
        while len(known) > self._most and len(older := known[FIRST_KEPT : len(known) // 2]):
            known = np.setdiff1d(known, older[::2], assume_unique=True)
        kept = np.isin(steps, known)
        if not kept.all():
            self._parts, self._unsaved = [self.arrays().select(kept)], None
        self._kept = len(known)

    def table(self, *, largest: bool = False, smallest: bool = False) -> Table:
        """All samples as a table; of several at one step and place, the mean, or the largest or smallest."""
        steps, places, values = self.arrays()
        known, rows = np.unique(steps, return_inverse=True)
        shape = len(known), len(self.names)
        cells = rows * shape[1] + places
        if largest or smallest:
            found = np.full(shape[0] * shape[1], -np.inf if largest else np.inf)
            with np.errstate(invalid="ignore"):  # NaN stays NaN
                (np.maximum if largest else np.minimum).at(found, cells, values)
        else:
            with np.errstate(all="ignore"):
                count = np.bincount(cells, minlength=shape[0] * shape[1])
                found = np.bincount(cells, values, minlength=shape[0] * shape[1]) / count
        found[~np.isfinite(found)] = np.nan
        return Table(known, tuple(self.names), found.reshape(shape))


_NOTHING = SampleArrays(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class NewSamples(NamedTuple):
    """Samples to store, with the names that are new since the last ones, from place ``first`` on."""

    samples: SampleArrays
    first: int
    names: tuple[str, ...]
    replaces: bool
    """Whether this is the complete set, because earlier samples were dropped."""


@dataclass(frozen=True)
class Loss:
    """The losses of one kind: steps and values, oldest first; NaN where a loss was not finite."""

    steps: Steps
    values: Numbers

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        return len(self.steps) > 0


@dataclass
class Parameter:
    """What is known about a parameter besides its samples."""

    layer: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    """Whether it requires a gradient."""
    optimized: bool = True
    """Whether an optimizer has it."""

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def is_weight(self) -> bool:
        """Whether it is a matrix or a kernel; not a bias or a scale, and not without elements."""
        return len(self.shape) >= 2 and self.size > 0


@dataclass
class RunFacts:
    """What is known about a run besides its samples; any of it may be missing."""

    layers: dict[str, str] = field(default_factory=dict)
    """The kind of each layer by name, in the order in which they run if known, otherwise in model order."""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """By name, in the same order."""
    ran: list[str] = field(default_factory=list)
    """The layers that were seen running, in that order."""
    loss_fn: str | None = None
    """The class of the module that computes the loss."""
    loss_is_mean: bool = True
    """Whether it is a plain, unweighted mean."""
    loss_is_sum: bool = False
    """Whether it is a sum over all samples."""
    classes: int | None = None
    """How many classes the loss tells apart."""
    target_counts: list[int] = field(default_factory=list)
    """How often each class was the target, in observed steps."""
    predicted_counts: list[int] = field(default_factory=list)
    """How often each class was predicted, in the observed steps of the last ticks."""
    batch: float | None = None
    """How many targets a step has."""
    loss_shapes: dict[str, list[int]] = field(default_factory=dict)
    """The shapes of the first output and of the first target that have entered the loss."""
    hidden: list[str] = field(default_factory=list)
    """Tensors that get gradients although torch does not know them, and that nothing changes."""
    gradients_of: list[str] | None = None
    """The parameters whose gradients are measured, by their names in their layers; None for all."""
    loss_scale: bool = False
    """Whether a GradScaler is used."""
    computes_in_half: bool = False
    """Whether layers compute in float16, as with autocast, whatever their parameters are."""
    optimizers: int = 1
    """How many optimizers there are; with several, the loss mixes several objectives and need not fall."""
    since: int = 0
    """How many steps were done before watching began; symptoms that need the first steps are off then."""
    first_steps: dict[str, int] = field(default_factory=dict)
    """The first step with a sample of each signal; a stored run may have dropped it."""
    origin: Mapping[str, Any] | None = None
    """The first tensor that was not finite: step, where, what, layer, parameter, text."""

    def run_in_order(self, names: Sequence[str]) -> None:
        """Layers were seen running in this order; the other layers stay after those they follow in the model.

        >>> facts = RunFacts({"head": "Linear", "softmax": "Softmax", "body": "Linear"})
        >>> facts.run_in_order(["body", "head"])
        >>> list(facts.layers)
        ['body', 'head', 'softmax']
        """
        self.ran = [name for name in names if name in self.layers]
        known = {name: place for place, name in enumerate(self.ran)}
        last, places = -1, dict[str, int]()
        for name in self.layers:
            places[name] = last = known.get(name, last)
        self.layers = {name: self.layers[name] for name in sorted(self.layers, key=places.__getitem__)}
        order = {name: place for place, name in enumerate(self.layers)}
        own = sorted(self.parameters.items(), key=lambda one: order.get(one[1].layer, -1))
        self.parameters = dict(own)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data."""
        parameters = {name: [*vars(own).values()] for name, own in self.parameters.items()}
        return {**vars(self), "parameters": parameters, "origin": None if self.origin is None else dict(self.origin)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RunFacts":
        """The facts that were written with :meth:`to_json`."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        parameters = known.get("parameters", {}).items()
        known["parameters"] = {
            name: Parameter(layer, tuple(shape), *rest) for name, (layer, shape, *rest) in parameters
        }
        return cls(**known)


class SampleHistory:
    """All samples of a run, by signal, its losses, and facts about it.

    >>> history = SampleHistory()
    >>> history.add("gradient", ["fc.weight"], np.array([0]), np.array([1]), np.array([0.5]))
    >>> history.table("gradient").column("fc.weight")
    array([0.5])
    """

    def __init__(self, facts: RunFacts | None = None) -> None:
        self.facts = facts or RunFacts()
        self.samples: dict[str, Samples] = {}
        self.step = 0
        """The last step for which anything is known."""

    def add(self, signal: str, names: Sequence[str], places: Steps, steps: Steps, values: Numbers) -> None:
        """Add samples of a signal; ``names`` are those of all places."""
        if signal not in self.samples:
            self.samples[signal] = Samples(MOST_LOSSES if signal == LOSS else MOST_KEPT)
        self.samples[signal].add(names, places, steps, values)
        self.step = max(self.step, int(steps.max(initial=0)))
        if len(steps):
            known = self.facts.first_steps
            known[signal] = min(int(steps.min()), known.get(signal, self.step))

    def table(self, signal: str, **how: bool) -> Table:
        """A signal; empty if nothing is known of it."""
        found = self.samples.get(signal)
        return Samples().table() if found is None else found.table(**how)

    def per_step(self, signal: str, place: str) -> float:
        """How many samples of a signal a step has on average, such as those of several passes; at least 1."""
        found = self.samples.get(signal)
        if found is None or place not in found.names:
            return 1.0
        steps, places, _ = found.arrays()
        own = steps[places == found.names.index(place)]
        return len(own) / max(len(np.unique(own)), 1)

    def loss(self, kind: str = TRAINING) -> Loss:
        """The losses of one kind; several at one step are averaged."""
        table = self.table(LOSS).select([kind])
        if not table.places:
            return Loss(np.zeros(0, np.int64), np.zeros(0))
        steps, places, _ = self.samples[LOSS].arrays()
        seen = np.isin(table.steps, steps[places == self.samples[LOSS].names.index(kind)])
        return Loss(table.steps[seen], table.values[seen, 0])


LOSS = "loss"
"""The signal of losses."""
