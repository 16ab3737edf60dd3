"""What is wrong with data, and with what enters the loss."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ...store.types import layer_text
from .. import signals
from ..finding import Finding, Remedy
from ..history import Numbers
from ..run import BINARY, CROSS_ENTROPY, DISTANCES, FEWEST, PATIENCE, RunView, expected_perplexity, largest, median
from .activations import LAYER_NORMS
from .base import Symptom, evidence, points, share, short

PROBABILITIES = ("BCELoss",)
"""Losses that want probabilities."""
LOG_PROBABILITIES = ("NLLLoss", "KLDivLoss", "CTCLoss")
"""Losses that want logarithms of probabilities."""
ELEMENTWISE = (*DISTANCES, "PoissonNLLLoss")
"""Losses that compare each output with its target."""

IN_RANGE = Remedy(
    "Give targets between 0 and 1: (target + 1) / 2 if they are -1 and 1, target / 255 if they are pixels."
)

BOUNDS = {
    **dict.fromkeys(("Sigmoid", "Softmax", "Softmax2d", "Hardsigmoid"), (0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Softsign", "Hardtanh"), (-1.0, 1.0)),
    **dict.fromkeys(("ReLU", "Softplus"), (0.0, math.inf)),
    "ReLU6": (0.0, 6.0),
    **dict.fromkeys(("LogSigmoid", "LogSoftmax"), (-math.inf, 0.0)),
}
"""The range of activations, by class."""

SIGMOID_BEGINS = (0.35, 0.65)
"""Where the middle of the first outputs of a sigmoid is: what enters it begins near 0."""

SAME_SIZE = 0.05
"""By this share the size of what a layer gives and that of what the loss gets may differ if they are the same."""

AT_BOUND = 0.98
"""Outputs that come this close to a function's bound, and never exceed it, have gone through it."""


@dataclass(frozen=True)
class InputScale(Symptom):
    """Inputs are far from mean 0 and standard deviation 1, or their features are on different scales.

    Attributes:
        size: the largest mean and standard deviation.
        features: how far the standard deviations of two features may be apart.
        large: only if the overall standard deviation is larger than this.
        small: the smallest root mean square.
    """

    id: ClassVar[str] = "input_scale"
    needs: ClassVar[tuple[str, ...]] = (signals.INPUT_STD, signals.FEATURE_SPREAD)
    size: float = 10.0
    features: float = 100.0
    large: float = 3.0
    small: float = 0.005

    def look(self, run: RunView) -> Iterable[Finding]:
        """The first floating input with features."""
        spreads = run.table(signals.FEATURE_SPREAD)
        means, stds = run.table(signals.INPUT_MEAN), run.table(signals.INPUT_STD)
        if not spreads.places:
            return
        place = spreads.places[0]
        # other inputs may come in other steps
        tables = (table.select([place]) for table in (means, stds, spreads))
        mean, std, spread = (np.abs(table.at_steps(spreads.steps)[:, 0]) for table in tables)
        # nearly constant features, such as the borders of images, do no harm: the others must be large
        is_bad = (mean > self.size) | (std > self.size) | ((spread > self.features) & (std > self.large))
        size = np.hypot(mean, std)
        is_tiny = (size < self.small) & (size > 0)
        is_small = is_tiny[-FEWEST:].mean() > 0.5
        is_bad = is_tiny if is_small else is_bad
        rows = np.flatnonzero(is_bad)
        if not len(rows) or is_bad[-FEWEST:].mean() <= 0.5:
            return
        row = int(rows[0])
        first = next(iter(own.layer for own in run.facts.parameters.values()), "")
        is_rescaled = any(name in run.facts.layers.get(first, "") for name in LAYER_NORMS)
        what = (
            f"Inputs have a standard deviation of {short(float(std[row]))}, and a mean {short(float(mean[row]))} from 0"
            if is_small or max(mean[row], std[row]) > self.size
            else f"The standard deviations of input features are up to {short(float(spread[row]))} times apart"
        )
        so = "biases outweigh them" if is_small else "the first steps overshoot or crawl"
        text = f"{what}. Weights are initialised for inputs of size 1, so {so}."
        remedy = Remedy(
            "Give every input feature mean 0 and standard deviation 1"
            f"{'; look whether they are scaled twice' if is_small else ''}.",
            "standardise_input",
            {},
        )
        table, signal, limit = (
            (stds, signals.INPUT_STD, self.small if is_small else self.size)
            if is_small or max(mean[row], std[row]) > self.size
            else (spreads, signals.FEATURE_SPREAD, self.features)
        )
        least = "info" if is_small else "warning"  # a run that learns from small inputs has learned larger weights
        severity = "info" if is_rescaled else run.harm(least)
        step = int(spreads.steps[row])
        yield self.finding(None, step, step, severity, text, remedy, evidence(table, signal, place, limit))


class LossOutput(NamedTuple):
    """The model's output: the layer that makes it, its kind, and the range in each batch."""

    layer: str | None
    kind: str
    low: Numbers
    high: Numbers

    def is_within(self, bottom: float, top: float) -> bool:
        """Whether no batch goes beyond these numbers."""
        return bool(self.low.min() >= bottom and self.high.max() <= top)

    @property
    def is_rectified(self) -> bool:
        """Whether most batches have exact zeros, and nothing is below."""
        return bool(self.low.min() == 0 and (self.low == 0).mean() > 0.5)

    @property
    def looks_like(self) -> tuple[float, float, str]:
        """The bounds of the function that outputs seem to have gone through, and its name."""
        if self.is_within(0.0, 1.0) and np.median(self.high) > AT_BOUND:
            return 0.0, 1.0, "sigmoid"
        if self.is_within(-1.0, 1.0) and max(np.median(self.high), -np.median(self.low)) > AT_BOUND:
            return -1.0, 1.0, "tanh"
        return (0.0, math.inf, "relu") if self.is_rectified else (-math.inf, math.inf, "")

    @property
    def is_activated(self) -> bool:
        """Whether the last layer is an activation; otherwise a function may have been called after it."""
        return self.kind in BOUNDS


@dataclass(frozen=True)
class OutputLossMismatch(Symptom):
    """The model's output is not what the loss expects.

    Attributes:
        tolerance: how near to 1 the sums of rows must be to be probabilities.
    """

    id: ClassVar[str] = "output_loss_mismatch"
    needs: ClassVar[tuple[str, ...]] = (signals.LOSS_INPUT_RANGE,)
    tolerance: float = 1e-3

    def look(self, run: RunView) -> Iterable[Finding]:
        """Probabilities for logits, a softmax over one unit, targets that are out of reach, or other shapes."""
        lowest, highest = (run.table(signals.LOSS_INPUT_RANGE, how) for how in ("smallest", "largest"))
        if "output" not in lowest.places:
            return
        low, high = lowest.column("output"), highest.column("output")
        known = np.isfinite(low)
        if not known.any():
            return
        low, high, steps = low[known], high[known], lowest.steps[known]
        layer = next((name for name in reversed(run.facts.ran or list(run.facts.layers)) if name), None)
        step = int(steps[0])
        text = self._shapes(run)
        if text is not None:
            remedy = Remedy("Give both the same shape, such as output.squeeze(-1) or target.unsqueeze(-1).")
            yield self.finding(None, step, step, "error", text, remedy, confidence=0.98)
            return
        text = self._targets(run)
        if text is not None:
            shown = evidence(highest, "largest target", "target", 1.0)
            yield self.finding(None, step, step, "error", text, IN_RANGE, shown, confidence=0.98)
            return
        output = LossOutput(layer, run.facts.layers.get(layer or "", ""), low, high)
        if self._is_of_others(run, output):
            output = output._replace(layer=None, kind="")
        found = (
            self._single_class(run)
            or self._constant(output)
            or self._double_softmax(run, output)
            or self._softmax_across(run, output)
            or self._no_logarithm(run, output)
            or self._not_normalised(run, output)
            or self._softmax_below(run, output)
            or self._bounded(run, output)
            or self._out_of_reach(run, output)
        )
        if found is None:
            return
        text, confidence = found
        is_weak = run.facts.loss_fn == CROSS_ENTROPY[0] and math.isinf(BOUNDS.get(output.kind, (0.0, 0.0))[1])
        severity = run.harm() if is_weak else "error"  # logits that are never negative can still tell classes apart
        shown = points("largest output", "output", steps, high)
        remedy = self._remedy(run, output)
        yield self.finding(output.layer, step, step, severity, text, remedy, shown, confidence=confidence)

    def _remedy(self, run: RunView, output: LossOutput) -> Remedy:
        loss = run.facts.loss_fn
        if self._single_class(run) is not None:
            return Remedy("Give the last layer one output for each class, or use BCEWithLogitsLoss with one output.")
        if loss in PROBABILITIES:
            arguments = {"layers": [output.layer], "by": "Sigmoid"}
            return Remedy("Use Sigmoid as the last activation.", "replace_activation", arguments)
        if loss in LOG_PROBABILITIES:
            arguments = {"layers": [output.layer], "by": "LogSoftmax"}
            text = "Use LogSoftmax as the last activation, or CrossEntropyLoss without one."
            return Remedy(text, *(("replace_activation", arguments) if output.is_activated else ()))
        if not output.is_activated:
            is_softmax = (self._double_softmax(run, output) or self._softmax_across(run, output)) is not None
            function = "softmax" if is_softmax else output.looks_like[2] or "sigmoid"
            place = "called before the loss" if output.layer is None else f"called after {layer_text(output.layer)}"
            return Remedy(f"Remove the function that is {place}, such as a {function}.")
        text = "Remove the last activation: the loss applies it, or the model needs the range."
        return Remedy(text, "drop_output_activation", {"layer": output.layer})

    def _is_of_others(self, run: RunView, output: LossOutput) -> bool:
        """Whether the loss certainly does not get what the last activation gives.

        It may get the output of another model, such as a discriminator, which has another range or size.
        """
        if not output.is_activated:
            return False
        bottom, top = BOUNDS[output.kind]
        last = run.facts.parameters[run.weights[-1]] if run.weights else None
        size, shape = 1, run.facts.loss_shapes.get("output", [])
        if last is not None and run.facts.layers.get(last.layer) == "Linear":
            size = last.shape[0]
        is_cut = bool(shape) and math.prod(shape) % size != 0
        return is_cut or not output.is_within(bottom - self.tolerance, top + self.tolerance)

    def _shapes(self, run: RunView) -> str | None:
        """Whether every output is compared with every target."""
        output, target = (run.facts.loss_shapes.get(name) for name in ("output", "target"))
        if run.facts.loss_fn not in ELEMENTWISE or output is None or target is None or output == target:
            return None
        return (
            f"Output and target have different shapes, {output} and {target}, so that {run.facts.loss_fn} compares "
            "every output with every target. The best the model can do then is to output the mean of all targets, "
            "whatever the input."
        )

    def _targets(self, run: RunView) -> str | None:
        """Whether targets are no probabilities although the loss wants some; those of masked elements may be."""
        least, most = self._target_range(run)
        is_all_used = run.facts.loss_is_mean or run.loss.values.min(initial=0.0) < 0
        if run.facts.loss_fn not in BINARY or not is_all_used:
            return None
        if not (least < -self.tolerance or most > 1 + self.tolerance):
            return None
        return (
            f"Targets are between {short(least)} and {short(most)}, but {run.facts.loss_fn} wants them between 0 and "
            "1. Beyond that the loss falls without limit while outputs grow."
        )

    def _target_range(self, run: RunView) -> tuple[float, float]:
        """The smallest and the largest target; NaN if they are not known."""
        tables = (run.table(signals.LOSS_INPUT_RANGE, how).select(["target"]) for how in ("smallest", "largest"))
        lowest, highest = (table.values for table in tables)
        return -largest(-lowest), largest(highest)

    def _single_class(self, run: RunView) -> tuple[str, float] | None:
        shape = run.facts.loss_shapes.get("output", [])
        if run.facts.loss_fn not in CROSS_ENTROPY or len(shape) < 2 or shape[1] != 1:
            return None
        return (
            f"The output has a single class, which always gets all of the probability, so {run.facts.loss_fn} is "
            "always 0, and nothing is learned.",
            0.98,
        )

    def _constant(self, output: LossOutput) -> tuple[str, float] | None:
        if not ((output.low == output.high) & (np.abs(output.high - 1) < 1e-6)).all():
            return None
        return (
            "Every output is exactly 1, whatever the input is: a softmax over a single unit does that. "
            "No gradient gets through it, so nothing is learned.",
            0.95,
        )

    def _double_softmax(self, run: RunView, output: LossOutput) -> tuple[str, float] | None:
        sums = [run.table(signals.ROW_SUM, how) for how in ("smallest", "largest")]
        if run.facts.loss_fn not in CROSS_ENTROPY or not all("output" in one.places for one in sums):
            return None
        smallest, largest = (one.column("output") for one in sums)
        is_one = (np.abs(smallest - 1) < self.tolerance) & (np.abs(largest - 1) < self.tolerance)
        if not is_one[np.isfinite(smallest)].all() or not output.is_within(0.0, 1 + self.tolerance):
            return None
        what = "All rows of the output sum to 1, so they are probabilities, but"
        if run.facts.loss_fn != CROSS_ENTROPY[0]:
            return (
                f"{what} {run.facts.loss_fn} wants log-probabilities. The logarithm is missing, so being sure of a "
                "wrong class costs hardly more than a guess.",
                0.98,
            )
        return (
            f"{what} {run.facts.loss_fn} wants logits. Softmax is applied twice, which flattens gradients and keeps "
            "the loss from ever getting small.",
            0.98,
        )

    def _softmax_across(self, run: RunView, output: LossOutput) -> tuple[str, float] | None:
        """Outputs that sum to 1 over another dimension than that of classes: their mean is one over its size."""
        shape, means = run.facts.loss_shapes.get("output", []), run.table(signals.LOSS_INPUT_MEAN).select(["output"])
        if run.facts.loss_fn != CROSS_ENTROPY[0] or not output.is_within(0.0, 1.0) or len(means.steps) < FEWEST:
            return None
        for dimension, size in enumerate(shape):
            # the last batch of an epoch may be smaller
            is_one = median(np.abs(means.values * size - 1)) < self.tolerance
            if dimension != 1 and size > 1 and is_one:
                which = "that of samples" if dimension == 0 else "not that of classes"
                return (
                    f"Outputs are between 0 and 1 and sum to 1 over dimension {dimension}, which is {which}, but "
                    f"{run.facts.loss_fn} wants logits. A softmax over the wrong dimension does that.",
                    0.98,
                )
        return None

    def _no_logarithm(self, run: RunView, output: LossOutput) -> tuple[str, float] | None:
        highest = float(output.high.max())
        if run.facts.loss_fn not in LOG_PROBABILITIES or highest <= self.tolerance:
            return None
        return (
            f"Outputs are up to {short(highest)}, but {run.facts.loss_fn} wants logarithms of probabilities, which are "
            "never above 0. The loss falls without limit while outputs grow, whether they are right or not.",
            0.98,
        )

    def _not_normalised(self, run: RunView, output: LossOutput) -> tuple[str, float] | None:
        """Log-probabilities of rows that cannot sum to 1: each row has one above the mean, and a lower mean log."""
        classes, means = run.facts.classes or 0, run.table(signals.LOSS_INPUT_MEAN).select(["output"]).values
        if run.facts.loss_fn != CROSS_ENTROPY[1] or classes < 2:
            return None
        uniform = -math.log(classes)
        # padding may be filled with zeros, which says nothing about the mean of the others
        is_high = output.high.max() < 0 and largest(means) > uniform + self.tolerance
        if output.high.min() > uniform - self.tolerance and not is_high:
            return None
        return (
            f"NLLLoss wants log-probabilities, but those of the {classes} classes of a sample do not sum to 1 after "
            "exp(). LogSoftmax is missing, or goes over another dimension, such as the batch, so the loss does not "
            "compare classes.",
            0.95,
        )

    def _softmax_below(self, run: RunView, output: LossOutput) -> tuple[str, float] | None:
        """Logarithms of a softmax of probabilities, which are between 0 and 1, come close to a bound above them."""
        classes, is_seen_long = run.facts.classes or 0, len(output.high) >= 2 * FEWEST
        if run.facts.loss_fn != CROSS_ENTROPY[1] or classes < 2 or not is_seen_long:
            return None
        most = math.e / (math.e + classes - 1)
        highest = np.exp(output.high)
        if not highest.max() <= most * (1 + self.tolerance) or not np.median(highest) > AT_BOUND * most:
            return None
        return (
            f"No class ever gets more than {share(most)}, which is the most that LogSoftmax gives if it gets "
            "probabilities instead of logits. Softmax is applied twice, which flattens gradients and keeps the loss "
            "from ever getting small.",
            0.9,
        )

    def _bounded(self, run: RunView, output: LossOutput) -> tuple[str, float] | None:
        """Logits that are bounded, or never negative."""
        loss, kind = run.facts.loss_fn, output.kind
        if loss not in ("BCEWithLogitsLoss", CROSS_ENTROPY[0]):
            return None
        bottom, top = BOUNDS.get(kind, (-math.inf, math.inf))
        is_seen_long = len(output.low) >= 2 * FEWEST
        begins = median((output.low + output.high)[:FEWEST] / 2)
        is_like_sigmoid = output.low.min() > 0 and SIGMOID_BEGINS[0] < begins < SIGMOID_BEGINS[1]
        is_like_sigmoid = is_like_sigmoid and not self._is_direct(run, output)
        if kind not in BOUNDS and is_seen_long and is_like_sigmoid and output.is_within(0.0, 1.0):
            bottom, top, kind = 0.0, 1.0, "a function such as a sigmoid"
        if math.isfinite(bottom) and math.isfinite(top):
            return (
                f"All outputs are between {short(float(output.low.min()))} and {short(float(output.high.max()))} after "
                f"{kind}, but {loss} wants logits, which have no bounds. It has an activation of its own, so the loss "
                "cannot get small.",
                0.95,
            )
        never_says_no = bottom == 0 or (is_seen_long and output.is_rectified)
        what = f"No output is below 0 after {kind if output.is_activated else 'a ReLU'}, but {loss} wants logits"
        if loss == CROSS_ENTROPY[0] and bottom == 0 and run.harm() != "info":
            return f"{what}. A class whose output is 0 gets no gradient, so what is wrong there cannot be mended.", 0.9
        if loss != "BCEWithLogitsLoss" or not never_says_no:
            return None
        return f"{what}, which are negative for a no. The model can only say yes or perhaps.", 0.95

    def _is_direct(self, run: RunView, output: LossOutput) -> bool:
        """Whether the loss gets what the last layer gives, as far as sizes tell: then no function is between them."""
        steps, layer = run.table(signals.OUTPUT).steps, output.layer or ""
        mean, std = (
            run.table(name).at(steps, ["output"]) for name in (signals.LOSS_INPUT_MEAN, signals.LOSS_INPUT_STD)
        )
        with np.errstate(all="ignore"):
            ratios = run.table(signals.OUTPUT).at(steps, [layer]) / np.hypot(mean, std)
        known = ratios[np.isfinite(ratios)]
        return len(known) >= FEWEST and bool(np.mean(np.abs(known - 1) < SAME_SIZE) > 0.9)

    def _out_of_reach(self, run: RunView, output: LossOutput) -> tuple[str, float] | None:
        least, most = self._target_range(run)
        if run.facts.loss_fn not in DISTANCES or math.isnan(least):
            return None
        kind = output.kind
        bottom, top = BOUNDS.get(kind, (-math.inf, math.inf))
        if kind not in BOUNDS and len(output.low) >= FEWEST:  # a function may have done it
            bottom, top, kind = output.looks_like
        slack = 0.05 * max(most - least, 1e-12)
        if least >= bottom - slack and most <= top + slack:
            return None
        return (
            f"Targets are between {short(least)} and {short(most)}, but the last activation, {kind}, only gives "
            f"{short(bottom)} to {short(top)}. The model cannot reach them, however long it trains.",
            0.9,
        )


@dataclass(frozen=True)
class UnrepresentativeBatches(Symptom):
    """Batches hold fewer classes than the data: the data are not shuffled; or the model always predicts one class.

    Attributes:
        share: the largest variety of classes in a batch, minus 1, as a share of that of all data.
        expected: the same, as a share of what shuffled batches of that size would have.
        ratio: how many times as frequent one class must be as another to be called imbalance.
        few: with more classes than these, some are always rare.
    """

    id: ClassVar[str] = "unrepresentative_batches"
    needs: ClassVar[tuple[str, ...]] = (signals.PERPLEXITY,)
    share: float = 0.4
    expected: float = 0.6
    ratio: float = 10.0
    few: int = 20

    def look(self, run: RunView) -> Iterable[Finding]:
        """From the classes of targets and predictions."""
        counts, batch = np.array(run.facts.target_counts, float), run.facts.batch
        table = run.table(signals.PERPLEXITY)
        if "target" not in table.places or counts.sum() == 0 or batch is None or len(table.steps) < FEWEST:
            return
        shares = counts[counts > 0] / counts.sum()
        overall = float(np.exp(-(shares * np.log(shares)).sum()))
        one = batch / run.per_step(signals.PERPLEXITY, "target")  # a step may have several batches
        likely, noise = expected_perplexity(tuple(shares.tolist()), max(1, round(one)))
        limit = 1 + min(self.share * (overall - 1), self.expected * (likely - 1))  # a single class has 1
        known = np.isfinite(table.column("target"))
        steps, perplexities = table.steps[known], table.column("target")[known]
        begin, first = self._uniform_since(perplexities, noise, limit), int(table.steps[0])
        if self._is_one_class(run, counts):
            text = (
                f"All {int(counts.sum()):,} targets that were seen are of class {int(np.argmax(counts))}. A model that "
                "always says so is right, so it learns nothing about its inputs."
            )
            remedy = Remedy("Look at the labels; if there are other classes, shuffle the training data.")
            shown, detected = evidence(table, signals.PERPLEXITY, "target"), int(run.loss.steps[PATIENCE - 1])
            yield self.finding(None, first, max(first, detected), "warning", text, remedy, shown)
            return
        if begin is not None and overall > 1.5:
            level = float(perplexities[begin:].mean())
            text = (
                f"A batch has {short(level)} classes worth of variety, all data have {short(overall)}. "
                "The data are not shuffled, so each step learns some classes and forgets the others."
            )
            remedy = Remedy("Shuffle the training data.", "shuffle", {})
            shown = evidence(table, signals.PERPLEXITY, "target", limit)
            severity = "warning" if run.learns else run.harm("warning")
            detected = int(steps[min(begin + FEWEST, len(steps)) - 1])
            yield self.finding(None, int(steps[begin]), detected, severity, text, remedy, shown)
            return
        common, rare = counts.max(), counts[counts > 0].min()
        if common / rare < self.ratio or len(counts) > self.few:
            return  # of many classes, such as the letters of a text, some are always rare
        predicted = np.array(run.facts.predicted_counts, float)
        part = predicted[predicted > 0] / max(predicted.sum(), 1)
        said = float(np.exp(-(part * np.log(part)).sum()))
        is_ignored = bool(len(part)) and (said < self.share * overall or overall < self.share * len(counts))
        text = (
            f"The most frequent of {len(counts)} classes has {share(float(common / counts.sum()))} of all targets, and "
            f"the model predicts {short(said)} classes worth of variety. Rare classes are hardly learned."
            if is_ignored
            else f"The most frequent of {len(counts)} classes is {short(float(common / rare))} times as frequent as "
            "the rarest. Rare classes are learned last, and the mean loss hardly shows them."
        )
        remedy = Remedy("Weight the loss by class, or draw rare classes more often.")
        shown = evidence(table, signals.PERPLEXITY, "target")
        checks = run.validation.values
        is_bad = len(checks) > 0 and checks[-1] >= max(3 * run.last_loss, 0.8 * math.log(len(counts)))
        severity = "warning" if is_ignored and is_bad else "info"
        detected = int(table.steps[FEWEST - 1])
        # a model predicts one class for many reasons, so this explains nothing that has a reason of its own
        yield self.finding(None, first, detected, severity, text, remedy, shown, confidence=0.6)

    def _is_one_class(self, run: RunView, counts: Numbers) -> bool:
        """Whether all targets are of one class, for which the last layer has a unit.

        Where it has not, classes may be candidates to compare, of which the right one always comes first.
        """
        is_one = np.count_nonzero(counts) == 1 < len(counts) and min(len(run.loss), counts.sum()) >= PATIENCE
        return is_one and bool(run.weights) and run.facts.parameters[run.weights[-1]].shape[0] == len(counts)

    def _uniform_since(self, perplexities: Numbers, noise: float, limit: float) -> int | None:
        """The batch from which their mean is significantly below the limit; None if that is less than half of them."""
        count = len(perplexities)
        lengths = np.arange(count, max(FEWEST, count // 2) - 1, -1)
        sums = np.cumsum(perplexities[::-1])[lengths - 1]
        is_low = sums / lengths + 2 * noise / np.sqrt(lengths) < limit
        if not is_low.any():
            return None
        begin = int(np.argmax(is_low))
        return begin + int(np.argmax(perplexities[begin:] < limit))  # those before were as they should be
