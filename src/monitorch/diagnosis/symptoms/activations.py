"""What goes wrong in forward passes: dead and saturated units, signals that grow or collapse, units that are alike."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...store.types import layer_text
from .. import remedies, signals
from ..finding import Finding, Remedy
from ..history import Table
from ..run import FEWEST, RunView, median, nan_median
from .base import Stretch, Symptom, during, evidence, lasting, others, share, short, stretches

LAYER_NORMS = ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")
"""What the classes of layers that rescale what they get are called."""


def first_in_order(found: list[Stretch], table: Table, run: RunView) -> list[Stretch]:
    """Open ones first, then by position in the model, then by time; later ones may be consequences of the first."""
    return sorted(found, key=lambda one: (one.resolved_at is not None, run.place(table.places[one.place]), one.step))


@dataclass(frozen=True)
class DeadUnits(Symptom):
    """Most units of a layer output 0 for each of several hundred samples.

    Attributes:
        share: the share of units that must be dead.
        nearly_all: the share that is a warning even if the run learns.
    """

    id: ClassVar[str] = "dead_units"
    needs: ClassVar[tuple[str, ...]] = (signals.DEATH,)
    share: float = 0.5
    nearly_all: float = 0.99

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first layer that is dead; those after it follow."""
        table = run.table(signals.DEATH)
        is_bad = table.values > self.share  # each sample is a window of many batches
        found = first_in_order(stretches(table.steps, table.values, is_bad, is_bad), table, run)
        if not found or _same_inputs(run) is not None:  # of inputs that are the same, any unit may give 0 for all
            return
        first, layers = found[0], [table.places[one.place] for one in found if one.resolved_at is None]
        layer, level = table.places[first.place], float(during(table, first)[-1])
        began = self._beginning(run, table, first)
        zeros = run.table(signals.ZEROS)
        since_birth = bool(zeros) and began <= zeros.steps[0]
        remedy = self._remedy(run, began, layer, since_birth)
        text = (
            f"{share(level)} of the units of {layer_text(layer)} output 0 for every sample{others(layers)}. "
            "No gradient passes through them, so the weights before them stop learning."
        )
        severity = run.harm("warning" if level > self.nearly_all else "info", table)
        shown = evidence(table, signals.DEATH, layer, self.share)
        yield self.finding(
            layer, began, first.detected_at, severity, text, remedy, shown, resolved_at=first.resolved_at
        )

    def _remedy(self, run: RunView, began: int, layer: str, since_birth: bool) -> Remedy:
        """Units killed by large steps would die again; those dead from the start need new weights."""
        sources = remedies.feeding(run, layer)
        lets_through = run.facts.layers.get(layer) in remedies.LEAKY
        if not since_birth and remedies.were_large(run, began, sources):
            other = "" if lets_through else ", or use LeakyReLU or GELU"
            return Remedy(f"Lower the learning rate{other}.", "scale_lr", {"factor": 0.1})
        # an activation that is called as a function has the name of the layer before it
        what = f"what {'comes out of' if layer in sources else 'enters'} {layer_text(layer)}"
        recover = "" if lets_through else " LeakyReLU or GELU would let it recover."
        return Remedy(
            f"Initialise {' and '.join(map(layer_text, sources))} again: {what} is never above 0.{recover}",
            "reinit",
            {"layers": sources},
        )

    def _beginning(self, run: RunView, table: Table, found: Stretch) -> int:
        """Since when so many outputs were 0, before a window of many batches told that it is the same units.

        Half of the outputs of a healthy ReLU are 0 as well, so at least as many outputs must be 0 as units were found
        dead. If as many were 0 while the units lived, zeros say nothing.
        """
        zeros, layer = run.table(signals.ZEROS), table.places[found.place]
        if layer not in zeros.places:
            return found.step
        deaths = table.column(layer)
        dead = deaths[table.steps == found.detected_at][0]
        lived = table.steps[(deaths <= self.share) & (table.steps < found.detected_at)]
        before = zeros.steps <= found.step
        steps, values = zeros.steps[before], zeros.column(layer)[before]
        is_alive = values < 0.99 * dead
        if len(lived) and median(values[steps <= lived[-1]]) >= 0.99 * dead:
            is_alive = steps <= lived[-1]
        alive = np.flatnonzero(is_alive)
        first = int(alive[-1]) + 1 if len(alive) else 0
        return int(steps[first]) if first < len(steps) else found.step


@dataclass(frozen=True)
class SaturatedActivation(Symptom):
    """Most outputs of a hidden activation are at its bounds, where its slope is near 0.

    Attributes:
        share: the share of outputs that must be at the bounds.
        at_birth: the share in the first steps that is a warning even if the run learns.
    """

    id: ClassVar[str] = "saturated_activation"
    needs: ClassVar[tuple[str, ...]] = (signals.SATURATION,)
    share: float = 0.5
    at_birth: float = 0.8

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first hidden layer that is saturated; outputs of the model may be."""
        table = run.table(signals.SATURATION)
        hidden = [place for place in table.places if not _is_last(run, place)]
        table = table.select(hidden)
        found = first_in_order(lasting(table, table.values > self.share), table, run)
        if not found:
            return
        first = found[0]
        layer = table.places[first.place]
        layers = [table.places[one.place] for one in found if one.resolved_at is None]
        values = table.column(layer)
        known = values[np.isfinite(values)]
        level = median(during(table, first))
        is_born = run.saw_the_start and median(known[:FEWEST]) > self.at_birth
        text = (
            f"{share(level)} of the outputs of {layer_text(layer)} are at the bounds of its "
            f"activation{others(layers)}. Its slope is near 0 there, so gradients before it nearly vanish."
        )
        remedy = self._remedy(run, first.step, layers or [layer], is_born)
        shown = evidence(table, signals.SATURATION, layer, self.share)
        severity = run.harm("warning" if is_born else "info", table)
        yield self.finding(
            layer, first.step, first.detected_at, severity, text, remedy, shown, resolved_at=first.resolved_at
        )

    def _remedy(self, run: RunView, began: int, layers: list[str], is_born: bool) -> Remedy:
        """New weights if they are too large, other activations if not, or smaller steps if steps caused it."""
        if not is_born and remedies.were_large(run, began):
            return Remedy("Lower the learning rate, or normalise what enters the layer.", "scale_lr", {"factor": 0.1})
        sizes = remedies.gains(run, at_first=is_born)
        large = [name for name, gain in sizes.items() if gain > remedies.LARGE_GAIN]
        sources = list(dict.fromkeys(name for layer in layers for name in remedies.feeding(run, layer)))
        modules = [layer for layer in layers if run.facts.layers.get(layer) in remedies.SQUASHERS]
        if set(large) & set(sources) or not sizes or not modules:
            text = "Initialise the weights before it smaller, normalise what enters it, or use ReLU."
            return Remedy(text, "reinit", {"layers": large or sources})
        text = "Use ELU, GELU or ReLU, or normalise what enters the layer."
        return Remedy(text, "replace_activation", {"layers": modules, "by": remedies.SAFE_ACTIVATION})


def _is_last(run: RunView, layer: str) -> bool:
    """Whether no layer with weights comes after it: then it makes the output of the model."""
    place = run.place(layer)
    return all(run.place(own.layer) <= place for own in run.facts.parameters.values() if own.is_weight)


@dataclass(frozen=True)
class ExplodingSignal(Symptom):
    """Outputs grow from layer to layer in the first steps.

    Attributes:
        growth: how many times as large as what enters the model the output of a layer must be.
        large_weights: the same factor if most weights are larger than any usual initialisation makes them.
        per_layer: how much a single layer must add to be named.
        small_input: biases outweigh smaller inputs, so that outputs are compared with those of the first layer.
    """

    id: ClassVar[str] = "exploding_signal"
    needs: ClassVar[tuple[str, ...]] = (signals.OUTPUT,)
    needs_start: ClassVar[bool] = True
    growth: float = 100.0
    large_weights: float = 30.0
    per_layer: float = 3.0
    small_input: float = 0.1

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first layer that adds much to a signal which explodes."""
        table = run.table(signals.OUTPUT)
        ordered = sorted(table.places, key=run.place)
        table = table.select(ordered)
        scale = table.values[0].copy()  # a few steps later they may have shrunk
        known = np.flatnonzero(np.isfinite(scale) & (scale > 0))
        if not len(known):
            return
        scale[known[-1]] = self._without_bias(run, ordered[known[-1]], float(scale[known[-1]]))
        before = self._input_scale(run)
        levels = np.concatenate([[before], scale[known]]) if before is not None else scale[known]
        names = [*([None] if before is not None else []), *(ordered[place] for place in known)]
        if len(levels) < 2 or self._came_later(run, int(table.steps[0])):
            return
        sizes = list(remedies.gains(run).values())
        are_large = bool(sizes) and float(np.median(sizes)) > remedies.LARGE_GAIN
        if levels.max() / levels[0] <= (self.large_weights if are_large else self.growth):
            return
        ratios = levels[1:] / levels[:-1]
        bad = np.flatnonzero((ratios > self.per_layer) & (levels[1:] > levels[0] * self.per_layer))
        place = int(bad[0]) + 1 if len(bad) else int(np.argmax(levels / levels[0] > self.growth))
        layer, top = names[place], names[int(np.argmax(levels))]
        factor, start = float(levels.max() / levels[0]), "the first layer" if before is None else "the input"
        text = (
            f"Outputs grow {short(factor)} times from {start} to {layer_text(top)}, and {layer_text(layer)} is "
            "the first to add much. Weights are initialised too large, so losses and gradients start far too large as "
            "well."
        )
        step = int(table.steps[0])
        severity = run.harm("warning")
        shown = evidence(table, signals.OUTPUT, str(top))
        yield self.finding(layer, step, step, severity, text, self._remedy(run), shown)

    def _without_bias(self, run: RunView, layer: str, size: float) -> float:
        """The size of the last outputs without the bias, which may be the mean of the targets."""
        name = f"{layer}.bias"
        biases = run.table(signals.WEIGHT).select([name]).values
        known = biases[np.isfinite(biases)]
        if not len(known) or name not in run.facts.parameters:
            return size
        return float(np.sqrt(max(size**2 - known[0] ** 2 / run.size(name), 0.0)))

    def _remedy(self, run: RunView) -> Remedy:
        """Reinitialise weights that are too large; if none is, replace unknown activations, else shrink all weights."""
        sizes = remedies.gains(run)
        large = [name for name, gain in sizes.items() if gain > remedies.LARGE_GAIN]
        usual = (*remedies.RECTIFIERS, *remedies.SQUASHERS)
        odd = [name for name, kind in remedies.hidden_activations(run).items() if kind not in usual]
        if sizes and not large and odd:
            text = "Weights have a usual size, so use activations that do not grow faster than what they get."
            return Remedy(text, "replace_activation", {"layers": odd, "by": remedies.SAFE_ACTIVATION})
        text = "Initialise weights smaller (He or Xavier), or normalise between layers."
        if large or not sizes:
            return Remedy(text, "reinit", {"layers": large or [run.layer_of(name) or name for name in run.weights]})
        return Remedy(text, "reinit", {"layers": list(sizes), "gain": 0.5})

    def _came_later(self, run: RunView, observed: int) -> bool:
        """Whether unobserved first steps may have caused it: the weights have grown since the start."""
        weights = run.table(signals.WEIGHT).select(run.weights)
        soon = weights.steps <= observed
        if observed <= FEWEST or soon.sum() < 2:
            return False
        with np.errstate(all="ignore"):
            growth = weights.values[soon][-1] / weights.values[0]
        return bool(nan_median(growth[None])[0] > 1.5)

    def _input_scale(self, run: RunView) -> float | None:
        """The root mean square of what enters the model; None if that is integers, very small, or not known."""
        mean, std = run.table(signals.INPUT_MEAN), run.table(signals.INPUT_STD)
        if not mean or not std:
            return None
        found = float(np.sqrt(mean.values[0, 0] ** 2 + std.values[0, 0] ** 2))
        return found if np.isfinite(found) and found > self.small_input else None


@dataclass(frozen=True)
class SymmetricUnits(Symptom):
    """All units of a layer have the same weights and get the same gradients, so they stay the same.

    Attributes:
        spread: the largest standard deviation over units, relative to the numbers themselves.
    """

    id: ClassVar[str] = "symmetric_units"
    needs: ClassVar[tuple[str, ...]] = (signals.WEIGHT_ALIKE, signals.GRADIENT_ALIKE)
    needs_start: ClassVar[bool] = True
    spread: float = 0.05

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first layer whose units are alike."""
        weights, gradients = run.table(signals.WEIGHT_ALIKE), run.table(signals.GRADIENT_ALIKE)
        names = [name for name in run.weights if name in weights.places and name in gradients.places]
        alike = [
            name for name in names if weights.column(name)[0] < self.spread and gradients.column(name)[0] < self.spread
        ]
        if not alike:
            return
        layers = list(dict.fromkeys(run.layer_of(name) or name for name in alike))
        text = (
            f"All units of {layer_text(layers[0])} start with the same weights and get the same "
            f"gradients{others(layers)}. They will always compute the same, as if the layer had one unit."
        )
        # weights that are alike get different gradients where what comes after them is not alike
        same = [name for name in names if weights.column(name)[0] < self.spread]
        meant = list(dict.fromkeys(run.layer_of(name) or name for name in (*alike, *same)))
        remedy = Remedy("Initialise the weights at random.", "reinit", {"layers": sorted(meant, key=run.place)})
        step = int(weights.steps[0])
        shown = evidence(gradients, signals.GRADIENT_ALIKE, alike[0], self.spread)
        yield self.finding(layers[0], step, step, "warning" if run.learns else "error", text, remedy, shown)


SAME = 1e-6
"""Outputs that differ by less than this share of their size differ by rounding."""


def _batch_spreads(run: RunView) -> Table:
    """How much the outputs of each layer differ over the batch, in the order of the model."""
    table = run.table(signals.LAYER_BATCH_SPREAD)
    return table.select(sorted(table.places, key=run.place))


def _same_inputs(run: RunView) -> Stretch | None:
    """Since when the first and the last layer give exactly the same for all samples; None if they do not."""
    table = _batch_spreads(run)
    if len(table.places) < 2:
        return None
    ends = table.select([table.places[0], table.places[-1]])
    is_same = (ends.values < SAME).all(axis=1, keepdims=True)
    found = [one for one in lasting(ends, is_same & np.isfinite(ends.values)) if one.resolved_at is None]
    weighs = remedies.gains(run, at_first=False).get(table.places[0], 1.0) > SAME  # or its weights make them the same
    return found[0] if len(found) == 2 and weighs else None


@dataclass(frozen=True)
class RankCollapse(Symptom):
    """The last hidden layer gives nearly the same output for every sample, while the first does not.

    Attributes:
        spread: the largest difference of outputs over the batch, relative to their size.
        share: the same relative to the first layer.
    """

    id: ClassVar[str] = "rank_collapse"
    needs: ClassVar[tuple[str, ...]] = (signals.LAYER_BATCH_SPREAD,)
    spread: float = 0.02
    share: float = 0.1

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first layer that gives the same for all."""
        table = _batch_spreads(run)
        if len(table.places) < 2:
            return
        first = table.values[:, :1]
        found = lasting(table, (table.values < self.spread) & (table.values < self.share * first))
        is_last = [one for one in found if one.place == len(table.places) - 1]
        if not is_last:
            yield from self._same_inputs(run, table)
            return
        earliest = min(found, key=lambda one: one.place)
        layer, last = table.places[earliest.place] or None, table.places[-1]
        when = is_last[0]
        level = median(during(table, when))
        where = "" if layer == last else f", and they collapse in {layer_text(layer) if layer else 'its last layers'}"
        text = (
            f"The outputs of {layer_text(last)} differ by {share(level)} of their size "
            f"between samples{where}. Later layers cannot tell samples apart."
        )
        remedy = remedies.let_through(run)
        shown = evidence(table, signals.LAYER_BATCH_SPREAD, last, self.spread)
        yield self.finding(
            layer, when.step, when.detected_at, run.harm(seen=table), text, remedy, shown, resolved_at=when.resolved_at
        )

    def _same_inputs(self, run: RunView, table: Table) -> Iterable[Finding]:
        """Already the first layer gives exactly the same for all, and so does the last: inputs are the same."""
        when, layer = _same_inputs(run), table.places[0]
        if when is None or not run.is_stuck:
            return
        text = (
            f"The outputs of the first layer, {layer_text(layer)}, are the same for every sample of a batch, and so "
            f"are those of {layer_text(table.places[-1])}. The model cannot tell samples apart."
        )
        remedy = Remedy("Look at what the model gets: every sample of a batch looks the same to it.")
        shown = evidence(table, signals.LAYER_BATCH_SPREAD, layer, SAME)
        yield self.finding(layer, when.step, when.detected_at, run.harm(seen=table), text, remedy, shown)


@dataclass(frozen=True)
class AttentionCollapse(Symptom):
    """Attention looks at one place only, or its logits grow without bound.

    Attributes:
        entropy: the entropy below which attention has collapsed, as a share of that of uniform attention.
        logit: the largest logit that is fine.
    """

    id: ClassVar[str] = "attention_collapse"
    needs: ClassVar[tuple[str, ...]] = (signals.ATTENTION_ENTROPY,)
    entropy: float = 0.15
    logit: float = 50.0

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first attention layer that has collapsed."""
        entropy, logit = run.table(signals.ATTENTION_ENTROPY), run.table(signals.ATTENTION_LOGIT)
        alone = self._without_choice(run, entropy, logit)
        if alone is not None:
            yield alone
            return
        found = [(one, entropy, signals.ATTENTION_ENTROPY) for one in lasting(entropy, entropy.values < self.entropy)]
        if logit:
            grows = logit.values > 2 * nan_median(logit.values[:FEWEST].T)
            is_large = (logit.values > self.logit) & grows
            found += [(one, logit, signals.ATTENTION_LOGIT) for one in lasting(logit, is_large)]
        found = [one for one in found if one[0].resolved_at is None] or found
        if not found:
            return
        when, table, signal = min(found, key=lambda one: (one[0].step, run.place(one[1].places[one[0].place])))
        layer = table.places[when.place]
        level = median(during(table, when))
        what = "entropy of attention" if table is entropy else "largest logit of attention"
        text = (
            f"The {what} in {layer_text(layer)} is {short(level)} (the limit is "
            f"{self.entropy if table is entropy else self.logit:g}). Each query looks at a single key, so little "
            "gradient reaches queries and keys."
        )
        remedy = Remedy("Normalise queries and keys, or lower the learning rate.", "scale_lr", {"factor": 0.3})
        if when.step <= table.steps[0]:
            remedy = Remedy("Initialise queries and keys smaller, or normalise them.", "reinit", {"layers": [layer]})
        shown = evidence(table, signal, layer, self.entropy if table is entropy else self.logit)
        yield self.finding(
            layer, when.step, when.detected_at, run.harm(seen=table), text, remedy, shown, resolved_at=when.resolved_at
        )

    def _without_choice(self, run: RunView, entropy: Table, logit: Table) -> Finding | None:
        """Of attention over a single key there are logits, but no entropy."""
        is_alone = np.isfinite(logit.values) & ~np.isfinite(entropy.at(logit.steps, logit.places))
        always = (is_alone | ~np.isfinite(logit.values)).all(axis=0)  # short sequences come now and then
        found = [one for one in lasting(logit, is_alone & always) if one.resolved_at is None]
        found = first_in_order(found, logit, run)
        if not found:
            return None
        when, layers = found[0], [logit.places[one.place] for one in found]
        text = (
            f"Each query in {layer_text(layers[0])} has a single key that it may look at{others(layers)}: the mask "
            "hides all others, or there are none. So it makes no difference what queries and keys are, and they get no "
            "gradient."
        )
        remedy = Remedy("Look at the attention mask: in some functions true means look, in others it means hide.")
        shown = evidence(logit, signals.ATTENTION_LOGIT, layers[0])
        return self.finding(
            layers[0], when.step, when.detected_at, run.harm(seen=logit), text, remedy, shown, confidence=0.95
        )


@dataclass(frozen=True)
class ExpertCollapse(Symptom):
    """Half of the experts of a layer get hardly any tokens.

    Attributes:
        share: the share of tokens that the least used half must get.
    """

    id: ClassVar[str] = "expert_collapse"
    needs: ClassVar[tuple[str, ...]] = (signals.EXPERT_SHARE,)
    share: float = 0.05

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first layer of experts that is uneven."""
        table = run.table(signals.EXPERT_SHARE)
        found = first_in_order(lasting(table, table.values < self.share), table, run)
        if not found:
            return
        when, layer = found[0], table.places[found[0].place]
        level = median(during(table, when))
        text = (
            f"The less used half of the experts of {layer_text(layer)} gets {share(level)} of the tokens. "
            "They learn nothing, and the others do all the work."
        )
        remedy = Remedy(
            "Add or raise a loss that balances the load, or initialise the router again.", "reinit", {"layers": [layer]}
        )
        shown = evidence(table, signals.EXPERT_SHARE, layer, self.share)
        yield self.finding(
            layer, when.step, when.detected_at, "warning", text, remedy, shown, resolved_at=when.resolved_at
        )
