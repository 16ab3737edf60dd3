"""Which runs show a symptom best, and which of their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from bench.diagnosis.case import Case, adam, sgd, vectors
from bench.diagnosis.cases import CASES
from bench.diagnosis.mlp import weighty
from bench.diagnosis.program import Program
from bench.diagnosis.transformer import misroute, themes
from monitorch.diagnosis import signals, symptoms
from monitorch.diagnosis.history import Table
from monitorch.diagnosis.run import FEWEST, RunView, nan_median
from monitorch.diagnosis.symptoms.gradients import SMALLEST_HALF

from .drawing import WITH_ZERO, Curve, Curves
from .runs import Seen

Look = Callable[[RunView, Any], Curves]
"""Of a run, and the symptom with its thresholds."""


@dataclass(frozen=True)
class Picture:
    """What the picture of a symptom shows.

    Args:
        symptom: what it is about.
        case: the program.
        healthy: what the healthy one does, in a few words.
        sick: what the other one does; short, as the step at which it was found stands beside it.
        shows: what the numbers are.
        curves: the numbers; None if losses say all.
        scale: of these numbers.
        loss_scale: of losses.
        levels: lines to draw among losses.
        shows_validation: whether the validation loss belongs to it.
        until: the last step that is drawn; 0 for all.
    """

    symptom: type[symptoms.Symptom]
    case: Case
    healthy: str
    sick: str
    shows: str = ""
    curves: Look | None = None
    scale: str = "linear"
    loss_scale: str = "linear"
    levels: Callable[[RunView, Any], dict[str, float]] | None = None
    shows_validation: bool = False
    until: int = 0

    def look(self, seen: Seen) -> Curves | None:
        """What of a run is drawn above its losses."""
        return None if self.curves is None else self.curves(seen.view, self.symptom())

    def levels_of_loss(self, seen: Seen) -> dict[str, float]:
        """Lines among losses, where nothing is above them."""
        return {} if self.levels is None else self.levels(seen.view, self.symptom())


def _lines(table: Table, places: Iterable[str] | None = None) -> dict[str, Curve]:
    """One for each place, in the order of the model."""
    chosen = table if places is None else table.select(places)
    lines = {}
    for name in chosen.places:
        values = chosen.column(name)
        known = np.isfinite(values)
        lines[name] = Curve(chosen.steps[known], values[known])
    return lines


def _over_steps(signal: str, *limits: str, weights: bool = False) -> Look:
    """A signal of all layers, or of all weights, with thresholds that are called like this."""

    def look(run: RunView, symptom: Any) -> Curves:
        table = run.table(signal)
        return Curves(_lines(table, run.weights if weights else None), _limits(symptom, *limits))

    return look


def _limits(symptom: Any, *names: str) -> dict[str, float]:
    return {f"{name} = {getattr(symptom, name):g}": getattr(symptom, name) for name in names}


def _over_layers(run: RunView, limits: dict[str, float], **values: dict[str, float]) -> Curves:
    """One number for each layer, first steps only."""
    layers = list(next(iter(values.values())))
    lines = {
        name.replace("_", " "): Curve(np.arange(len(layers)), np.array([own[layer] for layer in layers]), True)
        for name, own in values.items()
    }
    return Curves(lines, limits, layers)


def _since_the_start(run: RunView, symptom: Any, *limits: str) -> Curves:
    """The norms of weights, as shares of the first ones."""
    table = run.table(signals.WEIGHT).select(run.weights)
    return Curves(_lines(Table(table.steps, table.places, table.values / table.values[:1])), _limits(symptom, *limits))


def _all_gradients(run: RunView, symptom: Any) -> Curves:
    return Curves(_lines(run.table(signals.ALL_GRADIENTS)))


def _outputs(run: RunView, symptom: Any) -> Curves:
    """The smallest and the largest number that the loss gets."""
    found = {
        f"{how} output": run.table(signals.LOSS_INPUT_RANGE, how).select(["output"]) for how in ("largest", "smallest")
    }
    return Curves({name: Curve(table.steps, table.column("output")) for name, table in found.items()})


def _input(run: RunView, symptom: Any) -> Curves:
    mean, std = (run.table(one) for one in (signals.INPUT_MEAN, signals.INPUT_STD))
    lines = {
        "|mean|": Curve(mean.steps, np.abs(mean.values[:, 0])),
        "standard deviation": Curve(std.steps, std.values[:, 0]),
    }
    return Curves(lines, _limits(symptom, "size"))


def _classes(run: RunView, symptom: Any) -> Curves:
    counts = np.array(run.facts.target_counts, float)
    shares = counts[counts > 0] / counts.sum()
    overall = float(np.exp(-(shares * np.log(shares)).sum()))
    limits = {f"share = {symptom.share:g}, beyond one class": 1 + symptom.share * (overall - 1)}
    return Curves(_lines(run.table(signals.PERPLEXITY), ["target"]), limits)


def _alike(run: RunView, symptom: Any) -> Curves:
    tables = {"weights": signals.WEIGHT_ALIKE, "gradients": signals.GRADIENT_ALIKE}
    first = {
        name: {str(run.layer_of(one)): float(run.table(signal).column(one)[0]) for one in run.weights}
        for name, signal in tables.items()
    }
    return _over_layers(run, _limits(symptom, "spread"), **first)


def _in_half(run: RunView, symptom: Any) -> Curves:
    """Root mean squares of gradients."""
    table = run.table(signals.GRADIENT).select(run.weights)
    sizes = np.sqrt([run.size(name) for name in table.places])
    limit = {f"level = {symptom.level:g} of the smallest float16": symptom.level * SMALLEST_HALF}
    return Curves(_lines(Table(table.steps, table.places, table.values / sizes)), limit)


def _output_by_depth(run: RunView, symptom: Any) -> Curves:
    table = run.table(signals.OUTPUT)
    table = table.select(sorted(table.places, key=run.place))
    first = table.values[0]
    mean, std = (run.table(one).values[0, 0] for one in (signals.INPUT_MEAN, signals.INPUT_STD))
    before = float(np.hypot(mean, std))
    levels = {"input": before, **dict(zip(table.places, first.tolist(), strict=True))}
    return _over_layers(run, {f"growth = {symptom.growth:g} times the input": symptom.growth * before}, size=levels)


def _gradient_by_depth(run: RunView, symptom: Any) -> Curves:
    table = run.table(signals.GRADIENT).select(run.weights)
    ratios = nan_median((table.values / table.values[:, -1:])[-FEWEST:].T)
    levels = {str(run.layer_of(name)): ratio for name, ratio in zip(table.places, ratios.tolist(), strict=True)}
    return _over_layers(run, _limits(symptom, "ratio"), gradient=levels)


def _gradients_or_none(run: RunView, symptom: Any) -> Curves:
    """Where there is no gradient, 0."""
    table = run.table(signals.GRADIENT)
    nothing = Curve(table.steps, np.zeros(len(table.steps)))
    return Curves({**dict.fromkeys(run.weights, nothing), **_lines(table, run.weights)})


def _variances(run: RunView, symptom: Any) -> Curves:
    limits = {f"variance = {symptom.variance:g}": symptom.variance, f"1 / {symptom.variance:g}": 1 / symptom.variance}
    return Curves(_lines(run.table(signals.BATCH_NORM_VARIANCE)), limits)


def _gradient_cosines(run: RunView) -> Table:
    """Of weights; the first gradient has none before it."""
    table = run.table(signals.GRADIENT_COSINE).select(run.weights)
    return Table(table.steps[1:], table.places, table.values[1:])


def _steepest_turn(run: RunView, symptom: Any) -> Curves:
    """Of all weights the largest cosine."""
    table = _gradient_cosines(run)
    return Curves({"largest": Curve(table.steps, np.nanmax(table.values, axis=1))}, _limits(symptom, "cosine"))


def _cosines(run: RunView, symptom: Any) -> Curves:
    table = _gradient_cosines(run)
    limits = {f"cosine = {symptom.cosine:g}": symptom.cosine, "": -symptom.cosine}
    return Curves({"middle": Curve(table.steps, nan_median(table.values))}, limits)


def _first_loss(run: RunView, symptom: Any) -> dict[str, float]:
    even = math.log(run.facts.classes or 1)
    return {f"factor = {symptom.factor:g} times ln(classes)": symptom.factor * even, "ln(classes)": even}


def _guessing(run: RunView, symptom: Any) -> dict[str, float]:
    return {"guessing": run.trivial_loss}


def _deep(seed: int, **options: Any) -> Program:
    """Eight layers, with a last one that starts small."""
    return vectors(
        seed, (20, *[64] * 7, 10), he=True, change_model=lambda model: model[-1].weight.data.mul_(0.3), **options
    )


SIGMOIDS = Case(
    "eight sigmoid layers",
    "vanishing_gradient",
    lambda seed: _deep(seed, optimizer=sgd(0.05)),
    lambda program: _deep(program.seed, optimizer=sgd(0.05), act=nn.Sigmoid),
)
LARGE_WEIGHTS = Case(
    "eight layers with large weights",
    "exploding_signal",
    lambda seed: _deep(seed, optimizer=adam(1e-3)),
    lambda program: weighty(program, list(range(0, 16, 2)), 2.8),
)


class MeanOfBatch(nn.Module):
    """A mean over the wrong dimension: all samples become the same."""

    def forward(self, x: Tensor) -> Tensor:
        """The same for each sample."""
        return x.mean(0, keepdim=True).expand_as(x)


def _mix_samples(program: Program) -> None:
    program.model.insert(2, MeanOfBatch())


FOUR_EXPERTS = Case(
    "four experts", "expert_collapse", lambda seed: themes(seed, experts=True, depth=1), misroute, onset=60
)
MIXED_SAMPLES = Case("mixed samples", "rank_collapse", lambda seed: vectors(seed, act=nn.Tanh), _mix_samples)

PICTURES = {
    picture.symptom.id: picture
    for picture in (
        Picture(
            symptoms.NoUpdate,
            CASES["not-in-optimizer"],
            "all layers are in the optimizer",
            "layer 4 is not",
            "norm of weights / the first one",
            _since_the_start,
        ),
        Picture(
            symptoms.StaleGradient,
            CASES["no-zero-grad"],
            "with zero_grad()",
            "without zero_grad()",
            "norm of all gradients",
            _all_gradients,
            "log",
            "log",
        ),
        Picture(
            symptoms.LeftTrainMode,
            CASES["stays-in-eval-mode"],
            "train mode after each validation",
            "eval mode after the first",
            shows_validation=True,
        ),
        Picture(
            symptoms.OutputLossMismatch,
            CASES["two-softmaxes"],
            "logits into CrossEntropyLoss",
            "Softmax before CrossEntropyLoss",
            "what the loss gets",
            _outputs,
        ),
        Picture(
            symptoms.InputScale,
            CASES["raw-inputs-regression"],
            "inputs with mean 0, standard deviation 1",
            "the same in other units",
            "inputs",
            _input,
            "log",
            "log",
        ),
        Picture(
            symptoms.UnrepresentativeBatches,
            CASES["sorted"],
            "shuffled data",
            "data in the order of their classes",
            "variety of classes in a batch",
            _classes,
        ),
        Picture(
            symptoms.SymmetricUnits,
            CASES["symmetric"],
            "weights drawn at random",
            "three layers with equal weights",
            "difference of units at step 1",
            _alike,
        ),
        Picture(
            symptoms.Underflow,
            CASES["transformer-underflow"],
            "bfloat16",
            "float16 without a GradScaler",
            "root mean square of gradients",
            _in_half,
            WITH_ZERO,
        ),
        Picture(
            symptoms.SaturatedActivation,
            CASES["saturated"],
            "tanh layers",
            "the same with huge weights",
            "share of outputs at the bounds",
            _over_steps(signals.SATURATION, "share"),
        ),
        Picture(
            symptoms.ExplodingSignal,
            LARGE_WEIGHTS,
            "He initialisation",
            "weights 2.8 times as large",
            "size of outputs",
            _output_by_depth,
            "log",
            "log",
        ),
        Picture(
            symptoms.BadInitialLoss,
            CASES["large-head"],
            "the usual last layer",
            "its weights 60 times as large",
            levels=_first_loss,
            until=60,
        ),
        Picture(
            symptoms.OverRegularised,
            CASES["decay-high"],
            "weight decay 0.0001",
            "weight decay 0.3",
            "norm of weights / the first one",
            lambda run, symptom: _since_the_start(run, symptom, "shrunk"),
            "log",
        ),
        Picture(
            symptoms.StepTooLarge,
            CASES["rate-high-late"],
            "learning rate 0.001",
            "0.3 after step 120",
            "|update| / |weight|",
            _over_steps(signals.UPDATE_RATIO, "ratio", weights=True),
            "log",
            "log",
            until=200,
        ),
        Picture(
            symptoms.NotFinite,
            CASES["transformer-zero-temperature-late"],
            "a temperature of 1",
            "a temperature of 0 after step 60",
        ),
        Picture(
            symptoms.DeadUnits,
            CASES["dead-late"],
            "ReLU layers",
            "biases of -20 after step 100",
            "share of units that are dead",
            _over_steps(signals.DEATH, "share"),
        ),
        Picture(
            symptoms.ExpertCollapse,
            FOUR_EXPERTS,
            "four experts",
            "all tokens to one after step 60",
            "share of the less used half",
            _over_steps(signals.EXPERT_SHARE, "share"),
        ),
        Picture(
            symptoms.VanishingGradient,
            SIGMOIDS,
            "eight layers with ReLU",
            "the same with sigmoids",
            "gradient / that of the last layer",
            _gradient_by_depth,
            "log",
        ),
        Picture(
            symptoms.RankCollapse,
            MIXED_SAMPLES,
            "samples stay apart",
            "a mean over the wrong dimension",
            "how much samples differ",
            _over_steps(signals.LAYER_BATCH_SPREAD, "spread"),
            "log",
        ),
        Picture(
            symptoms.AttentionCollapse,
            CASES["transformer-attention-collapse"],
            "the usual queries and keys",
            "14 times as large",
            "entropy of attention",
            _over_steps(signals.ATTENTION_ENTROPY, "entropy"),
        ),
        Picture(
            symptoms.NoGradient,
            CASES["detached"],
            "gradients reach all layers",
            "detach() before the last layer",
            "gradient norm",
            _gradients_or_none,
        ),
        Picture(
            symptoms.LossSpike,
            CASES["spike"],
            "all batches are fine",
            "one batch is spoilt",
            loss_scale="log",
        ),
        Picture(
            symptoms.NoLabelSignal,
            CASES["mixed-up-labels"],
            "labels of these inputs",
            "labels of other inputs",
            levels=_guessing,
            shows_validation=True,
        ),
        Picture(
            symptoms.TrainEvalMismatch,
            CASES["slow-statistics"],
            "BatchNorm with momentum 0.1",
            "with momentum 0.0001",
            "batch variance / running one",
            _variances,
            "log",
            shows_validation=True,
        ),
        Picture(
            symptoms.Overfitting,
            CASES["overfitting"],
            "1,536 samples",
            "96 samples",
            shows_validation=True,
        ),
        Picture(
            symptoms.Oscillation,
            CASES["oscillating"],
            "learning rate 0.1",
            "learning rate 0.4",
            "cosine with the gradient before",
            _steepest_turn,
            loss_scale="log",
        ),
        Picture(
            symptoms.NoisyGradient,
            CASES["batch-of-one"],
            "128 samples in a batch",
            "one sample in a batch",
            "cosine with the gradient before",
            _cosines,
            until=80,
        ),
        Picture(
            symptoms.NoProgress,
            CASES["rate-low"],
            "learning rate 0.002",
            "learning rate 0.000001",
            "|update| / |weight|",
            _over_steps(signals.UPDATE_RATIO, "ratio", weights=True),
            "log",
        ),
    )
}
"""By symptom."""
