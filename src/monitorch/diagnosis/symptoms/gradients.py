"""What goes wrong in backward passes: gradients that vanish, are missing, underflow, or are not finite."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...store.types import layer_text
from .. import remedies, signals
from ..finding import Finding, Remedy
from ..history import Mask, Numbers, Table
from ..run import FEWEST, RunView, largest, median, nan_median
from .base import Stretch, Symptom, during, evidence, in_a_row, lasting, points, short, stretches, together

SMALLEST_HALF = 2.0**-24
"""The smallest number above 0 in float16."""

RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
"""Modules with a state that is 0 at first."""


@dataclass(frozen=True)
class NotFinite(Symptom):
    """A number was NaN or infinite; the finding names the first such tensor."""

    id: ClassVar[str] = "nonfinite"

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first tensor, or at least the first loss."""
        origin, losses = run.facts.origin, run.loss
        broken = np.flatnonzero(~np.isfinite(losses.values))
        lately = ~np.isfinite(losses.values[-FEWEST:])
        if origin is None and (not lately.any() or lately.mean() < 0.5):
            return  # the step of a single one may be skipped, as a GradScaler does
        first_loss = int(losses.steps[broken[0]]) if len(broken) else run.step
        if origin is not None and len(broken) and lately.all() and first_loss < int(origin["step"]):
            origin = None  # it came from a step that was not observed, and everything is NaN since
        step = first_loss if origin is None else int(origin["step"])
        layer = None if origin is None else self._culprit(run, origin)
        what = "The loss is not finite." if origin is None else f"{origin['text'].rstrip('.')}."
        if origin is None and run.facts.origin is not None:
            what = f"The loss is not finite since step {step:,}; that step was not observed, so the layer is not known."
        earlier = run.validation.steps[~np.isfinite(run.validation.values)]
        if origin is None and len(earlier) and earlier[0] < step:
            what += f" An evaluation was not finite before, at step {int(earlier[0]):,}."
        text = f"{what[0].upper()}{what[1:]} Everything computed from it, including the weights, is lost."
        is_input = origin is not None and origin["what"] == "input"
        own = run.facts.parameters.get(f"{origin['layer']}.{origin.get('parameter')}") if origin is not None else None
        is_half_step = origin is not None and origin["what"] == "update" and own is not None and own.dtype == "float16"
        remedy = (
            Remedy("Look at this batch: it has numbers that are not finite.")
            if is_input
            else Remedy(
                "Keep weights in float32, and compute in half precision with autocast: in float16 the eps of Adam is 0."
            )
            if is_half_step
            else Remedy(
                f"Look {self._where(run, origin)} for a division, logarithm or root of 0; otherwise lower the "
                "learning rate and clip gradients.",
                "clip",
                {"max_norm": 1.0},
            )
        )
        shown = points("loss", None, losses.steps, losses.values)
        yield self.finding(layer, step, step, "error", text, remedy, shown, confidence=1.0)

    def _where(self, run: RunView, origin: Mapping[str, Any] | None) -> str:
        """Where to look: between two layers without a module there, code of a function is to blame."""
        if origin is None:
            return "at the data for numbers that are not finite, and in the model and in the loss"
        sides = sorted(origin.get("between") or (), key=run.place)
        if origin["where"] == "backward" and origin["what"] == "output gradient" and not sides:
            return f"after {layer_text(str(origin['layer']))}, in the loss and in what comes before it,"
        if len(sides) == 2 and run.place(sides[1]) - run.place(sides[0]) == 1:
            return f"between {layer_text(sides[0])} and {layer_text(sides[1])}, and in both,"
        return "at this layer"

    def _culprit(self, run: RunView, origin: Mapping[str, Any]) -> str | None:
        """Where it happened: of two neighbours, the one whose backward produced the other's gradient.

        A module that is not measured itself is named if it is the only one between two that are.
        """
        sides = origin.get("between") or ()
        ends = sorted(run.place(name) for name in sides)
        inside = list(run.facts.layers)[ends[0] + 1 : ends[1]] if ends else []
        if sides and not inside and origin["where"] == "backward":
            return str(sides[0])
        return inside[0] if len(inside) == 1 else str(origin["layer"]) or None


CLEARED_TOO_LATE = "Call zero_grad() before backward(), not between backward() and step()."

NEARLY_ZERO = 1e-30
"""Gradients smaller than this may underflow to 0 in the next layer."""


GROWN = 3.0
"""A gradient that has become this many times as large grows."""


def _gradients(run: RunView) -> Table:
    """The gradient norms of weights, in the order of the model."""
    return run.table(signals.GRADIENT).select(run.weights)


def _have_faded(table: Table) -> Mask:
    """Where a gradient is 0 because it faded on its way back: the last non-zero one is nearly 0.

    Before a cut the gradient is 0 as well, but after the cut it has a normal size.
    """
    found = np.zeros(table.values.shape, bool)
    for place in range(len(table.places) - 2, -1, -1):
        after = table.values[:, place + 1]
        is_next = (after > 0) & (after < NEARLY_ZERO)
        found[:, place] = (table.values[:, place] == 0) & (is_next | found[:, place + 1])
    return found


@dataclass(frozen=True)
class VanishingGradient(Symptom):
    """Gradients shrink from the output to the input until almost nothing is left.

    Attributes:
        ratio: the gradient of the first weight over that of the last, at most.
    """

    id: ClassVar[str] = "vanishing_gradient"
    needs: ClassVar[tuple[str, ...]] = (signals.GRADIENT,)
    ratio: float = 1e-3

    def look(self, run: RunView) -> Iterable[Finding]:
        """Going back from the output, the first weight whose gradient is that small."""
        table = _gradients(run)
        if len(table.places) < 3:
            return
        with np.errstate(all="ignore"):
            ratios = table.values / table.values[:, -1:]
        ratios[~np.isfinite(ratios)] = np.nan
        relative = Table(table.steps, table.places, ratios)
        is_told = (table.values > 0) | _have_faded(table)
        is_bad, still_bad = ((ratios < limit) & is_told for limit in (self.ratio, 10 * self.ratio))
        found = {one.place: one for one in lasting(relative, is_bad, still_bad=still_bad)}
        first = found.get(0)
        if first is None or self._opens(run, ratios[:, 0]):
            return
        steepest = nan_median(ratios[-FEWEST:].T)
        level = median(during(Table(table.steps, table.places, np.where(is_bad, ratios, np.nan)), first))
        nearest = max((place for place in found if np.isfinite(steepest[place])), default=0)
        layer = run.layer_of(table.places[nearest])
        if run.fallen > 0.5 if math.isfinite(run.fallen) else run.learns:
            return
        last, limit = table.places[-1], short(self.ratio)
        size = (
            f"{short(level)} times that of {last}; it falls below {limit}"
            if level > 0
            else f"too small to distinguish from 0; it falls below {limit} of that of {last}"
        )
        text = (
            f"The gradient of {table.places[0]} is {size} in {layer_text(layer)}. "
            "The first layers hardly learn, and the loss has not halved yet."
        )
        shown = evidence(relative, "gradient relative to the last layer", table.places[0], self.ratio)
        yield self.finding(
            layer,
            first.step,
            first.detected_at,
            run.harm(seen=table),
            text,
            remedies.let_through(run),
            shown,
            resolved_at=first.resolved_at,
        )

    def _opens(self, run: RunView, ratios: Numbers) -> bool:
        """Whether gradients grow from nothing because a weight after them began at 0, as in LoRA."""
        known = ratios[ratios > 0]
        is_growing = len(known) > FEWEST and median(known[-FEWEST:]) > GROWN * median(known[:FEWEST])
        return is_growing and 0.0 in remedies.gains_of_weights(run).values()


@dataclass(frozen=True)
class NoGradient(Symptom):
    """A parameter that should learn gets no gradient, or one that is exactly 0, although its layer runs.

    Attributes:
        steps: for how many observed steps.
    """

    id: ClassVar[str] = "no_gradient"
    needs: ClassVar[tuple[str, ...]] = (signals.GRADIENT,)
    steps: int = FEWEST

    def is_possible(self, run: RunView) -> bool:
        """Whether there are gradients, or at least checksums that tell that nothing is trained."""
        return super().is_possible(run) or run.has(signals.CHANGED)

    def look(self, run: RunView) -> Iterable[Finding]:
        """Among the layers that lost their gradient first, the one nearest to the output."""
        table = run.table(signals.GRADIENT)
        if not table:
            yield from self._none_at_all(run)
            return
        told = ~np.isin(table.steps, run.loss.steps[run.loss.values == 0])  # then nothing is left to learn
        table = Table(table.steps[told], table.places, table.values[told])
        if len(table.steps) < self.steps:
            return
        names = self._expected(run, table)
        is_bad = self._are_starved(run, table, names) & ~self._are_faded(run, names)[told]
        found = stretches(table.steps, np.where(is_bad, 0.0, 1.0), is_bad, in_a_row(is_bad, self.steps))
        found = [one for one in found if one.resolved_at is None]
        # if all lack gradients only now and then, the loss was 0
        is_all = bool(found) and (bool(is_bad[-self.steps :].all()) or len(found) == len(names))
        if not is_all:  # a bias before a normalisation, for instance: nothing is lost
            found = [one for one in found if run.facts.parameters[names[one.place]].is_weight]
        if not found:
            return
        begin = (max if is_all else min)(one.step for one in found)
        when = max((one for one in found if one.step == begin), key=lambda one: one.place)
        starved = [names[when.place], *(names[one.place] for one in reversed(found))]
        yield self._told(run, table, when, list(dict.fromkeys(starved)), is_all=is_all)

    def _none_at_all(self, run: RunView) -> Iterable[Finding]:
        """No parameter ever has a gradient when the optimizer makes its step."""
        changed, was_empty = run.table(signals.CHANGED), run.table(signals.GRADIENT_EMPTY)
        wanted = [name for name, own in run.facts.parameters.items() if own.trainable and own.optimized]
        if not wanted or len(changed.steps) < self.steps or run.facts.optimizers > 1 or (changed.values > 0).any():
            return
        why, remedy = (
            ("backward() makes gradients, but they are gone before the step.", CLEARED_TOO_LATE)
            if np.isfinite(was_empty.values).any()
            else (
                "No backward pass has made any.",
                "Call loss.backward() before optimizer.step(), and look for detach(), no_grad(), .data or .item().",
            )
        )
        text = f"No parameter has a gradient when the optimizer makes its step, so nothing is learned. {why}"
        step, detected = max(int(changed.steps[0]) - 1, 1), int(changed.steps[self.steps - 1])
        yield self.finding(None, step, detected, "error", text, Remedy(remedy), confidence=0.95)

    def _expected(self, run: RunView, table: Table) -> list[str]:
        """The parameters that should have a gradient, in the order of the model."""
        ran, measured = set(run.table(signals.OUTPUT).places), run.facts.gradients_of
        return [
            name
            for name, own in run.facts.parameters.items()
            if own.trainable and own.size and (own.layer in ran or name in table.places)
            if measured is None or name.rpartition(".")[2] in measured
            if name not in run.left_optimizer
        ]

    def _are_starved(self, run: RunView, table: Table, names: Sequence[str]) -> Mask:
        """Where gradients are missing, or exactly 0."""
        outputs, rates = run.table(signals.OUTPUT), run.table(signals.RATE)
        values = table.at(table.steps, names)
        found: Mask = values == 0
        is_lost = np.isnan(values)
        if run.facts.origin is not None:  # then it need not be missing: it may be NaN
            is_lost[:, [name in table.places for name in names]] = False
        found |= is_lost
        for number, name in enumerate(names):
            layer = run.facts.parameters[name].layer
            if layer in outputs.places:  # where it did not run, no gradient is missing
                found[:, number] &= np.isfinite(outputs.select([layer]).at_steps(table.steps)[:, 0])
            if run.facts.optimizers > 1 and name in rates.places:  # steps of other optimizers say nothing
                found[:, number] &= np.isfinite(rates.select([name]).at_steps(table.steps)[:, 0])
        return found

    def _told(self, run: RunView, table: Table, when: Stretch, starved: list[str], *, is_all: bool) -> Finding:
        layers = list(dict.fromkeys(run.layer_of(name) or name for name in starved))
        text, remedy = self._words(run, table, when.step, starved[0], layers, is_all=is_all)
        severity = "error" if is_all or run.is_stuck else "warning"
        if not is_all and all(self._is_spare(run, name) for name in starved) and not run.is_stuck:
            severity = "info"
        if is_all and not run.loss and when.step > table.steps[0]:
            severity = "info"  # the loss may have reached 0
        shown = [evidence(table, signals.GRADIENT, starved[0])] if starved[0] in table.places else []
        outputs = run.table(signals.OUTPUT)
        if layers[0] in outputs.places:  # of a gradient that is missing there is no number, but its layer runs
            shown.append(evidence(outputs, signals.OUTPUT, layers[0]))
        layer = None if is_all else layers[0]
        return self.finding(layer, when.step, when.detected_at, severity, text, remedy, *shown, confidence=0.95)

    def _words(
        self, run: RunView, table: Table, step: int, name: str, layers: list[str], *, is_all: bool
    ) -> tuple[str, Remedy]:
        """The text for a missing gradient, for one that is 0, and for one that is 0 because its input is."""
        since = Table(table.steps[table.steps >= step], table.places, table.values[table.steps >= step])
        are_many = is_all or len(layers) > 1
        who = f"{'Nothing can' if is_all else 'They cannot' if are_many else 'It cannot'} learn"
        whom = "them" if are_many else "it"
        if name not in since.places or not np.isfinite(since.column(name)).any():
            cut = f"something between {whom} and the loss cuts the graph."
            places = f"for detach(), no_grad() or .data between {whom} and the loss."
            if is_all:
                return f"No parameter gets a gradient. {who}: {cut}", Remedy(f"Look {places}")
            what = f"No gradient arrives in {together(layers)}. {who}"
            if self._is_spare(run, name):
                advice = f"Use {whom} in the forward pass, or look {places}"
                return f"{what}: the forward pass does not use {whom}, or {cut}", Remedy(advice)
            result = "what they compute" if are_many else "what it computes"
            return f"{what}: {result} is not used, or {cut}", Remedy(f"Use {result}, or look {places}")
        what = f"The gradients of {'all parameters' if is_all else together(layers)} are exactly 0"
        if not are_many and self._has_others(run, since, name):
            return (
                f"The gradient of {name} is exactly 0, while other weights of {layer_text(layers[0])} learn: what it "
                "is multiplied by is 0 for every sample, or what comes after it is constant.",
                Remedy(
                    "Use the output of later steps: before the first one the state of a recurrent layer is 0."
                    if run.facts.layers.get(layers[0]) in RECURRENT
                    else f"Look at what {name} is multiplied by, and after it, such as for a softmax over one element."
                ),
            )
        if self._gets_zeros(run, since, layers[0]):
            first = layer_text(layers[0])
            return (
                f"{what}. The input of {first} is 0 for every sample: its bias gets gradients, its weight does not.",
                Remedy(f"Look at what comes before {first}, such as a ReLU that has died."),
            )
        return (
            f"{what}. {who}: what comes after {whom} is constant, or cuts the graph.",
            Remedy(
                f"Look after {whom} for an activation that is constant, such as a ReLU that has died, or for detach(), "
                f"no_grad() or .data.{f' {CLEARED_TOO_LATE}' if is_all else ''}"
            ),
        )

    def _has_others(self, run: RunView, since: Table, weight: str) -> bool:
        """Whether another weight of its layer gets a gradient: then the layer is not cut off, and gets not only 0."""
        layer = run.facts.parameters[weight].layer
        others = since.select(name for name in run.weights if name != weight and run.layer_of(name) == layer)
        return bool(layer) and bool(largest(others.values) > 0)

    def _gets_zeros(self, run: RunView, since: Table, layer: str) -> bool:
        """Whether a layer whose weight gets none has a bias that gets gradients: then all that enters it is 0."""
        own = [name for name in since.places if run.layer_of(name) == layer and name in run.facts.parameters]
        biases = since.select(name for name in own if not run.facts.parameters[name].is_weight)
        return bool((biases.values > 0).any(axis=1).mean() > 0.5)  # a dead layer may have one now and then

    def _are_faded(self, run: RunView, names: Sequence[str]) -> Mask:
        """Where the gradients of the layers of these parameters have vanished: nothing cuts them off."""
        table = _gradients(run)
        is_faded = _have_faded(table)
        layers = {run.layer_of(name): place for place, name in enumerate(table.places)}
        found = np.zeros((len(is_faded), len(names)), bool)
        for number, name in enumerate(names):
            if run.layer_of(name) in layers:
                found[:, number] = is_faded[:, layers[run.layer_of(name)]]
        return found

    def _is_spare(self, run: RunView, name: str) -> bool:
        """Whether it may be unused on purpose: a loose parameter of a larger module that never got a gradient.

        A mask token that is not used in this run, for instance. Whether such a module uses it is not known.
        """
        is_alone = not run.facts.layers.get(run.facts.parameters[name].layer)
        return is_alone and name not in run.table(signals.GRADIENT).places


@dataclass(frozen=True)
class Underflow(Symptom):
    """Gradients in float16 are so small that most of their elements became 0.

    Attributes:
        level: the largest root mean square of a gradient, in units of the smallest float16 number.
    """

    id: ClassVar[str] = "underflow"
    needs: ClassVar[tuple[str, ...]] = (signals.GRADIENT,)
    level: float = 0.5

    def look(self, run: RunView) -> Iterable[Finding]:
        """Going back from the output, the first weight whose gradient is lost."""
        own = run.facts.parameters
        names = [name for name in run.weights if own[name].dtype == "float16" or run.facts.computes_in_half]
        table = run.table(signals.GRADIENT).select(names)
        if not table.places or run.facts.loss_scale:
            return
        dead = run.table(signals.DEATH)
        if largest(dead.values) > 0.9:
            return  # that alone makes gradients 0
        rms = table.values / np.sqrt([run.size(name) for name in table.places])
        sizes = Table(table.steps, table.places, rms)
        found = lasting(sizes, rms < self.level * SMALLEST_HALF)
        if not found or (len(found) == len(table.places) and run.last_loss == 0):
            return
        when = max(found, key=lambda one: one.place)
        name = table.places[when.place]
        level = median(during(sizes, when))
        text = (
            f"Elements of the gradient of {name} are {short(level)} on average, and float16 has nothing between 0 and "
            f"{short(SMALLEST_HALF)}. Most of them became 0, so the layer learns little or nothing."
        )
        remedy = Remedy("Scale the loss with a GradScaler, or compute in bfloat16.", "grad_scaler", {})
        shown = evidence(table, signals.GRADIENT, name)
        yield self.finding(
            run.layer_of(name),
            when.step,
            when.detected_at,
            "error" if run.is_stuck else "warning",
            text,
            remedy,
            shown,
            resolved_at=when.resolved_at,
        )
