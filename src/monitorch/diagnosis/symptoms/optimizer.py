"""What goes wrong in optimizer steps: parameters that do not move, old gradients, steps of the wrong size."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import remedies, signals
from ..finding import Finding, Remedy
from ..history import Mask, Numbers, Steps, Table
from ..run import ABSOLUTE, EARLY, FEWEST, SHORT, SQUARED, RunView, filled, largest, median, nan_median, rolling_median
from .base import Symptom, evidence, in_a_row, lasting, part_of, points, share, short, stretches, together


@dataclass(frozen=True)
class NoUpdate(Symptom):
    """A parameter gets gradients but does not change by a single bit.

    Attributes:
        steps: for how many observed steps.
        gradient: gradients smaller than this share of the median one are rounding.
        idle_rate: for how many observed steps all learning rates may be 0.
    """

    id: ClassVar[str] = "no_update"
    needs: ClassVar[tuple[str, ...]] = (signals.CHANGED, signals.GRADIENT)
    steps: int = 3
    gradient: float = 1e-5
    idle_rate: int = 20

    def look(self, run: RunView) -> Iterable[Finding]:
        """What torch does not know, and all parameters that stay the same, by layer."""
        if hidden := run.facts.hidden:
            text = remedies.of_hidden(hidden)
            yield self.finding(None, run.facts.since + 1, run.step, "warning", text, remedies.REGISTER, confidence=0.98)
        yield from self._still(run)

    def _still(self, run: RunView) -> Iterable[Finding]:
        changed = run.table(signals.CHANGED)
        names = [name for name in changed.places if name in run.facts.parameters]
        names = [name for name in names if run.facts.parameters[name].trainable]
        if not names:
            return
        steps = np.union1d(changed.steps, run.table(signals.GRADIENT).steps)
        changed = Table(steps, tuple(names), changed.at(steps, names))
        sizes = np.sqrt([run.size(name) for name in names])
        rms = run.table(signals.GRADIENT).at(changed.steps, names) / sizes
        rates = run.table(signals.RATE).at(changed.steps, names)
        with np.errstate(all="ignore"):
            floor = self.gradient * nan_median(rms)[:, None]
        moves = (rms > floor) & (rms > 0)
        others_move = (rates > 0).any(axis=1, keepdims=True)  # a schedule may begin at 0, but then for all
        is_idle = (rates == 0) & ~others_move & (np.cumsum(rates == 0, axis=0) < self.idle_rate)
        left = np.array([run.left_optimizer.get(name, math.inf) for name in names])
        optimized = np.array([run.facts.parameters[name].optimized for name in names])
        # the first observed step has nothing to compare with, but nothing could have changed such a parameter
        is_same = (changed.values == 0) | (np.isnan(changed.values) & (~optimized | (rates == 0)))
        is_left = changed.steps[:, None] >= left
        is_bad = is_same & ((moves & ~is_idle) | is_left)
        had_rate = np.cumsum(rates > 0, axis=0) > 0  # since it was taken away, once it is certain that it stays away
        is_still = is_bad | (is_same & moves & had_rate)
        values = np.where(is_same, 0.0, changed.values)
        is_given_up = ~optimized | (rates[-1] == 0) | np.isfinite(left)  # also where no gradients come any more
        found = [
            one
            for one in stretches(changed.steps, values, is_still, in_a_row(is_bad, self.steps))
            if one.resolved_at is None
            or (is_given_up[one.place] and is_same[changed.steps >= one.resolved_at, one.place].all())
        ]
        if not found:
            return
        when = min(found, key=lambda one: (one.step, one.place))
        first, frozen = names[when.place], [names[one.place] for one in found]
        layers = list(dict.fromkeys(run.layer_of(name) or name for name in (first, *frozen)))
        are_many, known = len(layers) > 1, run.facts.parameters
        outside = [name for name in frozen if not known[name].optimized or name in run.left_optimizer]
        idle = [names[one.place] for one in found if rates[-1, one.place] == 0]
        ratios = nan_median(_ratios(run).values[-FEWEST:])
        are_nearly_all = len(frozen) > len(names) / 2 or (ratios < NoProgress.ratio).all()
        has_ended = when.step > changed.steps[0] and remedies.of_schedule(run, for_long=True) is not None
        if are_nearly_all and not outside and not idle and (run.is_stuck or not has_ended):
            return  # steps are too small for all of them, which is another symptom if nothing was learned before
        usual_rate = median(np.where(rates > 0, rates, np.nan))
        why, remedy = self._reason(run, outside, idle, usual_rate, are_many=are_many)
        what = "get gradients but do not change" if are_many else "gets gradients but does not change"
        text = f"{together(layers)} {what}. {why}"
        shown = evidence(changed, signals.CHANGED, first)
        severity = "error" if len(frozen) == len(names) else "warning"
        yield self.finding(layers[0], when.step, when.detected_at, severity, text, remedy, shown, confidence=0.98)

    def _reason(
        self, run: RunView, outside: list[str], idle: list[str], usual_rate: float, *, are_many: bool
    ) -> tuple[str, Remedy]:
        """Why parameters stay the same, and what to do: some are in no optimizer, have a rate of 0, or neither."""
        if outside:
            whom = "them" if are_many else "it"
            advice = f"Give {whom} to the optimizer, after the model is complete."
            return f"No optimizer has {whom}.", Remedy(advice, "add_to_optimizer", {"parameters": outside})
        whose = "Their" if are_many else "Its"
        if idle:
            advice = remedies.of_schedule(run) or "Give its group a learning rate."
            arguments = {"parameters": idle, "lr": float(f"{usual_rate:.3g}")}
            return f"{whose} learning rate is 0.", Remedy(advice, "set_group_lr", arguments)
        advice = remedies.of_schedule(run) or "Raise the learning rate, or keep the weights in float32."
        return f"{whose} updates are lost in rounding.", Remedy(advice, "scale_lr", {"factor": 10.0})


@dataclass(frozen=True)
class StaleGradient(Symptom):
    """Gradients are never cleared, so each step uses the sum over all steps so far.

    Attributes:
        share: the share of steps in which gradients were not empty.
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
        # a gradient of 0 is empty whether or not it is cleared, so it says nothing: its layer may have died
        is_zero = run.table(signals.GRADIENT).at(table.steps, table.places) == 0
        table = Table(table.steps, table.places, np.where(is_zero, np.nan, table.values))
        is_bad = table.values == 0
        found = lasting(table, is_bad, self.steps)
        levels = {one.place: self._level(table, one.step, one.place) for one in found}
        found = [one for one in found if levels[one.place] > self.share]
        found = [one for one in found if one.resolved_at is None]
        if not found or len(found) < 0.3 * len(names):
            return
        when = min(found, key=lambda one: one.step)
        is_all = len(found) > 0.8 * len(names)
        layer = None if is_all else run.layer_of(names[when.place])
        level = self._level(table, when.step)
        text = (
            f"In {share(level)} of the observed steps gradients were not empty when backward added to them. "
            "zero_grad() is missing, so every step uses the sum of all gradients so far."
        )
        remedy = Remedy("Call optimizer.zero_grad() before each backward pass.", "zero_grad", {})
        shown = evidence(table, signals.GRADIENT_EMPTY, names[when.place])
        severity = "error" if run.is_stuck or not run.learns else "warning"
        yield self.finding(layer, when.step, when.detected_at, severity, text, remedy, shown, confidence=0.98)

    @staticmethod
    def _level(table: Table, since: int, place: int | None = None) -> float:
        """The share of known steps since this one in which gradients were not empty, of one place or of all."""
        values = table.values[table.steps >= since]
        values = values if place is None else values[:, place]
        return float(np.mean(values[np.isfinite(values)] == 0))


def _ratios(run: RunView) -> Table:
    """The update ratios of weights."""
    return run.table(signals.UPDATE_RATIO).select(run.weights)


LARGE_TARGET = 10.0
"""Targets this far from 0 make the first losses, and gradients, far larger than usual ones."""

MUCH_GROWTH = 2.0
"""Weights this many times their first size were moved by steps that were too large."""


@dataclass(frozen=True)
class StepTooLarge(Symptom):
    """Steps replace what was learned: large updates, or a loss that rises far above where it began.

    Attributes:
        ratio: the largest |update| / |weight| that is fine, as a median over observed steps.
        layers: in which share of the weights.
        replaced: the same for a single weight, which is enough if nothing was learned: such steps overwrite it.
        rise: how many times the first loss a loss must be.
    """

    id: ClassVar[str] = "step_too_large"
    ratio: float = 0.1
    layers: float = 0.5
    replaced: float = 0.25
    rise: float = 1.5

    def look(self, run: RunView) -> Iterable[Finding]:
        """Large updates, or divergence."""
        if goes_uphill(run, self.rise) is not None:
            return  # smaller steps would go the wrong way, too
        table = self._sizes(run)
        middle = nan_median(np.where(table.values > 0, table.values, np.nan)) if table else np.zeros(0)
        large = min(filter(None, (self._large_updates(run, table), self._fast_growth(run))), default=None)
        rising = self._divergence(run, middle)
        if large is None and rising is None:
            return
        known = [one for one in (large, rising) if one is not None]
        step, detected_at = min(known, key=lambda one: one[1])
        level = largest(middle)
        now = run.loss.values[np.isfinite(run.loss.values)]
        has_diverged = rising is not None
        says, at, worst = [], 0, None
        if large is not None:
            size, at = f"more than {part_of(self.ratio)}", large[1]
            if level > self.ratio:
                size, at = part_of(level), int(table.steps[np.nanargmax(middle)])
            worst = self._worst(table, at)
            where = f"; the largest was {part_of(worst[1]).removesuffix(' of')}, of {worst[0]}" if worst else ""
            says.append(f"A step changed weights by {size} their size, at step {at:,}{where}.")
        if has_diverged and len(now):
            first = min(run.first_loss, float(now[0]))
            says.append(f"The loss rose from {short(first)} to {short(float(now.max()))}.")
        severity = "error" if has_diverged else run.harm()
        resolved = None if has_diverged or run.is_stuck else self._end(run, table, detected_at)
        does_harm = severity != "info" and resolved is None  # a run that recovered is not harmed
        says.append(
            "Steps overshoot, so nothing that was learned lasts." if does_harm else "Steps like that may overshoot."
        )
        begin = middle[table.steps >= step] if table else middle
        update = next(iter(begin[np.isfinite(begin)].tolist()), math.nan)  # later ones depend on the first
        remedy = remedies.lower_group_rate(run, worst[0], at) if worst is not None else None
        if remedy is None:
            advice = "Lower the learning rate, warm it up, or clip gradients."
            if run.facts.loss_is_sum:
                advice = f"{advice} The loss is a sum over the batch; gradients of its mean are far smaller."
            targets = remedies.of_targets(run)
            if targets is not None and abs(run.targets[0]) > LARGE_TARGET:
                advice = f"{advice} {targets}"
            remedy = remedies.lower_rate(run, update, advice)
        shown = [points("loss", None, run.loss.steps, run.loss.values)]
        if worst is not None:
            shown.insert(0, evidence(table, signals.UPDATE_RATIO, worst[0], self.ratio))
        elif table:
            shown.insert(0, points(signals.UPDATE_RATIO, None, table.steps, middle, self.ratio))
        yield self.finding(None, step, detected_at, severity, " ".join(says), remedy, *shown, resolved_at=resolved)

    def _worst(self, table: Table, step: int) -> tuple[str, float] | None:
        """The weight that a step changed most, and by how much; None if it is not far beyond the others."""
        row = table.at_steps(np.array([step]))[0]
        if np.isfinite(row).sum() < 3:
            return None
        place = int(np.nanargmax(row))
        is_far_beyond = row[place] > max(self.ratio, 5 * median(row))
        return (table.places[place], float(row[place])) if is_far_beyond else None

    def _sizes(self, run: RunView) -> Table:
        """Update ratios; a weight that is far smaller than usual counts as one of usual size."""
        table = _ratios(run)
        return Table(table.steps, table.places, table.values * self._shares(run, table.places, table.steps))

    def _shares(self, run: RunView, names: Sequence[str], steps: Steps) -> Numbers:
        """How large weights were before these steps, as shares of a small usual one, and 1 at most."""
        table = run.table(signals.WEIGHT)
        if not table or not run.saw_the_start:
            return np.ones((len(steps), len(names)))
        norms = filled(table.at(table.steps, names))[np.maximum(np.searchsorted(table.steps, steps) - 1, 0)]
        shares = norms / [remedies.SMALL_GAIN * remedies.root_of_rows(run, name) for name in names]
        return np.where(np.isfinite(shares), np.minimum(shares, 1.0), 1.0)

    def _end(self, run: RunView, table: Table, detected_at: int) -> int | None:
        """The step since which updates are small again, other than because weights have grown; None if they are not."""
        weights = run.table(signals.WEIGHT).select(run.weights)
        with np.errstate(all="ignore"):  # NaN if norms are not known
            growth = median(
                weights.values[-1:] / weights.values[:1] * self._shares(run, weights.places, weights.steps[:1])
            )
        if not median(nan_median(table.values[-FEWEST:])) < self.ratio or not growth < MUCH_GROWTH:
            return None
        after = np.flatnonzero(self._are_large(run, table) | (table.steps <= detected_at))
        row = int(after[-1]) + 1 if len(after) else 0
        return int(table.steps[row]) if row < len(table.steps) else None

    def _are_large(self, run: RunView, table: Table) -> Mask:
        """In which steps more than half of the weights change that much, or one of a run that is stuck far more."""
        is_bad = table.values > self.ratio
        part = is_bad.sum(axis=1) / np.maximum(np.isfinite(table.values).sum(axis=1), 1)
        found: Mask = part >= self.layers
        return found | (table.values > self.replaced).any(axis=1) if run.is_stuck else found

    def _large_updates(self, run: RunView, table: Table) -> tuple[int, int] | None:
        """When weights began to change that much."""
        if not table:
            return None
        bad = self._are_large(run, table)
        sure = rolling_median(bad[:, None].astype(float))[:, 0] > 0.5
        rows = np.flatnonzero(sure)
        if not len(rows):
            return None
        first = max(0, rows[0] - FEWEST + 1)
        first += int(np.argmax(bad[first : rows[0] + 1]))
        return int(table.steps[first]), int(table.steps[rows[0]])

    def _fast_growth(self, run: RunView) -> tuple[int, int] | None:
        """The same from weight norms, which are also read between observed steps.

        The steps in between moved a weight at least as far as its norm has grown.
        """
        table, ratios_seen = run.table(signals.WEIGHT).select(run.weights), _ratios(run)
        if len(table.steps) < 2 or not table.places:
            return None
        apart = np.diff(table.steps)[:, None]
        with np.errstate(all="ignore"):
            ratios = np.abs(np.diff(table.values, axis=0)) / table.values[:-1] / np.maximum(apart, FEWEST)
        ratios = ratios * self._shares(run, table.places, table.steps[1:])
        part = np.mean(np.where(np.isfinite(ratios), ratios > self.ratio, 0.0), axis=1)
        for row in np.flatnonzero(part >= self.layers).tolist():
            begin, end = int(table.steps[row]), int(table.steps[row + 1])
            observed = ratios_seen.values[(ratios_seen.steps > begin) & (ratios_seen.steps <= end)]
            is_denied = len(observed) >= (end - begin) / 2 and median(observed) < self.ratio / 3
            if not is_denied:  # otherwise something other than the optimizer changed the weights
                return self._beginning(run, begin), end
        return None

    def _beginning(self, run: RunView, last: int) -> int:
        """The first of the large observed steps up to this one, without a break; the next step if there is none."""
        table = self._sizes(run)
        is_large = self._are_large(run, table)[table.steps <= last]
        count = len(is_large) if is_large.all() else int(np.argmin(is_large[::-1]))
        return int(table.steps[len(is_large) - count]) if count else last + 1

    def _divergence(self, run: RunView, middle: Numbers) -> tuple[int, int] | None:
        """When the loss began to rise far, if steps were large or it rose very far."""
        found = risen(run, self.rise)
        strong = largest(middle) > 0.02
        if found is None or not (strong or (found[2] > HUGE and _can_come_from_steps(run, found[0]))):
            return None
        return found[:2]


HUGE = 10.0
"""A loss that has risen to this many times the first one has diverged, however small steps were."""

SAME_WAY, RISES, WINDOW = 0.5, 0.8, 10
"""Gradients with this mean cosine point the same way; a loss that rises from one window of so many steps to the next in
this share of them rises steadily."""


BEYOND_STEPS = 10.0
"""A loss that rises this many times as fast as steps can make it rises for another reason, such as new targets."""


def _can_come_from_steps(run: RunView, since: int) -> bool:
    """Whether steps are large enough to have made the loss rise, or that is not known.

    A step changes the loss by about the product of gradient and update, so at most by that of their norms.
    """
    ratios, norms = _ratios(run), run.table(signals.WEIGHT)
    ratios = ratios.select(name for name in ratios.places if name in norms.places)
    rows = ratios.steps >= since
    steps, losses = ratios.steps[rows], run.loss
    if len(steps) < 2 * FEWEST or not norms:
        return True
    latest = np.maximum(np.searchsorted(norms.steps, steps, "right") - 1, 0)
    updates = ratios.values[rows] * norms.select(ratios.places).values[latest]
    products = run.table(signals.GRADIENT).at(steps, ratios.places) * updates
    most = float(np.nansum(products, axis=1).mean()) * float(steps[-1] - steps[0])
    begin, end = (
        losses.values[np.searchsorted(losses.steps, step, "right") - EARLY :][:EARLY] for step in steps[[0, -1]]
    )
    return not median(end) - median(begin) > BEYOND_STEPS * most


def risen(run: RunView, rise: float) -> tuple[int, int, float] | None:
    """When the loss began to rise, when that was certain, and to how many times the first one, if it stays there."""
    losses, first = run.loss, run.first_loss
    if len(losses) < 10 or not math.isfinite(first):
        return None
    finite = np.isfinite(losses.values)
    values, steps = losses.values[finite], losses.steps[finite]
    if run.facts.optimizers > 1:
        return None
    if len(values) < 10:
        return _burst(run, steps, values, rise)
    smooth = rolling_median(values[:, None], 10)[:, 0]
    noise = 1.4826 * float(np.median(np.abs(values[:20] - first)))
    lowest = np.fmin.accumulate(np.where(np.isfinite(smooth), smooth, np.inf))
    limit = np.maximum(first + max((rise - 1) * abs(first), 8 * noise), 3 * np.where(lowest > 0, lowest, 0))
    rows = np.flatnonzero(smooth > limit)
    if not len(rows) or smooth[-1] <= limit[-1]:
        return None
    detected = rows[0]
    onset = detected - int(np.argmax(values[detected::-1] <= first + max(0.1 * abs(first), 3 * noise)))
    return int(steps[onset]), int(steps[detected]), float(smooth[-1]) / max(abs(first), 1e-12)


def _burst(run: RunView, steps: Steps, values: Numbers, rise: float) -> tuple[int, int, float] | None:
    """The same where the loss was soon not finite any more: it must have grown far before that."""
    first = abs(float(values[0])) if len(values) else math.nan
    is_over = not np.isfinite(run.loss.values[len(values) :]).any()
    if not is_over or not values.max(initial=0.0) > HUGE**2 * first or values.argmax() < len(values) - 1:
        return None
    onset = len(values) - int(np.argmax(values[::-1] <= rise * first))
    return int(steps[onset]), int(steps[-1]), float(values[-1]) / first


def goes_uphill(run: RunView, rise: float) -> tuple[int, int] | None:
    """Since when the loss rises steadily, and when that was certain, if gradients point the same way all along.

    Steps that are too large make gradients turn round instead.
    """
    found, was_empty = risen(run, rise), run.table(signals.GRADIENT_EMPTY)
    if found is None or found[2] < HUGE:
        return None
    values = run.table(signals.GRADIENT_COSINE).select(run.weights)
    each = nan_median(values.values)[values.steps > found[0]]
    smooth = rolling_median(run.loss.values[run.loss.steps >= found[0], None], WINDOW)[WINDOW - 1 :, 0]
    cleared = was_empty.values[was_empty.steps > found[0]] != 0
    each = each[np.isfinite(each)]
    if len(each) < 2 * FEWEST or not cleared.size or not cleared.mean() > 0.5 or len(smooth) < FEWEST:
        return None
    apart = min(WINDOW, len(smooth) - 1)  # neighbours share losses, and differ by the noise of two of them
    is_steady = (smooth[apart:] > smooth[:-apart]).mean() > RISES
    is_sure = is_steady and each.mean() > SAME_WAY and (each > 0).mean() > 0.95
    return found[:2] if is_sure and _can_come_from_steps(run, found[0]) else None


@dataclass(frozen=True)
class NoProgress(Symptom):
    """The loss does not fall: steps are too small, or nothing is learned at all.

    Attributes:
        ratio: the largest |update| / |weight| of steps that are too small.
        cosine: for steps that are too small: how many standard errors the mean cosine of consecutive gradients must be
            above 0.
        plateau: for how many steps a loss must not have fallen if steps are not too small.
        far: how many times the loss of the best constant output a falling loss must still be after `plateau` steps.
        depth: how many times its first size a loss below 0 must be to have no bottom.
        rise: how many times the first loss one must be that rises while gradients keep pointing the same way.
    """

    id: ClassVar[str] = "no_progress"
    ratio: float = 3e-5
    cosine: float = 3.0
    plateau: int = 150
    far: float = 10.0
    depth: float = 1000.0
    rise: float = 1.5

    def look(self, run: RunView) -> Iterable[Finding]:
        """Steps that go the wrong way or are small first, then a loss that is far from useful, flat, or lost."""
        found = self._uphill(run)
        if found is None:
            found = self._bottomless(run)
        if found is None:
            found = self._small_steps(run)
        if found is None:
            found = self._far_off(run)
        if found is None:
            found = self._plateau(run)
        if found is None:
            found = self._lost(run)
        if found is not None:
            yield found

    def _uphill(self, run: RunView) -> Finding | None:
        """Steps make the loss larger, as they would with its sign turned round."""
        found = goes_uphill(run, self.rise)
        if found is None:
            return None
        text = (
            f"The loss rose steadily from {short(run.first_loss)} to {short(run.last_loss)} while gradients kept "
            "pointing the same way. Steps that are too large would make them turn round, so steps go uphill."
        )
        remedy = Remedy(
            "Look for a minus before the loss, a gradient that is turned round, or maximize=True. Otherwise data or "
            "targets change all the time."
        )
        shown = points("loss", None, run.loss.steps, run.loss.values)
        return self.finding(None, *found, "error", text, remedy, shown)

    def _bottomless(self, run: RunView) -> Finding | None:
        """The loss falls below 0 without limit, as one does whose sign is turned round."""
        losses, outputs = run.loss, run.table(signals.OUTPUT)
        if not run.saw_the_start or run.facts.optimizers > 1 or not run.is_long or not outputs:
            return None
        with np.errstate(all="ignore"):
            growth = largest(outputs.values / outputs.values[0])
        smooth = rolling_median(losses.values[:, None], 10)[:, 0]
        limit = -self.depth * float(np.max(np.abs(losses.values[:10])))
        rows = np.flatnonzero(smooth < limit)
        is_sure = (np.diff(smooth[9:]) < 0).mean() > RISES or smooth[-1] < self.depth * limit
        # a reward may rise as far, but then outputs do not: actions have limits
        if not len(rows) or not smooth[-1] < limit or not is_sure or not growth > math.sqrt(self.depth):
            return None
        step = losses.steps[int(np.argmax(losses.values < 0))]
        text = (
            f"The loss fell from {short(run.first_loss)} to {short(run.last_loss)}, while outputs grew to "
            f"{short(growth)} times their size. It has no lowest value, so only larger outputs are learned."
        )
        remedy = Remedy("Look for a minus before the loss, or for a term that only ever wants larger outputs.")
        shown = points("loss", None, losses.steps, losses.values, limit)
        return self.finding(None, step, losses.steps[rows[0]], "error", text, remedy, shown)

    def _small_steps(self, run: RunView) -> Finding | None:
        table = _ratios(run)
        if not table.places or not run.is_fresh(table) or len(table.steps) < FEWEST or not run.saw_the_start:
            return None
        if _is_warming_up(run) or run.learns or len(run.loss) < 10 or run.facts.optimizers > 1:
            return None
        highest = np.where(np.isfinite(table.values), table.values, 0.0).max(axis=1)
        highest[~np.isfinite(table.values).any(axis=1)] = np.inf  # they are not known
        is_small = rolling_median(highest[:, None])[:, 0] < self.ratio
        if not is_small[-1] or np.mean(highest < self.ratio) < 0.5:
            return None  # a rate that decays to 0 at the end is intended
        sure = int(np.flatnonzero(~is_small)[-1]) + 1  # the first rows are never sure
        first = max(sure - FEWEST + 1, 0)
        first += int(np.argmax(highest[first : sure + 1] < self.ratio))
        before = run.loss_before(int(table.steps[first])) if first else run.first_loss
        cosine, error = _mean_cosine(run)
        has_fallen = before - run.last_loss > 0.05 * abs(before)
        limit, part = remedies.clipped_to(run), remedies.clipped_at(run)
        is_clipped = limit is not None or part is not None
        if has_fallen or not (cosine > self.cosine * error or is_clipped):
            return None
        middle = nan_median(table.values)
        level = median(middle[-FEWEST:])
        early = median(middle[first:][FEWEST : 3 * FEWEST])
        update = early if math.isfinite(early) else level
        why = "the learning rate is too low"
        advice = "Raise the learning rate until a step changes weights by 0.1 to 1 % of their size."
        if limit is not None:
            why = f"gradients are clipped to a norm of {short(limit)} in every step, which leaves hardly any step"
            advice = "Clip gradients at a larger norm, or not at all; otherwise raise the learning rate."
        elif part is not None:
            why = f"each element of a gradient is clipped at {short(part)}, which leaves hardly any step"
            advice = "Clip gradients at a larger value, or not at all; otherwise raise the learning rate."
        size = (
            f"changes weights by {short(level)} of their size" if level > 0 else "is too small to change most weights"
        )
        text = (
            f"A step {size}{'' if is_clipped else ', and gradients keep pointing the same way'}. "
            f"The loss is still {share(run.last_loss / before)} of what it was: {why}."
        )
        remedy = remedies.raise_rate(run, update, remedies.of_schedule(run) or advice)
        shown = points(signals.UPDATE_RATIO, None, table.steps, middle, self.ratio)
        severity = "error" if run.is_stuck else "warning"
        return self.finding(None, int(table.steps[first]), int(table.steps[sure]), severity, text, remedy, shown)

    def _plateau(self, run: RunView) -> Finding | None:
        losses = run.loss
        values = losses.values[np.isfinite(losses.values)]
        if len(values) < self.plateau or len(values) < len(losses) or _is_warming_up(run):
            return None
        if not run.is_stuck:
            return None
        recent = values[-max(self.plateau, len(values) // 2) :]
        better = max(0.1 * abs(run.last_loss), _chance(recent) if run.last_loss > run.trivial_loss else 0.0)
        if np.nanmin(rolling_median(values[:, None], 10)) < run.last_loss - better:
            return None  # it was better before, so it can learn
        slope, error = _slope(recent)
        if slope + 2 * error < 0 and slope * len(recent) < -0.02 * abs(float(np.mean(recent))):
            return None  # it falls, if slowly
        against = f", and {short(run.trivial_loss)} for a constant output" if math.isfinite(run.trivial_loss) else ""
        text = (
            f"After {len(values):,} steps the loss is {short(run.last_loss)}; it was {short(run.first_loss)}{against}. "
            "It has stopped falling before anything was learned."
        )
        remedy = self._against_plateau(run)
        shown = points("loss", None, losses.steps, losses.values, None)
        level, spread = float(np.median(recent)), float(np.std(recent))
        first = int(np.argmax(values <= level + spread))  # the median itself is, so there is one
        step, detected = losses.steps[first], losses.steps[min(len(values), first + self.plateau) - 1]
        return self.finding(None, step, detected, "warning", text, remedy, shown, confidence=0.6)

    def _against_plateau(self, run: RunView) -> Remedy:
        """What is known to be unusual, or the usual causes."""
        schedule, target = remedies.of_schedule(run, for_long=True), remedies.of_targets(run)
        own = run.facts.parameters.values()
        frozen = sum(one.size for one in own if not one.trainable) / max(sum(one.size for one in own), 1)
        if frozen > 0.5:
            return Remedy(f"Look whether more should be trained: {share(frozen)} of the model has requires_grad=False.")
        if target is not None and schedule is None:
            return Remedy(target)
        advice = schedule or (
            "Change the learning rate, train on a single batch with monitorch.preflight, check that targets belong to "
            "their inputs and that samples are not mixed, and look at the loss and the last activation."
        )
        update = median(nan_median(_ratios(run).values[-FEWEST:]))
        is_high = update > remedies.LARGE_UPDATE and schedule is None
        return (remedies.lower_rate if is_high else remedies.raise_rate)(run, update, advice)

    def _far_off(self, run: RunView) -> Finding | None:
        """Outputs are still far from where all targets are."""
        losses, limit = run.loss, self.far * run.trivial_loss
        is_plain = run.facts.loss_fn in (*SQUARED, *ABSOLUTE) and run.facts.optimizers == 1
        if not is_plain or len(losses) < self.plateau or not np.isfinite(losses.values).all():
            return None
        if not run.saw_the_start or not np.nanmin(rolling_median(losses.values[:, None], 10)) > limit:
            return None
        mean, std = run.targets
        text = (
            f"After {len(losses):,} steps the loss is {short(run.last_loss)}, and a constant output would give "
            f"{short(run.trivial_loss)}. Targets are about {short(mean)}, give or take {short(std)}, and outputs are "
            "still far from them."
        )
        remedy = Remedy(
            remedies.of_targets(run)
            or "Lower the learning rate or initialise weights smaller: outputs are far larger than targets."
        )
        shown = points("loss", None, losses.steps, losses.values, limit)
        step, detected = losses.steps[0], losses.steps[self.plateau - 1]
        return self.finding(None, step, detected, "warning", text, remedy, shown, confidence=0.6)

    def _lost(self, run: RunView) -> Finding | None:
        """What was learned is gone: the loss is back at that of the best constant output, and stays there."""
        losses, guess = run.loss, run.trivial_loss
        if not run.is_stuck or not math.isfinite(guess) or not np.isfinite(losses.values).all():
            return None
        smooth = rolling_median(losses.values[:, None], 10)[:, 0]
        best = int(np.nanargmin(smooth))
        level = float(smooth[best])
        if not level < 0.5 * guess:
            return None
        is_low = losses.values < (level + guess) / 2
        first = len(is_low) - int(np.argmax(is_low[::-1]))
        if len(losses) - first < SHORT:
            return None
        text = (
            f"The loss was {short(level)} at step {int(losses.steps[best]):,}, and is {short(run.last_loss)} now; a "
            f"constant output would give {short(guess)}. Nothing is left of what was learned."
        )
        shown = points("loss", None, losses.steps, losses.values, guess)
        step, detected = losses.steps[first], losses.steps[first + SHORT - 1]
        remedy = remedies.SOMETHING_CHANGED
        return self.finding(None, step, detected, run.harm(), text, remedy, shown, confidence=0.6)


def _mean_cosine(run: RunView, steps: int | None = None) -> tuple[float, float]:
    """The mean cosine of consecutive gradients, over all weights and the first of these steps, and its error."""
    values = run.table(signals.GRADIENT_COSINE).select(run.weights).values[1:steps]  # the first has nothing before it
    known = np.isfinite(values)
    each = (np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))[known.any(axis=1)]
    if len(each) < FEWEST - 1:
        return math.nan, math.nan
    return float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each)))


def _is_warming_up(run: RunView) -> bool:
    """Whether learning rates still rise, so that small steps may be intended."""
    highest = run.highest_rates
    if len(highest) < 3:
        return False
    return bool(highest[-1] > 1.05 * highest[max(0, len(highest) // 2)])


def _chance(values: Numbers) -> float:
    """How far below its mean the lowest median of ten losses may be by chance; trends do not count as noise."""
    spread = 1.4826 * median(np.abs(np.diff(values))) / math.sqrt(2)
    return 4 * 1.25 * spread / math.sqrt(10)  # 1.25: medians have more noise than means


def _slope(values: Numbers) -> tuple[float, float]:
    """The slope of a line through numbers, per step, and its standard error."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float((x * values).sum() / (x**2).sum())
    rest = values - values.mean() - slope * x
    return slope, float(math.sqrt((rest**2).sum() / max(len(values) - 2, 1) / (x**2).sum()))


@dataclass(frozen=True)
class Oscillation(Symptom):
    """Each step undoes the one before: gradients keep reversing direction.

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
        known = np.isfinite(table.values)
        highest = np.where(known, table.values, -1.0).max(axis=1)
        highest[~known.any(axis=1)] = np.nan  # gradients that are not finite have no direction
        sure = rolling_median(highest[:, None])[:, 0] < self.cosine
        rows = np.flatnonzero(sure)
        if not len(rows):
            return
        detected = int(table.steps[rows[0]])
        after = run.loss.values[run.loss.steps >= table.steps[max(0, rows[0] - FEWEST + 1)]]
        up = float(np.mean(np.diff(after) > 0)) if len(after) > 5 else 0.0
        if up < self.rises:
            return
        level = median(table.values[max(0, rows[-1] - FEWEST + 1) : rows[-1] + 1])
        resolved = None if sure[-1] else int(table.steps[min(rows[-1] + 1, len(table.steps) - 1)])
        text = (
            f"Consecutive gradients point in opposite directions (cosine {short(level)}), and the loss rises in "
            f"{share(up)} of the steps. The learning rate is at the edge of stability."
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
        shrunk: the largest norm of a weight, as a share of its first one.
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
        detected = int(table.steps[rows[0]])
        step = min(int(table.steps[began]) + 1, detected)  # until then they had not shrunk
        text = (
            f"Weights have shrunk to {share(level)} of their first norm, {table.places[worst]} most of all. "
            "Weight decay outweighs the gradients, so the model forgets what it learns."
        )
        remedy = Remedy("Lower the weight decay.", "scale_weight_decay", {"factor": 0.01})
        shown = points(signals.WEIGHT, table.places[worst], table.steps, table.values[:, worst])
        yield self.finding(None, step, detected, run.harm(), text, remedy, shown)


@dataclass(frozen=True)
class NoisyGradient(Symptom):
    """Gradients of consecutive steps have nothing in common: batches are too small.

    Attributes:
        cosine: the largest mean cosine, give or take two standard errors.
        batch: the largest batch for which that is a problem by itself.
        steps: a warning if nothing was learned in this many steps.
    """

    id: ClassVar[str] = "gradient_noise"
    needs: ClassVar[tuple[str, ...]] = (signals.GRADIENT_COSINE,)
    needs_start: ClassVar[bool] = True
    cosine: float = 0.1
    batch: float = 4
    steps: int = 150

    def look(self, run: RunView) -> Iterable[Finding]:
        """In all layers, early, with small batches, while little is learned."""
        table = run.table(signals.GRADIENT_COSINE).select(run.weights)
        if len(table.steps) < 2 * FEWEST or not run.is_long or run.facts.batch is None:
            return
        level, error = _mean_cosine(run, 4 * FEWEST)
        if run.facts.batch > self.batch or not abs(level) <= self.cosine + 2 * error:
            return
        text = (
            f"Gradients of consecutive steps have a cosine of {short(level)} on average, with batches of "
            f"{run.facts.batch:g}. Most of each step is noise."
        )
        remedy = Remedy(
            "Use larger batches, accumulate gradients, or lower the learning rate.", "scale_lr", {"factor": 0.1}
        )
        shown = points(signals.GRADIENT_COSINE, None, table.steps, nan_median(table.values), self.cosine)
        severity = "warning" if run.is_stuck and len(run.loss) >= self.steps else "info"
        detected = max(int(table.steps[2 * FEWEST - 1]), int(run.loss.steps[SHORT - 1]))
        yield self.finding(None, int(table.steps[0]), detected, severity, text, remedy, shown, confidence=0.5)
