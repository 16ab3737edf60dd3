"""What goes wrong in optimizer steps: parameters that do not move, old gradients, steps of the wrong size."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import remedies, signals
from ..finding import Finding, Remedy
from ..history import Numbers, Table
from ..run import FEWEST, RunView, largest, median, nan_median, rolling_median
from .base import Symptom, evidence, lasting, others, points, share, short, stretches


@dataclass(frozen=True)
class NoUpdate(Symptom):
    """A parameter gets gradients, but no bit of it changes.

    Attributes:
        steps: for how many observed steps.
        gradient: gradients smaller than this share of the median one are rounding.
        idle_rate: for how many observed steps a group may have the learning rate 0.
    """

    id: ClassVar[str] = "no_update"
    needs: ClassVar[tuple[str, ...]] = (signals.CHANGED, signals.GRADIENT)
    steps: int = 3
    gradient: float = 1e-5
    idle_rate: int = 20

    def look(self, run: RunView) -> Iterable[Finding]:
        """All parameters that stay the same, by layer."""
        changed = run.table(signals.CHANGED)
        names = [name for name in changed.places if name in run.facts.parameters]
        names = [name for name in names if run.facts.parameters[name].trainable]
        changed = changed.select(names)
        if not names:
            return
        sizes = np.sqrt([run.size(name) for name in names])
        rms = run.table(signals.GRADIENT).at(changed.steps, names) / sizes
        rates = run.table(signals.RATE).at(changed.steps, names)
        with np.errstate(all="ignore"):
            floor = self.gradient * nan_median(rms)[:, None]
        moves = (rms > floor) & (rms > 0)
        is_idle = (rates == 0) & (np.cumsum(rates == 0, axis=0) < self.idle_rate)
        left = np.array([run.left_optimizer.get(name, math.inf) for name in names])
        is_bad = (changed.values == 0) & ((moves & ~is_idle) | (changed.steps[:, None] >= left))
        counted = np.cumsum(is_bad, axis=0)
        lag = np.vstack([np.zeros((self.steps, len(names))), counted])[: len(counted)]
        found = [
            one
            for one in stretches(changed.steps, changed.values, is_bad, (counted - lag) >= self.steps)
            if one.resolved_at is None
        ]
        if not found:
            return
        frozen = [names[one.place] for one in found]
        layers = list(dict.fromkeys(run.layer_of(name) or name for name in frozen))
        known = run.facts.parameters
        outside = [name for name in frozen if not known[name].optimized or name in run.left_optimizer]
        idle = [names[one.place] for one in found if rates[-1, one.place] == 0]
        usual_rate = median(np.where(rates > 0, rates, np.nan))
        ratios = nan_median(_ratios(run).values[-FEWEST:])
        if not outside and not idle and (len(frozen) > len(names) / 2 or (ratios < 3e-5).all()):
            return  # steps are too small for all of them, which is another symptom
        why = (
            "No optimizer has it."
            if outside
            else "Its learning rate is 0."
            if idle
            else "Its updates are lost in rounding."
        )
        remedy = (
            Remedy(
                "Give it to the optimizer, after the model is complete.", "add_to_optimizer", {"parameters": outside}
            )
            if outside
            else Remedy("Give its group a learning rate.", "set_group_lr", {"parameters": idle, "lr": usual_rate})
            if idle
            else Remedy("Raise the learning rate, or keep the weights in float32.", "scale_lr", {"factor": 10.0})
        )
        when = min(found, key=lambda one: (one.step, one.place))
        text = f"{layers[0]} gets gradients but does not change{others(layers)}. {why}"
        shown = evidence(changed, signals.CHANGED, frozen[0])
        severity = "error" if len(frozen) == len(names) else "warning"
        yield self.finding(layers[0], when.step, when.detected_at, severity, text, remedy, shown, confidence=0.98)


@dataclass(frozen=True)
class StaleGradient(Symptom):
    """Gradients are never emptied, so that each step uses the sum of all steps before.

    Attributes:
        share: in which share of the steps they must not have been empty.
        steps: how many observed steps are needed.
    """

    id: ClassVar[str] = "stale_gradient"
    needs: ClassVar[tuple[str, ...]] = (signals.GRADIENT_EMPTY,)
    share: float = 0.9
    steps: int = FEWEST

    def look(self, run: RunView) -> Iterable[Finding]:
        """All parameters, or those of one optimizer."""
        table = run.table(signals.GRADIENT_EMPTY)
        own = run.facts.parameters
        names = [name for name in table.places if name in own and own[name].trainable and own[name].optimized]
        table = table.select(names)
        if len(table.steps) < self.steps or not names:
            return
        is_bad = table.values == 0
        found = lasting(table, is_bad, self.steps)
        found = [one for one in found if np.mean(is_bad[table.steps >= one.step, one.place]) > self.share]
        found = [one for one in found if one.resolved_at is None]
        if not found or len(found) < 0.3 * len(names):
            return
        when = min(found, key=lambda one: one.step)
        is_all = len(found) > 0.8 * len(names)
        layer = None if is_all else run.layer_of(names[when.place])
        level = float(np.mean(is_bad[table.steps >= when.step]))
        text = (
            f"In {share(level)} of the observed steps gradients were not empty when backward added to them. "
            "zero_grad() is missing, so every step uses the sum of all gradients so far."
        )
        remedy = Remedy("Call optimizer.zero_grad() before each backward pass.", "zero_grad", {})
        shown = evidence(table, signals.GRADIENT_EMPTY, names[when.place])
        severity = "error" if run.is_stuck or not run.learns else "warning"
        yield self.finding(layer, when.step, when.detected_at, severity, text, remedy, shown, confidence=0.98)


def _ratios(run: RunView) -> Table:
    """The update ratios of weights."""
    return run.table(signals.UPDATE_RATIO).select(run.weights)


@dataclass(frozen=True)
class StepTooLarge(Symptom):
    """Steps replace what was learned: large updates, or a loss that rises far above where it began.

    Attributes:
        ratio: the largest |update| / |weight| that is fine, as a median over observed steps.
        layers: in which share of the weights.
        rise: how many times the first loss a loss must be.
    """

    id: ClassVar[str] = "step_too_large"
    ratio: float = 0.1
    layers: float = 0.5
    rise: float = 1.5

    def look(self, run: RunView) -> Iterable[Finding]:
        """Large updates, or divergence."""
        table = _ratios(run)
        middle = nan_median(np.where(table.values > 0, table.values, np.nan)) if table else np.zeros(0)
        large = min(filter(None, (self._large_updates(table), self._fast_growth(run))), default=None)
        rising = self._divergence(run, table, middle)
        if large is None and rising is None:
            return
        known = [one for one in (large, rising) if one is not None]
        step, detected_at = min(known, key=lambda one: one[1])
        level = largest(middle)
        now = run.loss.values[np.isfinite(run.loss.values)]
        has_diverged = rising is not None
        says = []
        if large is not None:
            size = share(level) if level > self.ratio else f"more than {share(self.ratio)}"
            says.append(f"A step changes weights by {size} of their size.")
        if has_diverged and len(now):
            says.append(f"The loss rose from {short(run.first_loss)} to {short(float(now.max()))}.")
        says.append("Steps overshoot, so nothing that was learned lasts.")
        severity = "error" if has_diverged or run.is_stuck else run.harm()
        if not has_diverged and not run.is_long:
            severity = "info"  # first steps may be large, as long as the loss falls
        begin = middle[table.steps >= step] if table else middle
        update = next(
            iter(begin[np.isfinite(begin)].tolist()), math.nan
        )  # later ones depend on what the first has done
        remedy = remedies.lower_rate(run, update, "Lower the learning rate, warm it up, or clip gradients.")
        shown = [points(signals.UPDATE_RATIO, None, table.steps, middle, self.ratio)] if table else []
        shown.append(points("loss", None, run.loss.steps, run.loss.values))
        yield self.finding(None, step, detected_at, severity, " ".join(says[:3]), remedy, *shown)

    def _large_updates(self, table: Table) -> tuple[int, int] | None:
        """When more than half of the weights began to change that much."""
        if not table:
            return None
        is_bad = table.values > self.ratio
        part = is_bad.sum(axis=1) / np.maximum(np.isfinite(table.values).sum(axis=1), 1)
        bad = part >= self.layers
        sure = rolling_median(bad[:, None].astype(float))[:, 0] > 0.5
        rows = np.flatnonzero(sure)
        if not len(rows):
            return None
        first = max(0, rows[0] - FEWEST + 1)
        first += int(np.argmax(bad[first : rows[0] + 1]))
        return int(table.steps[first]), int(table.steps[rows[0]])

    def _fast_growth(self, run: RunView) -> tuple[int, int] | None:
        """The same from norms of weights, which are read also where steps are not observed.

        Steps together are at least as long as a norm has grown.
        """
        table, ratios_seen = run.table(signals.WEIGHT).select(run.weights), _ratios(run)
        if len(table.steps) < 2 or not table.places:
            return None
        apart = np.diff(table.steps)[:, None]
        with np.errstate(all="ignore"):
            ratios = np.abs(np.diff(table.values, axis=0)) / table.values[:-1] / np.maximum(apart, FEWEST)
        part = np.mean(np.where(np.isfinite(ratios), ratios > self.ratio, 0.0), axis=1)
        for row in np.flatnonzero(part >= self.layers).tolist():
            begin, end = int(table.steps[row]), int(table.steps[row + 1])
            observed = ratios_seen.values[(ratios_seen.steps > begin) & (ratios_seen.steps <= end)]
            is_denied = median(observed) < self.ratio / 3
            if not is_denied:  # otherwise somebody else has changed the weights
                return begin + 1, end
        return None

    def _divergence(self, run: RunView, table: Table, middle: Numbers) -> tuple[int, int] | None:
        """When the loss began to rise, if it rose far above where it began, and stayed there."""
        losses, first = run.loss, run.first_loss
        if len(losses) < 10 or not math.isfinite(first):
            return None
        finite = np.isfinite(losses.values)
        values, steps = losses.values[finite], losses.steps[finite]
        if len(values) < 10 or run.facts.optimizers > 1:
            return None
        smooth = rolling_median(values[:, None], 10)[:, 0]
        noise = 1.4826 * float(np.median(np.abs(values[:20] - first)))
        lowest = np.fmin.accumulate(np.where(np.isfinite(smooth), smooth, np.inf))
        limit = np.maximum(first + max((self.rise - 1) * abs(first), 8 * noise), 3 * np.where(lowest > 0, lowest, 0))
        rows = np.flatnonzero(smooth > limit)
        if not len(rows) or smooth[-1] <= limit[-1]:
            return None
        is_huge = smooth[-1] > 10 * max(abs(first), 1e-12)
        strong = largest(middle) > 0.02
        if not (is_huge or strong):
            return None
        detected = rows[0]
        onset = detected - int(np.argmax(values[detected::-1] <= first + max(0.1 * abs(first), 3 * noise)))
        return int(steps[onset]), int(steps[detected])


@dataclass(frozen=True)
class NoProgress(Symptom):
    """The loss does not fall: steps are too small, or nothing is learned at all.

    Attributes:
        ratio: the largest |update| / |weight| of steps that are too small.
        cosine: how alike consecutive gradients are then.
        plateau: for how many steps a loss must not have fallen if steps are not too small.
    """

    id: ClassVar[str] = "no_progress"
    ratio: float = 3e-5
    cosine: float = 0.5
    plateau: int = 150

    def look(self, run: RunView) -> Iterable[Finding]:
        """Small steps first, then a plateau."""
        found = self._small_steps(run)
        if found is None:
            found = self._plateau(run)
        if found is not None:
            yield found

    def _small_steps(self, run: RunView) -> Finding | None:
        table = _ratios(run)
        if not table or len(table.steps) < FEWEST or not run.saw_the_start:
            return None
        if _is_warming_up(run):
            return None
        middle = nan_median(table.values)
        highest = np.where(np.isfinite(table.values), table.values, 0.0).max(axis=1)
        is_small = rolling_median(highest[:, None])[:, 0] < self.ratio
        cosines = run.table(signals.GRADIENT_COSINE).select(run.weights)
        alike = median(cosines.values)
        rows = np.flatnonzero(is_small)
        is_flat = math.isfinite(run.fallen) and run.fallen < 0.05 and run.facts.optimizers == 1
        if not len(rows) or not is_small[-1] or alike < self.cosine or not is_flat or len(run.loss) < 10:
            return None
        if np.mean(highest < self.ratio) < 0.5:
            return None  # rates that go to 0 at the end are meant to
        level = median(middle[-FEWEST:])
        text = (
            f"A step changes weights by {short(level)} of their size, and gradients always point the same way. "
            f"The loss is still {share(run.last_loss / run.first_loss)} of the first: the learning rate is too low."
        )
        remedy = remedies.raise_rate(run, level, "Raise the learning rate until a step changes weights by about 1 %.")
        shown = points(signals.UPDATE_RATIO, None, table.steps, middle, self.ratio)
        step = int(table.steps[0])
        severity = "error" if run.is_stuck else "warning"
        return self.finding(None, step, int(table.steps[rows[0]]), severity, text, remedy, shown)

    def _plateau(self, run: RunView) -> Finding | None:
        losses = run.loss
        values = losses.values[np.isfinite(losses.values)]
        if len(values) < self.plateau or len(values) < len(losses) or _is_warming_up(run):
            return None
        if not run.is_stuck:
            return None
        recent = values[-max(self.plateau, len(values) // 2) :]
        if np.nanmin(rolling_median(values[:, None], 10)) < 0.9 * run.last_loss:
            return None  # it was better before, so it can learn
        slope, error = _slope(recent)
        if slope + 2 * error < 0 and slope * len(recent) < -0.02 * abs(float(np.mean(recent))):
            return None  # it falls, if slowly
        against = (
            f", and {short(run.trivial_loss)} for always saying the same" if math.isfinite(run.trivial_loss) else ""
        )
        text = (
            f"After {len(values):,} steps the loss is {short(run.last_loss)}; it was {short(run.first_loss)}{against}. "
            "It has stopped falling before anything was learned."
        )
        advice = "Try another learning rate, fit a single batch first, and look at the loss and the last activation."
        update = median(nan_median(_ratios(run).values[-FEWEST:]))
        is_high = update > remedies.LARGE_UPDATE
        remedy = (remedies.lower_rate if is_high else remedies.raise_rate)(run, update, advice)
        shown = points("loss", None, losses.steps, losses.values, None)
        level, spread = float(np.median(recent)), float(np.std(recent))
        first = int(np.argmax(values <= level + spread))  # the median itself is, so there is one
        step, detected = losses.steps[first], losses.steps[min(len(values), first + self.plateau) - 1]
        return self.finding(None, step, detected, "warning", text, remedy, shown, confidence=0.6)


def _is_warming_up(run: RunView) -> bool:
    """Whether learning rates still rise: whatever is small now may be meant to be."""
    rates = run.table(signals.RATE)
    if not rates or len(rates.steps) < 3:
        return False
    highest = np.where(np.isfinite(rates.values), rates.values, 0.0).max(axis=1)
    return bool(highest[-1] > 1.05 * highest[max(0, len(highest) // 2)])


def _slope(values: Numbers) -> tuple[float, float]:
    """The slope of a line through numbers, per step, and its standard error."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float((x * values).sum() / (x**2).sum())
    rest = values - values.mean() - slope * x
    return slope, float(math.sqrt((rest**2).sum() / max(len(values) - 2, 1) / (x**2).sum()))


@dataclass(frozen=True)
class Oscillation(Symptom):
    """Each step undoes the one before: gradients turn round all the time.

    Attributes:
        cosine: the largest cosine of consecutive gradients.
        rises: the share of steps in which the loss must rise.
    """

    id: ClassVar[str] = "oscillation"
    needs: ClassVar[tuple[str, ...]] = (signals.GRADIENT_COSINE,)
    cosine: float = -0.5
    rises: float = 0.3

    def look(self, run: RunView) -> Iterable[Finding]:
        """In nearly all layers at once."""
        table = run.table(signals.GRADIENT_COSINE).select(run.weights)
        if not table or len(table.steps) < FEWEST or len(run.loss) < 20:
            return
        highest = np.where(np.isfinite(table.values), table.values, -1.0).max(axis=1)
        sure = rolling_median(highest[:, None])[:, 0] < self.cosine
        rows = np.flatnonzero(sure)
        if not len(rows):
            return
        detected = int(table.steps[rows[0]])
        after = run.loss.values[run.loss.steps >= table.steps[max(0, rows[0] - FEWEST + 1)]]
        up = float(np.mean(np.diff(after) > 0)) if len(after) > 5 else 0.0
        if up < self.rises:
            return
        level = median(table.values[-FEWEST:])
        resolved = None if sure[-1] else int(table.steps[min(rows[-1] + 1, len(table.steps) - 1)])
        text = (
            f"Consecutive gradients point in opposite directions (cosine {short(level)}), and the loss rises in "
            f"{share(up)} of the steps. The learning rate is at the edge of what is stable."
        )
        remedy = Remedy("Halve the learning rate, or let it decay.", "scale_lr", {"factor": 0.5})
        shown = points(signals.GRADIENT_COSINE, None, table.steps, highest, self.cosine)
        severity = "warning" if run.is_stuck else "info"
        yield self.finding(
            None,
            int(table.steps[max(0, rows[0] - FEWEST + 1)]),
            detected,
            severity,
            text,
            remedy,
            shown,
            resolved_at=resolved,
        )


@dataclass(frozen=True)
class OverRegularised(Symptom):
    """Weights shrink to nothing.

    Attributes:
        shrunk: the norm of a weight over its first one, at most.
        layers: in which share of the weights.
    """

    id: ClassVar[str] = "over_regularised"
    needs: ClassVar[tuple[str, ...]] = (signals.WEIGHT,)
    needs_start: ClassVar[bool] = True
    shrunk: float = 0.1
    layers: float = 0.5

    def look(self, run: RunView) -> Iterable[Finding]:
        """In half of all weights."""
        table = run.table(signals.WEIGHT).select(run.weights)
        if len(table.steps) < 2 or not table.places:
            return
        with np.errstate(all="ignore"):
            ratios = table.values / table.values[:1]
        is_small = np.where(np.isfinite(ratios), ratios < self.shrunk, False)
        part = is_small.mean(axis=1)
        rows = np.flatnonzero(part >= self.layers)
        if not len(rows) or part[-1] < self.layers:
            return
        worst = int(np.argmin(np.where(np.isfinite(ratios[-1]), ratios[-1], np.inf)))
        level = median(ratios[-1])
        began = int(np.argmax(np.nan_to_num(nan_median(ratios)[: rows[0] + 1])))
        text = (
            f"Weights have shrunk to {share(level)} of their first norm, {table.places[worst]} most of all. "
            "Weight decay is stronger than what gradients add, so the model forgets what it learns."
        )
        remedy = Remedy("Lower the weight decay.", "scale_weight_decay", {"factor": 0.01})
        shown = points(signals.WEIGHT, table.places[worst], table.steps, table.values[:, worst])
        yield self.finding(None, int(table.steps[began]), int(table.steps[rows[0]]), run.harm(), text, remedy, shown)


@dataclass(frozen=True)
class NoisyGradient(Symptom):
    """Gradients of consecutive steps have nothing in common: batches are too small.

    Attributes:
        cosine: the largest absolute cosine.
        batch: the largest batch for which that is a problem by itself.
    """

    id: ClassVar[str] = "gradient_noise"
    needs: ClassVar[tuple[str, ...]] = (signals.GRADIENT_COSINE,)
    needs_start: ClassVar[bool] = True
    cosine: float = 0.1
    batch: float = 4

    def look(self, run: RunView) -> Iterable[Finding]:
        """In all layers, early, with small batches, while little is learned."""
        table = run.table(signals.GRADIENT_COSINE).select(run.weights)
        if len(table.steps) < 2 * FEWEST or not run.is_long or run.facts.batch is None:
            return
        early = np.abs(nan_median(table.values[1 : 4 * FEWEST].T))
        level = median(early)
        if run.facts.batch > self.batch or not level <= self.cosine:
            return
        text = (
            f"Gradients of consecutive steps have a cosine of {short(level)} in most layers, with batches of "
            f"{run.facts.batch:g}. Most of each step is noise."
        )
        remedy = Remedy(
            "Use larger batches, accumulate gradients, or lower the learning rate.", "scale_lr", {"factor": 0.1}
        )
        shown = points(signals.GRADIENT_COSINE, None, table.steps, nan_median(table.values), self.cosine)
        severity = "info" if run.learns else "warning"
        yield self.finding(
            None, int(table.steps[0]), int(table.steps[2 * FEWEST - 1]), severity, text, remedy, shown, confidence=0.5
        )
