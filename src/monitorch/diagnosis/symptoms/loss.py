"""What losses alone tell: spikes, a bad start, overfitting, and differences between training and validation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from .. import signals
from ..finding import Evidence, Finding, Remedy
from ..history import Numbers, Steps
from ..run import BINARY, CROSS_ENTROPY, EARLY, FEWEST, RunView, largest, median, nan_median, rolling_median
from .base import Symptom, points, short

RECENT = 10
"""A spike is a jump from the median of so many losses before it."""

SMOOTH, SETBACK = 5, 0.25
"""A setback is a rise of the median of so many losses, within as many steps, by this share of the loss,"""
RATE_JUMP = 3.0
"""after the learning rate was so many times as high as ever before."""

FAR = 1.5
"""A first loss that is so many times its limit does harm, even if nobody knows yet whether the run learns."""

LEAST_NOISE = 0.02
"""The noise of a loss is taken for this share of it at least: that of full batches has none."""


class LossNoise(NamedTuple):
    """How losses differ from those just before them; numbers are of the losses from ``begin`` on."""

    begin: int
    level: Numbers
    """The median of the losses just before."""
    excess: Numbers
    """How far above it a loss is."""
    before: Numbers
    """How far above theirs the loss before was."""
    spread: Numbers
    """The usual excess in the steps before, as a robust standard deviation."""
    largest: Numbers
    """The largest one there."""

    @classmethod
    def of(cls, losses: Numbers, window: int) -> "LossNoise":
        """Of all losses that have so many before them."""
        view = np.lib.stride_tricks.sliding_window_view
        level = np.median(view(losses, RECENT)[:-1], axis=1)  # the loss falls, so compare with just before
        excess = np.concatenate([np.zeros(RECENT), losses[RECENT:] - level])
        past = view(excess, window)[:-1]
        spread = 1.4826 * np.median(np.abs(past - np.median(past, axis=1)[:, None]), axis=1)
        level = level[window - RECENT :]
        spread = np.maximum(spread, np.maximum(LEAST_NOISE * np.abs(level), 1e-12))
        calm = past[:, :-SMOOTH]  # what is just before may be the beginning of it
        return cls(window, level, excess[window:], excess[window - 1 : -1], spread, calm.max(axis=1))


@dataclass(frozen=True)
class LossSpike(Symptom):
    """The loss jumps far above what it was, and comes back.

    Attributes:
        z: how many robust standard deviations.
        jump: how large the jump must be, as a share of the first loss.
        window: over how many steps before it.
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
        noise = LossNoise.of(losses.values, min(self.window, len(losses) // 2))
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
        before, top = float(noise.level[place - noise.begin]), float(values[place : place + length].max())
        text = (
            f"The loss jumped from {short(before)} to {short(top)} at step {step:,}, and was "
            f"{'halfway ' * is_slow}back {length} later. "
            f"{cause}"
        )
        gradients = run.table(signals.ALL_GRADIENTS)
        usual = median(gradients.values) if gradients else 1.0
        remedy = Remedy(
            "Look at this batch, skip it, or clip gradients.", "clip", {"max_norm": round(2 * usual, 4) or 1.0}
        )
        shown = points("loss", None, losses.steps[place - noise.begin :], values[place - noise.begin :])
        detected = int(losses.steps[min(place + length, len(losses) - 1)])
        yield self.finding(None, step, detected, "warning", text, remedy, shown, *culprit)

    def _jumps(self, noise: LossNoise, jump: float) -> list[tuple[float, int, int]]:
        """Losses that are as far above the largest ones of their window as these are above the usual noise."""
        scores, ahead = noise.excess / noise.spread, noise.level + noise.excess
        was_calm = noise.before < 0.3 * noise.excess  # a loss that rises step by step is no spike
        is_far = (scores > self.z) & (scores > (noise.largest / noise.spread) ** 2)
        is_spike = was_calm & is_far & (noise.excess > jump) & (noise.excess > np.abs(noise.level))
        found = []
        for place in np.flatnonzero(is_spike).tolist():
            if np.mean(scores[:place] > self.z / 2) > 0.02:
                continue  # a heavy tail is no spike
            after = ahead[place + 1 : place + 1 + self.window]
            back = np.flatnonzero(after < noise.level[place] + 0.3 * noise.excess[place])
            if len(back):
                found.append((float(scores[place]), place + noise.begin, int(back[0]) + 1))
        return found

    def _setback(self, run: RunView, noise: LossNoise, jump: float) -> list[tuple[float, int, int]]:
        """A rise within a few steps after a jump of the learning rate, until losses are halfway back.

        Without such a jump it would be the edge of stability, or a harder part of the data.
        """
        values, steps, jumps = run.loss.values, run.loss.steps, _rate_jumps(run)
        later = rolling_median(values[:, None], SMOOTH)[noise.begin + 2 * SMOOTH - 1 :, 0]  # from 5 to 10 steps later
        before, spread = noise.level[: len(later)], noise.spread[: len(later)]
        rise = later - before
        scores = 2 * rise / spread  # medians have half of the noise
        is_up = (scores > self.z) & (rise > SETBACK * np.abs(before)) & (rise > jump)
        for place in np.flatnonzero(is_up).tolist():
            if not (np.abs(jumps - steps[place + noise.begin]) <= 2 * RECENT).any():
                continue
            half = (before[place] + later[place]) / 2
            first = int(np.argmax(values[place + noise.begin :] > half))
            back = np.flatnonzero(later[place + 1 :] < half)
            if len(back):
                return [(float(scores[place]), place + noise.begin + first, int(back[0]) + 1)]
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
        return "A single batch can do that, or a step into a steep place.", []


def _rate_jumps(run: RunView) -> Steps:
    """The observed steps in which learning rates were far above all before."""
    rates = run.table(signals.RATE)
    if not rates:
        return np.zeros(0, np.int64)
    highest = np.where(np.isfinite(rates.values), rates.values, 0.0).max(axis=1)
    known = np.maximum.accumulate(highest)
    found: Steps = rates.steps[1:][(highest[1:] > RATE_JUMP * known[:-1]) & (known[:-1] > 0)]
    return found


@dataclass(frozen=True)
class BadInitialLoss(Symptom):
    """A classifier starts worse than one that finds all classes as likely.

    Attributes:
        factor: how many times ln(classes) the first loss may be.
        batch: how many targets a first batch must have to be believed alone.
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
        first, limit = float(losses.values[0]) if is_sure else run.first_loss, self.factor * math.log(classes)
        if not first > limit or (not is_sure and len(losses) < EARLY):
            return
        text = (
            f"The first loss is {short(first)}; a classifier that knows nothing has {short(math.log(classes))} with "
            f"{classes} classes. The last layer starts with outputs that are far too large and wrong."
        )
        last = run.layer_of(run.weights[-1]) if run.weights else None
        remedy = Remedy(
            "Initialise the last layer smaller, or with zeros.",
            "reinit",
            {"layers": [last] if last else [], "gain": 0.1},
        )
        shown = points("loss", None, losses.steps[:50], losses.values[:50], limit)
        step = int(losses.steps[0])
        severity = "info" if run.learns or (not run.is_long and first < FAR * limit) else "warning"
        yield self.finding(last, step, step, severity, text, remedy, shown)


@dataclass(frozen=True)
class Overfitting(Symptom):
    """The validation loss rises while the training loss falls, or stays where it is while that of training vanishes.

    Attributes:
        rise: how many times the lowest validation loss; a third of that rise is worth an info.
        share: and how much more, as a share of the first loss.
        gap: how many times the training loss a validation loss must be that does not rise, and is not half of guessing.
    """

    id: ClassVar[str] = "overfitting"
    rise: float = 1.15
    share: float = 0.05
    gap: float = 10.0

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
        if not now < then:
            return
        text = (
            f"The validation loss was lowest at step {int(checks.steps[best]):,} ({short(lowest)}) and is "
            f"{short(float(values[-1]))} now, while the training loss fell from {short(then)} to {short(now)}. "
            "The model learns its training data by heart."
        )
        remedy = Remedy("Stop there, use more data, or regularise: weight decay, dropout, augmentation.")
        shown = points("validation loss", None, checks.steps, values, float(limit))
        step, detected = int(checks.steps[best]), int(checks.steps[over[0]])
        yield self.finding(None, step, detected, "warning" if is_bad else "info", text, remedy, shown)

    def _gap(self, run: RunView) -> Iterable[Finding]:
        """What training has learned does not help in validation."""
        checks, guess = run.validation, run.trivial_loss
        limit = 0.5 * (guess if math.isfinite(guess) else run.first_loss)
        trained = np.array([run.loss_before(int(step)) for step in checks.steps])
        is_bad = (checks.values > limit) & (checks.values > self.gap * trained) & (trained >= 0)
        first = len(checks) - int(np.argmin(is_bad[::-1])) if not is_bad.all() else 0
        if len(checks) - first < 3 or checks.values[-1] < 0.9 * checks.values[first]:
            return  # not yet, or it still falls
        text = (
            f"The training loss is {short(run.last_loss)}, but the validation loss stays at "
            f"{short(float(checks.values[-1]))}. The model learns its training data by heart."
        )
        remedy = Remedy("Use more data, or regularise: weight decay, dropout, augmentation.")
        shown = points("validation loss", None, checks.steps, checks.values, limit)
        yield self.finding(None, checks.steps[first], checks.steps[first + 2], "info", text, remedy, shown)

    def _beyond(self, values: Numbers, best: int, limit: float) -> Steps:
        """The evaluations after the best one that are beyond the limit, as the one before; none if it came back."""
        is_over = (values > limit) & (np.arange(len(values)) > best)
        over: Steps = np.flatnonzero(is_over[1:] & is_over[:-1]) + 1  # one alone may be noise
        return over if is_over[-2:].all() else over[:0]


@dataclass(frozen=True)
class NoLabelSignal(Symptom):
    """Training data are learned, but validation stays as bad as guessing: inputs and labels do not belong together.

    Attributes:
        validation: the lowest validation loss, as a share of that of guessing.
        training: the training loss, as a share of it, at most.
    """

    id: ClassVar[str] = "no_label_signal"
    validation: float = 0.95
    training: float = 0.75

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
        at = [step for step in checks.steps[2:].tolist() if run.loss_before(step) < self.training * guess]
        text = (
            f"The training loss is {short(run.last_loss)}, but the validation loss was never below {short(best)}; "
            f"guessing gives {short(guess)}. Labels have nothing to do with inputs, or are shuffled against them."
        )
        remedy = Remedy("Check that inputs and labels stay together, and look at some pairs.")
        shown = points("validation loss", None, checks.steps, checks.values, self.validation * guess)
        detected = int(at[0]) if at else int(checks.steps[-1])
        yield self.finding(None, int(checks.steps[0]), detected, "error", text, remedy, shown)


@dataclass(frozen=True)
class TrainEvalMismatch(Symptom):
    """The model is much worse in eval mode, because the running statistics of BatchNorm are not those of the data.

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
        variance, mean = run.table(signals.BATCH_NORM_VARIANCE), run.table(signals.BATCH_NORM_MEAN)
        with np.errstate(all="ignore"):
            off = np.abs(np.log(nan_median(variance.values[-FEWEST:].T))) / math.log(self.variance)
            shift = nan_median(mean.values[-FEWEST:].T) / self.mean
        level = np.fmax(off, shift)
        if not (level > 1).any():
            return
        worst = int(np.argmax(np.nan_to_num(level)))
        layer = min((variance.places[place] for place in np.flatnonzero(level > 1)), key=run.place)
        ratio = float(nan_median(variance.values[-FEWEST:].T)[worst])
        text = (
            f"The validation loss is {short(float(checks.values[-1]))}, the training loss {short(run.last_loss)}. In "
            f"{layer} the statistics that are used in eval mode are not those of the batches (variance ratio "
            f"{short(ratio)}). Eval mode computes something else than training."
        )
        remedy = Remedy("Raise the momentum of BatchNorm or the batch size, or collect the statistics again.")
        shown = points(signals.BATCH_NORM_VARIANCE, variance.places[worst], variance.steps, variance.values[:, worst])
        first = int(np.flatnonzero(is_bad)[0])
        yield self.finding(layer, int(checks.steps[first]), int(checks.steps[first]), "warning", text, remedy, shown)
