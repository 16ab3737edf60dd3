"""What losses alone show: spikes, a bad start, overfitting, and differences between training and validation."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ...store.types import layer_text
from .. import remedies, signals
from ..finding import Evidence, Finding, Remedy
from ..history import Mask, Numbers, Steps
from ..run import BINARY, CROSS_ENTROPY, EARLY, SHORT, RunView, largest, median, nan_median, rolling_median
from .base import Symptom, evidence, points, short

RECENT = 10
"""A spike is a jump above the median of this many losses before it."""

SMOOTH, SETBACK = 5, 0.25
"""A setback is a rise of the median of ``SMOOTH`` losses, within as many steps, by the share ``SETBACK``,"""
RATE_JUMP = 3.0
"""after the learning rate jumped to this many times its previous maximum."""

FAR = 1.5
"""A first loss this many times its limit is harmful, even before it is known whether the run learns."""

LEAST_NOISE = 0.02
"""The noise of a loss is assumed to be at least this share of it; full-batch losses have none."""


OFTEN, MOST_COMPARED = 0.02, 2048
"""What happens in this share of losses is usual; at most this many losses of a run are checked."""

BLOCK = 4096
"""Windows that are looked at together: all those of a long run would take gigabytes."""


@dataclass(frozen=True)
class LossNoise:
    """How losses differ from those just before them; expensive parts are computed only where asked for.

    Args:
        losses: all of a run.
        window: how many losses before one tell what is usual.
    """

    losses: Numbers
    window: int

    @cached_property
    def level(self) -> Numbers:
        """The median of the losses just before each, since losses fall; NaN for the first ones."""
        return np.concatenate([[np.nan], rolling_median(self.losses[:, None], RECENT)[:-1, 0]])

    @cached_property
    def excess(self) -> Numbers:
        """How far each loss is above ``level``; 0 for the first ones."""
        return np.where(np.isnan(self.level), 0.0, self.losses - self.level)

    @property
    def lowest_before(self) -> Numbers:
        """The lowest of the losses just before each that has a window: a cheap bound."""
        found: Numbers = self.losses[self.window - RECENT : -RECENT].copy()
        for shift in range(1, RECENT):
            np.minimum(found, self.losses[self.window - RECENT + shift : shift - RECENT], out=found)
        return found

    def spread(self, places: Steps) -> Numbers:
        """The usual excess in the window before each place, as a robust standard deviation."""
        found = self._in_windows(places, _deviation)
        return np.maximum(found, np.maximum(LEAST_NOISE * np.abs(self.level[places]), 1e-12))

    def largest(self, places: Steps) -> Numbers:
        """The largest excess there; what is just before a place may be the beginning of a spike."""
        return self._in_windows(places, lambda windows: windows[:, :-SMOOTH].max(axis=1))

    def is_usual(self, score: float, places: Steps) -> Mask:
        """Whether an excess of so many standard deviations is usual before each place: a heavy tail is no spike."""
        count = len(self.losses) - self.window
        some = self.window + np.unique(np.linspace(0, count - 1, min(count, MOST_COMPARED)).astype(np.int64))
        is_high = self.excess[some] / self.spread(some) > score
        before = np.searchsorted(some, places)
        found: Mask = np.concatenate([[0], np.cumsum(is_high)])[before] > OFTEN * before
        return found

    def _in_windows(self, places: Steps, statistic: Callable[[Numbers], Numbers]) -> Numbers:
        blocks = [places[start : start + BLOCK] for start in range(0, len(places), BLOCK)]
        offsets = np.arange(-self.window, 0)
        return np.concatenate([np.zeros(0), *(statistic(self.excess[block[:, None] + offsets]) for block in blocks)])


def _deviation(windows: Numbers) -> Numbers:
    middle = np.median(windows, axis=1)[:, None]
    found: Numbers = 1.4826 * np.median(np.abs(windows - middle), axis=1)
    return found


@dataclass(frozen=True)
class LossSpike(Symptom):
    """The loss jumps far above what it was, and comes back.

    Attributes:
        z: how many standard deviations, computed from medians.
        jump: how large the jump must be, as a share of the first loss.
        window: how many steps before it are compared.
    """

    id: ClassVar[str] = "loss_spike"
    z: float = 8.0
    jump: float = 0.1
    window: int = 100

    def look(self, run: RunView) -> Iterable[Finding]:
        """The largest spike."""
        losses = run.loss
        if len(losses) < 40 or not np.isfinite(losses.values).all():
            return
        noise = LossNoise(losses.values, min(self.window, len(losses) // 2))
        first = abs(run.first_loss) if math.isfinite(run.first_loss) else 0.0
        jump = self.jump * max(first, float(np.median(np.abs(losses.values))))
        found = self._jumps(noise, jump)
        is_slow = not found
        if is_slow:
            found = self._setback(run, noise, jump)
        if not found:
            return
        _, place, length = max(found)
        step, values = int(losses.steps[place]), losses.values
        cause, culprit = self._culprit(run, step)
        if is_slow:
            cause = "The learning rate was far higher than ever before just then."
        before, top = float(noise.level[place]), float(values[place : place + length].max())
        since = median(values[place + length :][: self.window])
        stays = not is_slow and len(values) - place - length >= RECENT and since > before + max(jump, abs(before))
        then = f"was {'halfway ' * is_slow}back {length:,} step{'s' * (length > 1)} later"
        if stays:
            then = f"has been about {short(since)} since"
            cause = "What was learned is lost, or data or labels are different from that step on."
        text = f"The loss jumped from {short(before)} to {short(top)} at step {step:,}, and {then}. {cause}"
        gradients = run.table(signals.ALL_GRADIENTS)
        usual = median(gradients.values) if gradients else 1.0
        remedy = (
            remedies.SOMETHING_CHANGED
            if stays
            else Remedy(
                "Look at this batch, skip it, or clip gradients.", "clip", {"max_norm": round(2 * usual, 4) or 1.0}
            )
        )
        shown = points("loss", None, losses.steps[place - noise.window :], values[place - noise.window :])
        detected = int(losses.steps[min(place + length, len(losses) - 1)])
        severity = run.harm("warning") if stays else "warning"
        yield self.finding(None, step, detected, severity, text, remedy, shown, *culprit)

    def _jumps(self, noise: LossNoise, jump: float) -> list[tuple[float, int, int]]:
        """Losses that are as far above the largest ones of their window as these are above the usual noise."""
        if (noise.losses[noise.window :] - noise.lowest_before).max() <= jump:
            return []
        level, excess = noise.level, noise.excess
        was_calm = np.concatenate([[0.0], excess[:-1]]) < 0.3 * excess  # a loss that rises step by step is no spike
        is_large = was_calm & (excess > jump) & (excess > np.abs(level))
        places = noise.window + np.flatnonzero(is_large[noise.window :])
        spread = noise.spread(places)
        scores = excess[places] / spread
        is_far = (scores > self.z) & (scores > (noise.largest(places) / spread) ** 2)
        places, scores = places[is_far], scores[is_far]
        found = []
        if len(places):
            is_rare = ~noise.is_usual(self.z / 2, places)
            for place, score in zip(places[is_rare].tolist(), scores[is_rare].tolist(), strict=True):
                after = noise.losses[place + 1 : place + 1 + self.window]
                back = np.flatnonzero(after < level[place] + 0.3 * excess[place])
                if len(back):
                    found.append((score, place, int(back[0]) + 1))
        return found

    def _setback(self, run: RunView, noise: LossNoise, jump: float) -> list[tuple[float, int, int]]:
        """A rise within a few steps after a jump of the learning rate, until losses are halfway back.

        Without such a jump it would be the edge of stability, or a harder part of the data.
        """
        values, places = run.loss.values, np.arange(noise.window, len(run.loss) - 2 * SMOOTH + 1)
        places = places[_are_near(run.loss.steps[places], _rate_jumps(run), 2 * RECENT)]
        if not len(places):
            return []
        later = rolling_median(values[:, None], SMOOTH)[2 * SMOOTH - 1 :, 0]  # from 5 to 10 steps later
        rise = later[places] - noise.level[places]
        is_up = (rise > SETBACK * np.abs(noise.level[places])) & (rise > jump)
        places, rise = places[is_up], rise[is_up]
        scores = 2 * rise / noise.spread(places)  # medians have half of the noise
        for place, score in zip(places.tolist(), scores.tolist(), strict=True):
            half = (noise.level[place] + later[place]) / 2
            back = np.flatnonzero(later[place + 1 :] < half)
            if score > self.z and len(back):
                first = int(np.argmax(values[place:] > half))
                return [(score, place + first, int(back[0]) + 1)]
        return []

    def _culprit(self, run: RunView, step: int) -> tuple[str, list[Evidence]]:
        """Whether the batch was unusual, if that step was observed."""
        table = run.table(signals.INPUT_STD)
        if table and step in table.steps:
            row = int(np.searchsorted(table.steps, step))
            usual = nan_median(table.values.T)
            ratio = largest(table.values[row] / np.maximum(usual, 1e-12))
            if ratio > 3:
                shown = points(signals.INPUT_STD, table.places[0], table.steps, table.values[:, 0])
                return f"The batch of that step was {short(ratio)} times as large as usual.", [shown]
        return "A single bad batch can cause that, or a step into a steep region.", []


def _rate_jumps(run: RunView) -> Steps:
    """The observed steps in which learning rates were far above all before."""
    highest = run.highest_rates
    known = np.maximum.accumulate(highest)
    found: Steps = run.table(signals.RATE).steps[1:][(highest[1:] > RATE_JUMP * known[:-1]) & (known[:-1] > 0)]
    return found


def _are_near(steps: Steps, others: Steps, most: int) -> Mask:
    """Whether one of the others, which are in order, is at most so many steps away."""
    next_one = np.searchsorted(others, steps - most)
    found: Mask = next_one < np.searchsorted(others, steps + most, side="right")
    return found


@dataclass(frozen=True)
class BadInitialLoss(Symptom):
    """A classifier starts worse than one that gives every class the same probability.

    Attributes:
        factor: how many times ln(classes) the first loss may be.
        batch: how many targets the first batch needs to be judged on its own.
    """

    id: ClassVar[str] = "bad_initial_loss"
    needs_start: ClassVar[bool] = True
    factor: float = 2.1
    batch: float = 16

    def look(self, run: RunView) -> Iterable[Finding]:
        """From the first losses."""
        losses, is_binary = run.loss, run.facts.loss_fn in BINARY
        classes = 2 if is_binary else (run.facts.classes or 0) if run.facts.loss_fn in CROSS_ENTROPY else 0
        if classes < 2 or not losses or not run.facts.loss_is_mean or run.facts.optimizers > 1:
            return
        is_sure = (run.facts.batch or self.batch) >= self.batch
        # of a few samples the first loss may be high by chance; later ones may be high because steps were too large
        first, limit = float(losses.values[0]), self.factor * math.log(classes)
        first = first if is_sure else min(first, median(losses.values[:EARLY]))
        if not first > limit or (not is_sure and len(losses) < EARLY):
            return
        text = (
            f"The first loss is {short(first)}; a classifier that knows nothing has {short(math.log(classes))} with "
            f"{classes} classes. The last layer starts with outputs that are far too large and wrong."
        )
        last = self._last(run)
        remedy = Remedy(
            "Initialise the last layer smaller, or with zeros.",
            "reinit",
            {"layers": [last] if last else [], "gain": 0.1},
        )
        shown = points("loss", None, losses.steps[:50], losses.values[:50], limit)
        step = int(losses.steps[0])
        severity = "info" if run.learns or (not run.is_long and first < FAR * limit) else "warning"
        yield self.finding(last, step, step, severity, text, remedy, shown)

    def _last(self, run: RunView) -> str | None:
        """The layer that makes the output; a linear one without a weight of its own shares that of an embedding."""
        own = {run.layer_of(name) for name in run.weights}
        ran = (name for name in reversed(run.facts.ran) if name in own or run.facts.layers.get(name) == "Linear")
        return next(ran, run.layer_of(run.weights[-1]) if run.weights else None)


@dataclass(frozen=True)
class Overfitting(Symptom):
    """The validation loss rises while the training loss falls, or stays flat while the training loss goes to 0.

    Attributes:
        rise: how many times the lowest validation loss; a third of that rise is worth an info.
        share: and how much more, as a share of the first loss.
        fall: how much of the training loss must be gone since then, or half as much as validation has risen.
        gap: how many times the training loss a flat validation loss must be, if it is above half the loss of guessing.
        little: the share of the loss of guessing above which validation has hardly improved; training below half is
            then enough.
        foreign: how many times the loss of guessing a validation loss must always be, from before much was learned,
            to be that of other data.
    """

    id: ClassVar[str] = "overfitting"
    rise: float = 1.15
    share: float = 0.05
    fall: float = 0.1
    gap: float = 10.0
    little: float = 0.8
    foreign: float = 3.0

    def look(self, run: RunView) -> Iterable[Finding]:
        """From at least three evaluations."""
        checks, losses = run.validation, run.loss
        values = checks.values
        if len(checks) < 3 or not np.isfinite(values).all() or not losses:
            return
        best = int(np.argmin(values))
        scale = abs(run.first_loss) if math.isfinite(run.first_loss) else abs(float(values[0]))
        lowest = float(values[best])
        rise = (self.rise - 1) * abs(lowest) + self.share * scale
        is_bad, limit = True, lowest + rise
        over = self._beyond(values, best, limit)
        if not len(over):
            is_bad, limit = False, lowest + rise / 3
            over = self._beyond(values, best, limit)
        if not len(over):
            yield from self._gap(run)
            return
        then, now = run.loss_before(int(checks.steps[best])), run.last_loss
        if not then - now > min(self.fall * abs(then), (float(values[-1]) - lowest) / 2):
            return  # nothing was memorised meanwhile: evaluations differ by chance, or the model gets worse at both
        text = (
            f"The validation loss was lowest at step {int(checks.steps[best]):,} ({short(lowest)}) and is "
            f"{short(float(values[-1]))} now, while the training loss fell from {short(then)} to {short(now)}. "
        )
        why, advice = self._foreign(run) or (
            "The model memorises its training data.",
            "Stop there, use more data, or regularise: weight decay, dropout, augmentation.",
        )
        text, remedy = text + why, Remedy(advice)
        shown = points("validation loss", None, checks.steps, values, float(limit))
        step, detected = int(checks.steps[best]), int(checks.steps[over[0]])
        yield self.finding(None, step, detected, "warning" if is_bad else "info", text, remedy, shown)

    def _foreign(self, run: RunView) -> tuple[str, str] | None:
        """What to say if validation was far worse than guessing before much could be learned by heart."""
        checks, guess = run.validation, _guess(run)
        limit = self.foreign * guess
        if not guess > 0 or not checks.values.min() > limit or not run.loss_before(int(checks.steps[0])) > guess / 2:
            return None
        return (
            f"Guessing gives {short(guess)}, so validation data are not like training data, or eval mode computes "
            "something else.",
            "Check that validation data are prepared like training data, such as their scale and their classes.",
        )

    def _gap(self, run: RunView) -> Iterable[Finding]:
        """What was learned in training does not help in validation."""
        checks = run.validation
        guess = _guess(run)
        limit = 0.5 * guess
        trained = np.array([run.loss_before(int(step)) for step in checks.steps])
        is_far = (checks.values > limit) & (checks.values > self.gap * trained)
        is_useless = (checks.values > self.little * guess) & (trained < limit)
        is_bad = (is_far | is_useless) & (trained >= 0)
        first = len(checks) - int(np.argmin(is_bad[::-1])) if not is_bad.all() else 0
        if len(checks) - first < 3 or checks.values[-1] < 0.9 * checks.values[first]:
            return  # not yet, or it still falls
        text = (
            f"The training loss is {short(run.last_loss)}, but the validation loss stays at "
            f"{short(float(checks.values[-1]))}. "
        )
        why, advice = self._foreign(run) or (
            "The model learns its training data by heart.",
            "Use more data, or regularise: weight decay, dropout, augmentation.",
        )
        text, remedy = text + why, Remedy(advice)
        shown = points("validation loss", None, checks.steps, checks.values, limit)
        yield self.finding(None, checks.steps[first], checks.steps[first + 2], "info", text, remedy, shown)

    def _beyond(self, values: Numbers, best: int, limit: float) -> Steps:
        """The evaluations after the best one that are beyond the limit, as the one before; none if it came back."""
        is_over = (values > limit) & (np.arange(len(values)) > best)
        over: Steps = np.flatnonzero(is_over[1:] & is_over[:-1]) + 1  # one alone may be noise
        return over if is_over[-2:].all() else over[:0]


def _guess(run: RunView) -> float:
    """The loss of the best constant output, or where training began if that is not known."""
    return run.trivial_loss if math.isfinite(run.trivial_loss) else run.first_loss


@dataclass(frozen=True)
class NoLabelSignal(Symptom):
    """The training data are learned, but validation is no better than guessing: inputs and labels do not match.

    Attributes:
        validation: the lowest validation loss, as a share of that of guessing.
        training: the largest training loss, as a share of that of guessing.
        few: fewer samples than this, if each step gets all of them, are learned by heart whatever their labels are.
    """

    id: ClassVar[str] = "no_label_signal"
    validation: float = 0.95
    training: float = 0.75
    few: float = 100

    def look(self, run: RunView) -> Iterable[Finding]:
        """From at least three evaluations."""
        checks, guess = run.validation, run.trivial_loss
        if len(checks) < 3 or not math.isfinite(guess) or guess <= 0:
            return
        best = -largest(-checks.values)
        # far above it the validation data have other classes, or the model was ruined by something else
        if not self.validation * guess < best < 1.5 * guess or not run.last_loss < self.training * guess:
            return
        if not checks.values[-1] > 1.02 * best:
            return  # it may still fall
        if run.repeats_one_batch and (run.facts.batch or math.inf) < self.few:
            return
        at = [step for step in checks.steps[2:].tolist() if run.loss_before(step) < self.training * guess]
        text = (
            f"The training loss is {short(run.last_loss)}, but the validation loss was never below {short(best)}; "
            f"guessing gives {short(guess)}. Labels have nothing to do with what the model sees, or are shuffled "
            "against it."
        )
        remedy = Remedy("Check that inputs and labels stay together, and look at some pairs as the model gets them.")
        shown = points("validation loss", None, checks.steps, checks.values, self.validation * guess)
        detected = int(at[0]) if at else int(checks.steps[-1])
        yield self.finding(None, int(checks.steps[0]), detected, "error", text, remedy, shown)


@dataclass(frozen=True)
class LeftTrainMode(Symptom):
    """After an evaluation, training goes on in eval mode.

    Attributes:
        steps: for how many steps at least.
        share: in which share of them a loss must have been seen in eval mode.
    """

    id: ClassVar[str] = "left_train_mode"
    steps: int = SHORT
    share: float = 0.5

    def look(self, run: RunView) -> Iterable[Finding]:
        """Optimizer steps go on, but all losses come from eval mode."""
        if not run.loss:
            return
        last = int(run.loss.steps[-1])
        later, is_later = run.step - last, run.validation.steps > last
        if later < self.steps or len(np.unique(run.validation.steps[is_later])) <= self.share * later:
            return
        text = (
            f"All losses since step {last + 1:,} were seen in eval mode: dropout is off, BatchNorm does not "
            "follow the batches any more, and layers are not measured."
        )
        remedy = Remedy("Call model.train() after each evaluation.")
        shown = points("validation loss", None, run.validation.steps[is_later], run.validation.values[is_later])
        yield self.finding(None, last + 1, last + self.steps, "warning", text, remedy, shown, confidence=0.98)


@dataclass(frozen=True)
class TrainEvalMismatch(Symptom):
    """The model is much worse in eval mode, because the running statistics of BatchNorm do not match the data.

    Attributes:
        factor: how many times the training loss the validation loss must be.
        share: and how much more, as a share of the first loss.
        variance: how far the variance of a batch must be from the running one, as a factor.
        mean: the same for means, in standard deviations.
    """

    id: ClassVar[str] = "train_eval_mismatch"
    needs: ClassVar[tuple[str, ...]] = (signals.BATCH_NORM_VARIANCE, signals.BATCH_NORM_MEAN)
    factor: float = 2.0
    share: float = 0.03
    variance: float = 3.0
    mean: float = 1.0

    def look(self, run: RunView) -> Iterable[Finding]:
        """Where both losses and statistics differ."""
        checks = run.validation
        scale = abs(run.first_loss) if math.isfinite(run.first_loss) else abs(run.last_loss)
        if not checks or not math.isfinite(run.last_loss):
            return
        trained = np.array([run.loss_before(int(step)) for step in checks.steps])
        is_bad = checks.values > trained + (self.factor - 1) * np.abs(trained) + self.share * scale
        if not is_bad[-1] or is_bad.mean() < 0.5:
            return
        variance = run.table(signals.BATCH_NORM_VARIANCE)
        mean = run.table(signals.BATCH_NORM_MEAN).select(variance.places)
        ratios, shifts = (nan_median(run.latest(table).T) for table in (variance, mean))  # first steps are always off
        with np.errstate(all="ignore"):
            off, shift = np.abs(np.log(ratios)) / math.log(self.variance), shifts / self.mean
        bad = np.flatnonzero(np.fmax(off, shift) > 1).tolist()
        if not bad:
            return
        place = min(bad, key=lambda number: run.place(variance.places[number]))
        layer, is_variance = variance.places[place], not shift[place] > off[place]
        how = (
            f"variance ratio {short(ratios[place])}"
            if is_variance
            else f"means are {short(shifts[place])} standard deviations apart"
        )
        text = (
            f"The validation loss is {short(float(checks.values[-1]))}, the training loss {short(run.last_loss)}. In "
            f"{layer_text(layer)} the statistics that are used in eval mode are not those of the batches ({how}). "
            "In eval mode the model computes something different from training."
        )
        remedy = Remedy("Raise the momentum of BatchNorm or the batch size, or collect the statistics again.")
        shown = (
            evidence(variance, signals.BATCH_NORM_VARIANCE, layer)
            if is_variance
            else evidence(mean, signals.BATCH_NORM_MEAN, layer, self.mean)
        )
        first = int(np.flatnonzero(is_bad)[0])
        yield self.finding(layer, int(checks.steps[first]), int(checks.steps[first]), "warning", text, remedy, shown)
