"""A run as symptoms see it: its signals as tables, its losses, and whether it learns."""

import math
from functools import cached_property, lru_cache

import numpy as np

from . import signals
from .history import TRAINING, VALIDATION, Loss, Numbers, RunFacts, SampleHistory, Table

FEWEST = 5
"""Medians are taken over this many observed steps."""

EARLY = 5
"""How many losses define the starting level."""

MOST_SORTED = 1 << 20
"""The most numbers sorted at once; windows of a long run are processed in parts."""

RISEN = 2.0
"""If the median of the first losses is this many times the very first one, steps have made it rise."""

SHORT, PATIENCE = 30, 100
"""With fewer steps than ``SHORT`` nothing can be said about learning; with fewer than ``PATIENCE``, a run that has
learned little may still learn much."""

ENOUGH = 16
"""Losses of fewer samples are too noisy to be looked at one by one."""

CROSS_ENTROPY = ("CrossEntropyLoss", "NLLLoss")
BINARY = ("BCELoss", "BCEWithLogitsLoss")
SQUARED, ABSOLUTE = ("MSELoss",), ("L1Loss",)
DISTANCES = (*SQUARED, *ABSOLUTE, "SmoothL1Loss", "HuberLoss")
"""Losses that are smallest where outputs equal the targets."""


class RunView:
    """What symptoms look at."""

    def __init__(self, history: SampleHistory) -> None:
        self._history = history
        self.facts: RunFacts = history.facts
        self.step = history.step
        self._tables: dict[tuple[str, str], Table] = {}

    def table(self, signal: str, how: str = "mean") -> Table:
        """A signal; of several samples at one step and place their ``"mean"``, ``"largest"`` or ``"smallest"``."""
        if (signal, how) not in self._tables:
            options = {} if how == "mean" else {how: True}
            self._tables[signal, how] = self._history.table(signal, **options)
        return self._tables[signal, how]

    def per_step(self, signal: str, place: str) -> float:
        """How many samples a step has on average: more than 1 where gradients are accumulated."""
        return self._history.per_step(signal, place)

    def has(self, *wanted: str) -> bool:
        """Whether there are samples of all these signals."""
        return all(name in self._history.samples for name in wanted)

    @property
    def _halfway(self) -> float:
        """The middle of the known range; what was observed before it says nothing about now."""
        return (min(self.facts.first_steps.values(), default=0) + self.step) / 2

    def is_fresh(self, table: Table) -> bool:
        """Whether a signal was observed recently enough to be compared with the newest losses."""
        return len(table.steps) > 0 and bool(table.steps[-1] >= self._halfway)

    def latest(self, table: Table) -> Numbers:
        """The newest numbers of a signal, of five observed steps at most; none if most of these are not fresh."""
        is_fresh = table.steps[-FEWEST:] >= self._halfway
        newest: Numbers = table.values[-FEWEST:][is_fresh]
        return newest if len(newest) > FEWEST / 2 else newest[:0]

    @property
    def saw_the_start(self) -> bool:
        """Whether the first steps were watched."""
        return not self.facts.since

    @cached_property
    def weights(self) -> list[str]:
        """The names of the matrices and kernels that are trained, in the order of the model."""
        return [name for name, own in self.facts.parameters.items() if own.is_weight and own.trainable]

    @cached_property
    def left_optimizer(self) -> dict[str, int]:
        """The parameters that an optimizer had before, but none has now, and since which step."""
        table = self.table(signals.GROUP)
        found = {}
        for name in table.places:
            column = table.column(name)
            inside = np.flatnonzero(column >= 0)
            if len(inside) and column[-1] < 0:
                found[name] = int(table.steps[inside[-1] + 1])
        return found

    @cached_property
    def highest_rates(self) -> Numbers:
        """The highest learning rate of all parameter groups, at each step of ``table(signals.RATE)``."""
        rates = self.table(signals.RATE).values
        highest: Numbers = np.where(np.isfinite(rates), rates, 0.0).max(axis=1, initial=0.0)
        return highest

    def layer_of(self, parameter: str) -> str | None:
        """The layer of a parameter."""
        own = self.facts.parameters.get(parameter)
        return (own.layer if own is not None else parameter.rpartition(".")[0]) or None

    def size(self, parameter: str) -> int:
        """The number of elements of a parameter."""
        return max(1, self.facts.parameters[parameter].size)

    def place(self, layer: str | None) -> int:
        """The position of a layer in the model."""
        return -1 if layer is None else self._places.get(layer.split(" ")[0], len(self._places))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.facts.layers)}

    # losses

    @cached_property
    def loss(self) -> Loss:
        """The training losses, at every step."""
        return self._history.loss(TRAINING)

    @cached_property
    def validation(self) -> Loss:
        """Of validation, at each evaluation."""
        return self._history.loss(VALIDATION)

    @cached_property
    def first_loss(self) -> float:
        """Where training began: the median of the first finite losses; NaN if that is not known.

        If the first steps have made it rise far, it is the loss before them: to come back from there is no progress.
        Of losses that torch does not know, only if it came back: some begin at 0 and are meant to rise.
        """
        if not self.saw_the_start:
            return math.nan
        usual, first = (self._level(self.loss.values[: count * self._block]) for count in (EARLY, 1))
        limit, is_known = RISEN * abs(first), self.facts.loss_fn in (*CROSS_ENTROPY, *BINARY, *DISTANCES)
        return first if usual > limit and (is_known or self.last_loss <= limit) else usual

    @cached_property
    def last_loss(self) -> float:
        """Where it is now: the median of the newest tenth of the losses, at most 100 and at least 5 of them."""
        return self.loss_before(self.step)

    def loss_before(self, step: int) -> float:
        """Where it was at some step, as far as losses were finite."""
        known = self.loss.values[: np.searchsorted(self.loss.steps, step, "right")]
        known = known[np.isfinite(known)]
        return self._level(known[-min(100, max(EARLY * self._block, len(known) // 10)) :])

    @cached_property
    def _block(self) -> int:
        """How many losses together are of enough samples."""
        return math.ceil(ENOUGH / max(self.facts.batch or ENOUGH, 1))

    def _level(self, losses: Numbers) -> float:
        """The median of losses, for small batches, the median of block means, since a single sample says nothing."""
        known = losses[np.isfinite(losses)]
        whole = len(known) // self._block
        return median(known[len(known) - whole * self._block :].reshape(whole, -1).mean(axis=1) if whole else known)

    @cached_property
    def targets(self) -> tuple[float, float]:
        """Mean and standard deviation of all targets that were observed; NaN if they are not known."""
        signals_of_targets = signals.LOSS_INPUT_MEAN, signals.LOSS_INPUT_STD
        tables = (self.table(signal).select(["target"]) for signal in signals_of_targets)
        means, stds = (table.values[np.isfinite(table.values)] for table in tables)
        if not len(means) or not len(stds):
            return math.nan, math.nan
        return float(means.mean()), float(np.sqrt((stds**2).mean() + means.var()))

    @cached_property
    def repeats_one_batch(self) -> bool:
        """Whether every step got the same targets, as far as their mean tells: all data are one batch."""
        table = self.table(signals.LOSS_INPUT_MEAN).select(["target"])
        means, spread = table.values[np.isfinite(table.values)], self.targets[1]
        return len(means) >= FEWEST and bool(np.ptp(means) < 1e-5 * spread)

    @cached_property
    def trivial_loss(self) -> float:
        """The loss of the best constant output; NaN if the loss or its inputs are not known."""
        kind = self.facts.loss_fn
        if not self.facts.loss_is_mean:
            return math.nan
        if kind in CROSS_ENTROPY:
            counts = np.array(self.facts.target_counts or [], float)
            shares = counts[counts > 0] / max(counts.sum(), 1)
            return float(-(shares * np.log(shares)).sum()) if len(shares) > 1 else math.nan
        mean, std = self.targets
        if kind in BINARY and 0 < mean < 1:
            return -(mean * math.log(mean) + (1 - mean) * math.log(1 - mean))
        return std**2 if kind in SQUARED else math.sqrt(2 / math.pi) * std if kind in ABSOLUTE else math.nan

    @cached_property
    def fallen(self) -> float:
        """The share of the first loss that is gone; NaN if not known."""
        if not math.isfinite(self.first_loss) or not math.isfinite(self.last_loss):
            return math.nan
        return (self.first_loss - self.last_loss) / max(abs(self.first_loss), 1e-12)

    @property
    def is_long(self) -> bool:
        """Whether there were enough steps to say whether it learns."""
        return len(self.loss) >= SHORT

    @cached_property
    def is_stuck(self) -> bool:
        """Whether it has learned nothing beyond a constant output."""
        if not self.is_long or math.isnan(self.last_loss) or self.facts.optimizers > 1:
            return False
        is_trivial = self.last_loss > 0.95 * self.trivial_loss  # False if that is not known
        is_good = self.last_loss < 0.5 * self.trivial_loss  # it has learned before, perhaps
        return (is_trivial or (self.fallen < 0.05 and not is_good)) and not self._validates

    @property
    def _validates(self) -> bool:
        """Whether validation shows that something was learned, where losses of small batches are too noisy to tell."""
        known = self.trivial_loss if math.isfinite(self.trivial_loss) else self.first_loss
        return bool(self.validation) and bool(self.validation.values[-1] < known - 0.1 * abs(known))

    @cached_property
    def learns(self) -> bool:
        """Whether it has learned much, so that oddities do little harm."""
        if not self.is_long or math.isnan(self.last_loss):
            return False
        if math.isfinite(self.trivial_loss) and self.last_loss > 0.8 * self.trivial_loss:
            return False
        return self.fallen > 0.5 or self.last_loss < 0.5 * self.trivial_loss

    def harm(self, least: str = "info", seen: Table | None = None) -> str:
        """How bad something is that may keep a run from learning; at least ``least``.

        If it was ``seen`` only long ago, it is exactly that, unless nothing is learned at all.
        """
        if self.is_stuck:
            return "error"
        is_early, is_old = len(self.loss) < PATIENCE, seen is not None and not self.is_fresh(seen)
        return least if self.learns or is_early or is_old or self.facts.optimizers > 1 else "warning"


def rolling_median(values: Numbers, window: int = FEWEST) -> Numbers:
    """The median of each row and those before it, ``window`` in all, of those that are known.

    The first rows have none: NaN.

    >>> rolling_median(np.array([[1.0], [9.0], [2.0], [np.nan]]), 3)[:, 0]
    array([nan, nan, 2. , 5.5])
    """
    found = np.full(values.shape, np.nan)
    if len(values) >= window and values.size:
        windows = np.lib.stride_tricks.sliding_window_view(values, window, axis=0)
        rows = max(1, MOST_SORTED // (window * values[0].size))
        for start in range(0, len(windows), rows):
            found[window - 1 + start :][:rows] = nan_median(windows[start : start + rows])
    return found


def filled(values: Numbers) -> Numbers:
    """In each column, NaN becomes the known number before it, or the first one where there is none before.

    >>> filled(np.array([[np.nan], [1.0], [np.nan], [2.0]]))[:, 0]
    array([1., 1., 1., 2.])
    """
    rows = np.arange(len(values))[:, None]
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, rows, -1), axis=0)
    found: Numbers = np.take_along_axis(values, np.where(last < 0, known.argmax(axis=0), last), axis=0)
    return found


def nan_median(values: Numbers) -> Numbers:
    """The median over the last axis, of those that are known; NaN where there is none."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    ordered = np.sort(values, axis=-1)  # NaN goes to the end
    count = np.isfinite(ordered).sum(axis=-1)
    low, high = np.maximum((count - 1) // 2, 0), np.maximum(count // 2, 0)
    high = np.minimum(high, ordered.shape[-1] - 1)
    pick = [np.take_along_axis(ordered, place[..., None], axis=-1)[..., 0] for place in (low, high)]
    middle: Numbers = np.where(count > 0, (pick[0] + pick[1]) / 2, np.nan)
    return middle


def median(values: Numbers) -> float:
    """The median of all numbers that are known; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def largest(values: Numbers) -> float:
    """The largest of all numbers that are known; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else math.nan


@lru_cache(maxsize=64)
def expected_perplexity(shares: tuple[float, ...], batch: int) -> tuple[float, float]:
    """Mean and standard deviation of the perplexity of a batch, if its classes are drawn with these shares.

    >>> expected_perplexity((0.5, 0.5), 1)
    (1.0, 0.0)
    """
    draws = np.random.default_rng(0).multinomial(batch, shares, size=64) / batch
    with np.errstate(all="ignore"):
        entropy = -np.nansum(np.where(draws > 0, draws * np.log(draws), 0.0), axis=1)
    found = np.exp(entropy)
    return float(found.mean()), float(found.std())
