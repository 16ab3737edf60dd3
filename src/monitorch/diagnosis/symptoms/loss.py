"""What losses alone tell: spikes, a bad start, overfitting, and differences between training and validation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import signals
from ..finding import Evidence, Finding, Remedy
from ..history import Numbers, Steps
from ..run import CROSS_ENTROPY, EARLY, FEWEST, RunView, largest, median, nan_median, rolling_median
from .base import Symptom, points, short

RECENT = 10
"""A spike is a jump from the median of so many losses before it."""

SMOOTH, SETBACK = 5, 1.25
"""A setback is a rise of the median of so many losses, within as many steps, by this factor,"""
RATE_JUMP = 3.0
"""after the learning rate was so many times as high as ever before."""


@dataclass(frozen=True)
class LossSpike(Symptom):
    """The loss jumps far above what it was, and comes back.

    Attributes:
        z: how many robust standard deviations of the log loss.
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
        if len(losses) < 40 or not (losses.values > 0).all():
            return
        values, logs = losses.values, np.log(losses.values)
        found: list[tuple[float, int, int]] = []
        size = min(self.window, len(values) // 2)
        level = np.median(np.lib.stride_tricks.sliding_window_view(logs, RECENT)[:-1], axis=1)
        rest = np.concatenate([np.zeros(RECENT), logs[RECENT:] - level])  # the loss falls, so compare with just before
        windows = np.lib.stride_tricks.sliding_window_view(rest, size)[:-1]
        spread = 1.4826 * np.median(np.abs(windows - np.median(windows, axis=1)[:, None]), axis=1)
        typical = np.exp(level[size - RECENT :])
        ahead = values[size:]
        scores = rest[size:] / np.maximum(spread, 0.02)
        scale = max(run.first_loss if math.isfinite(run.first_loss) else 0.0, float(np.median(values)))
        was_calm = values[size - 1 : -1] < 1.25 * typical  # a loss that rises step by step is no spike
        is_spike = was_calm & (scores > self.z) & (ahead - typical > self.jump * scale) & (ahead > 2 * typical)
        for place in np.flatnonzero(is_spike).tolist():
            if np.mean(scores[:place] > self.z / 2) > 0.02:
                continue  # a heavy tail is no spike
            after = ahead[place + 1 : place + 31]
            back = np.flatnonzero(after < typical[place] + 0.3 * (ahead[place] - typical[place]))
            if len(back):
                found.append((float(scores[place]), place + size, int(back[0]) + 1))
        is_slow = not found
        if is_slow:
            found = self._setback(run, typical, spread, size, self.jump * scale)
        if not found:
            return
        _, place, length = max(found)
        step = int(losses.steps[place])
        cause, culprit = self._culprit(run, step)
        if is_slow:
            cause = "The learning rate was far higher than ever before just then."
        before, top = float(typical[place - size]), float(values[place : place + length].max())
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
        shown = points("loss", None, losses.steps[place - size :], values[place - size :])
        yield self.finding(None, step, step, "warning", text, remedy, shown, *culprit)

    def _setback(
        self, run: RunView, typical: Numbers, spread: Numbers, size: int, jump: float
    ) -> list[tuple[float, int, int]]:
        """A rise within a few steps after a jump of the learning rate, until losses are halfway back.

        Without such a jump it would be the edge of stability, or a harder part of the data.
        """
        values, steps, jumps = run.loss.values, run.loss.steps, _rate_jumps(run)
        later = rolling_median(values[:, None], SMOOTH)[size + 2 * SMOOTH - 1 :, 0]  # from 5 to 10 steps later
        before, spread = typical[: len(later)], spread[: len(later)]
        scores = 2 * np.log(later / before) / np.maximum(spread, 0.02)  # medians have half of the noise
        is_up = (scores > self.z) & (later > SETBACK * before) & (later - before > jump)
        for place in np.flatnonzero(is_up).tolist():
            if not (np.abs(jumps - steps[place + size]) <= 2 * RECENT).any():
                continue
            half = (before[place] + later[place]) / 2
            first = int(np.argmax(values[place + size :] > half))
            back = np.flatnonzero(later[place + 1 :] < half)
            if len(back):
                return [(float(scores[place]), place + size + first, int(back[0]) + 1)]
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
        classes, losses = run.facts.classes, run.loss
        if run.facts.loss_fn not in CROSS_ENTROPY or not classes or classes < 2 or not losses:
            return
        is_sure = (run.facts.batch or 0) >= self.batch
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
        severity = "info" if run.learns or (not run.is_long and first < 1.5 * limit) else "warning"
        yield self.finding(last, step, step, severity, text, remedy, shown)


@dataclass(frozen=True)
class Overfitting(Symptom):
    """The validation loss rises while the training loss falls.

    Attributes:
        rise: how many times the lowest validation loss.
        share: and how much more, as a share of the first loss.
    """

    id: ClassVar[str] = "overfitting"
    rise: float = 1.15
    share: float = 0.05

    def look(self, run: RunView) -> Iterable[Finding]:
        """From at least three evaluations."""
        checks, losses = run.validation, run.loss
        values = checks.values
        if len(checks) < 3 or not np.isfinite(values).all() or not losses:
            return
        best = int(np.argmin(values))
        scale = abs(run.first_loss) if math.isfinite(run.first_loss) else abs(float(values[0]))
        limit = self.rise * values[best] + self.share * scale
        is_over = (values > limit) & (np.arange(len(values)) > best)
        over = np.flatnonzero(is_over[1:] & is_over[:-1]) + 1  # one alone may be noise
        if not len(over) or not is_over[-2:].all():
            return
        then, now = run.loss_before(int(checks.steps[best])), run.last_loss
        if not now < then:
            return
        text = (
            f"The validation loss was lowest at step {int(checks.steps[best]):,} ({short(float(values[best]))}) and is "
            f"{short(float(values[-1]))} now, while the training loss fell from {short(then)} to {short(now)}. "
            "The model learns its training data by heart."
        )
        remedy = Remedy("Stop there, use more data, or regularise: weight decay, dropout, augmentation.")
        shown = points("validation loss", None, checks.steps, values, float(limit))
        step, detected = int(checks.steps[best]), int(checks.steps[over[0]])
        yield self.finding(None, step, detected, "warning", text, remedy, shown)


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
        is_bad = checks.values > self.factor * trained + self.share * scale
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
