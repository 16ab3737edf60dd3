"""What is wrong with data, and with what enters the loss."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import signals
from ..finding import Finding, Remedy
from ..run import CROSS_ENTROPY, FEWEST, RunView, expected_perplexity, largest, median
from .activations import LAYER_NORMS
from .base import Symptom, evidence, points, share, short

PROBABILITIES = ("BCELoss",)
"""Losses that want probabilities."""


@dataclass(frozen=True)
class InputScale(Symptom):
    """Inputs are far from mean 0 and standard deviation 1, or their features are on different scales.

    Attributes:
        size: the largest mean and standard deviation.
        features: how far the standard deviations of two features may be apart,
        large: if that of all together is larger than this.
    """

    id: ClassVar[str] = "input_scale"
    needs: ClassVar[tuple[str, ...]] = (signals.INPUT_STD, signals.FEATURE_SPREAD)
    size: float = 10.0
    features: float = 100.0
    large: float = 3.0

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
        rows = np.flatnonzero(is_bad)
        if not len(rows) or is_bad[-FEWEST:].mean() <= 0.5:
            return
        row = int(rows[0])
        first = next(iter(own.layer for own in run.facts.parameters.values()), "")
        is_rescaled = any(name in run.facts.layers.get(first, "") for name in LAYER_NORMS)
        what = (
            f"Inputs have a standard deviation of {short(float(std[row]))}, and a mean {short(float(mean[row]))} from 0"
            if max(mean[row], std[row]) > self.size
            else f"The standard deviations of input features are up to {short(float(spread[row]))} times apart"
        )
        text = f"{what}. Weights are made for inputs of size 1, so first steps go astray or crawl."
        remedy = Remedy("Give every input feature mean 0 and standard deviation 1.", "standardise_input", {})
        table, signal, limit = (
            (stds, signals.INPUT_STD, self.size)
            if max(mean[row], std[row]) > self.size
            else (spreads, signals.FEATURE_SPREAD, self.features)
        )
        severity = "info" if is_rescaled else "error" if run.is_stuck else "warning"
        step = int(spreads.steps[row])
        yield self.finding(None, step, step, severity, text, remedy, evidence(table, signal, place, limit))


@dataclass(frozen=True)
class OutputLossMismatch(Symptom):
    """What the model returns is not what the loss wants.

    Attributes:
        tolerance: how near to 1 the sums of rows must be to be probabilities.
    """

    id: ClassVar[str] = "output_loss_mismatch"
    needs: ClassVar[tuple[str, ...]] = (signals.LOSS_INPUT_RANGE,)
    tolerance: float = 1e-3

    def look(self, run: RunView) -> Iterable[Finding]:
        """Probabilities for logits, a softmax over one unit, or targets that the last activation never reaches."""
        lowest, highest = (run.table(signals.LOSS_INPUT_RANGE, how) for how in ("smallest", "largest"))
        if "output" not in lowest.places:
            return
        low, high = lowest.column("output"), highest.column("output")
        known = np.isfinite(low)
        if not known.any():
            return
        low, high, steps = low[known], high[known], lowest.steps[known]
        layer = next((name for name in reversed(run.facts.layers) if name), None)
        kind = run.facts.loss_fn
        found = (
            self._constant(low, high)
            or self._double_softmax(run, low, high)
            or self._double_sigmoid(run, layer, low, high)
            or self._out_of_reach(run, layer, low, high)
        )
        if found is None:
            return
        text, confidence = found
        by = "Sigmoid" if kind in PROBABILITIES else None
        remedy = (
            Remedy(f"Use {by} as the last activation.", "replace_activation", {"layers": [layer], "by": by})
            if by
            else Remedy("Take the last activation away: the loss does it.", "drop_output_activation", {"layer": layer})
        )
        shown = points("largest output", "output", steps, high)
        step = int(steps[0])
        yield self.finding(layer, step, step, "error", text, remedy, shown, confidence=confidence)

    def _constant(self, low: np.ndarray, high: np.ndarray) -> tuple[str, float] | None:
        if not ((low == high) & (np.abs(high - 1) < 1e-6)).all():
            return None
        return (
            "Every output is exactly 1, whatever the input is: a softmax over a single unit does that. "
            "No gradient can come through it, so nothing is learned.",
            0.95,
        )

    def _double_softmax(self, run: RunView, low: np.ndarray, high: np.ndarray) -> tuple[str, float] | None:
        sums = [run.table(signals.ROW_SUM, how) for how in ("smallest", "largest")]
        if run.facts.loss_fn not in CROSS_ENTROPY or not all("output" in one.places for one in sums):
            return None
        smallest, largest = (one.column("output") for one in sums)
        is_one = (np.abs(smallest - 1) < self.tolerance) & (np.abs(largest - 1) < self.tolerance)
        if not is_one[np.isfinite(smallest)].all() or low.min() < 0 or high.max() > 1 + self.tolerance:
            return None
        return (
            f"All rows of the output sum to 1, so they are probabilities, but {run.facts.loss_fn} wants "
            f"{'logits' if run.facts.loss_fn == CROSS_ENTROPY[0] else 'log-probabilities'}. Softmax is applied twice, "
            "which flattens gradients and keeps the loss from ever getting small.",
            0.98,
        )

    def _double_sigmoid(
        self, run: RunView, layer: str | None, low: np.ndarray, high: np.ndarray
    ) -> tuple[str, float] | None:
        is_sigmoid = run.facts.layers.get(layer or "") in ("Sigmoid", "Softmax") or len(low) >= 2 * FEWEST
        if run.facts.loss_fn != "BCEWithLogitsLoss" or not is_sigmoid or low.min() < 0 or high.max() > 1:
            return None
        return (
            f"All outputs are between {short(float(low.min()))} and {short(float(high.max()))}, so they are "
            "probabilities, but BCEWithLogitsLoss wants logits. The sigmoid is applied twice, so the loss cannot get "
            "small.",
            0.95,
        )

    def _out_of_reach(
        self, run: RunView, layer: str | None, low: np.ndarray, high: np.ndarray
    ) -> tuple[str, float] | None:
        targets = [run.table(signals.LOSS_INPUT_RANGE, how) for how in ("smallest", "largest")]
        if run.facts.classes or not all("target" in one.places for one in targets):
            return None
        least, most = -largest(-targets[0].column("target")), largest(targets[1].column("target"))
        bounds = {"ReLU": (0.0, math.inf), "Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Softmax": (0.0, 1.0)}
        kind = run.facts.layers.get(layer or "", "")
        bottom, top = bounds.get(kind, (-math.inf, math.inf))
        if kind not in bounds and low.min() == 0 and len(low) >= FEWEST and (low == 0).mean() > 0.5:
            bottom, kind = 0.0, "relu"  # exact zeros in most batches
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
    """Batches hold fewer classes than the data: they are not shuffled; or the model only ever says one class.

    Attributes:
        share: the variety of classes in a batch over that of all, at most.
        expected: the same over what shuffled batches of that size would have.
        ratio: how many times as frequent one class must be as another to be called imbalance.
        few: with more classes than these, that is only odd.
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
        perplexities = table.column("target")
        level = median(perplexities)
        likely = expected_perplexity(tuple(shares.tolist()), max(1, round(batch)))
        first = int(table.steps[0])
        if level < self.share * overall and level < self.expected * likely and overall > 1.5:
            text = (
                f"A batch has {short(level)} classes worth of variety, all data have {short(overall)}. "
                "Data come in an order, so each step learns some classes and forgets the others."
            )
            remedy = Remedy("Shuffle the training data.", "shuffle", {})
            shown = evidence(table, signals.PERPLEXITY, "target", self.share * overall)
            severity = "warning" if run.learns else run.harm("warning")
            detected = int(table.steps[FEWEST - 1])
            yield self.finding(None, first, detected, severity, text, remedy, shown)
            return
        predicted = np.array(run.facts.predicted_counts, float)
        if not predicted.sum() or counts.max() / max(counts[counts > 0].min(), 1) < self.ratio:
            return
        part = predicted[predicted > 0] / predicted.sum()
        said = float(np.exp(-(part * np.log(part)).sum()))
        if said < self.share * overall or overall < self.share * len(counts):
            common = share(float(counts.max() / counts.sum()))
            text = (
                f"The most frequent of {len(counts)} classes has {common} of all targets, and the model says "
                f"{short(said)} classes worth of variety. Rare classes are hardly learned."
            )
            remedy = Remedy("Weight the loss by class, or draw rare classes more often.")
            shown = evidence(table, signals.PERPLEXITY, "target")
            checks = run.validation.values
            is_harmful = len(checks) > 0 and not checks[-1] < max(3 * run.last_loss, 0.8 * math.log(len(counts)))
            # of many classes, such as the letters of a text, some are always rare
            severity = "warning" if is_harmful and len(counts) <= self.few else "info"
            detected = int(table.steps[FEWEST - 1])
            yield self.finding(None, first, detected, severity, text, remedy, shown, confidence=0.7)
