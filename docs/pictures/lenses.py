"""What each lens shows of a healthy and of a sick run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from bench.diagnosis.case import Case
from bench.diagnosis.cases import CASES
from monitorch import lens
from monitorch.lens import AbstractLens
from monitorch.store import Run, open_run

from .drawing import Curve, Curves, draw
from .recipes import FOUR_EXPERTS, LARGE_WEIGHTS, SIGMOIDS
from .runs import Seen, pair

PAGES = Path(__file__).parents[1] / "gallery" / "lenses"


def everything(model: nn.Module) -> list[str | AbstractLens]:
    """All lenses, also those that nobody gets without asking."""
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d)]
    drift = [lens.Attribute(f"{name}.running_mean", difference=True) for name in norms[:1]]
    return ["all", lens.ParameterGradientActivation(), lens.ParameterCond(), *drift]


@dataclass(frozen=True)
class LensPicture:
    """What the picture of a lens shows.

    Args:
        case: the program.
        healthy: what the healthy one does, in a few words.
        sick: what the other one does.
        shows: what the numbers are.
        lines: the numbers of a stored run.
        scale: of these numbers.
        loss_scale: of losses.
        shows_validation: whether the validation loss belongs to it.
    """

    case: Case
    healthy: str
    sick: str
    shows: str
    lines: Callable[[Run], dict[str, Curve]] | None
    scale: str = "linear"
    loss_scale: str = "linear"
    shows_validation: bool = False
    until: int = 0

    def look(self, seen: Seen) -> Curves | None:
        """The lines, from the store."""
        if self.lines is None:
            return None
        with open_run(seen.path) as run:
            return Curves(self.lines(run))

    def levels_of_loss(self, seen: Seen) -> dict[str, float]:
        """None."""
        return {}


def _layers(shown: str, statistic: str, *ends: str) -> Callable[[Run], dict[str, Curve]]:
    """A statistic of all layers, or of those whose names end so."""

    def lines(run: Run) -> dict[str, Curve]:
        layers = [name for name in run.lenses[shown].layers if not ends or name.endswith(ends)]
        found = {name: run.series(shown, statistic, name) for name in layers}
        return {name: Curve(one.axis.step, one.values) for name, one in found.items() if len(one.values)}

    return lines


def statistics_of(shown: str, layer: str, **statistics: str) -> Callable[[Run], dict[str, Curve]]:
    """Several statistics of one layer."""

    def lines(run: Run) -> dict[str, Curve]:
        found = {name.replace("_", " "): run.series(shown, one, layer) for name, one in statistics.items()}
        return {name: Curve(one.axis.step, one.values) for name, one in found.items() if len(one.values)}

    return lines


_QUANTILES = {f"{share} %": f"Output Distribution/q{share:02}" for share in (1, 5, 25, 50, 75, 95, 99)}
_RATE = "learning rate 0.001", "0.3 after step 120"
_DEAD = "ReLU layers", "biases of -20 after step 100"

PICTURES = {
    "loss_metrics": LensPicture(CASES["overfitting"], "1,536 samples", "96 samples", "", None, shows_validation=True),
    "gradient_norm": LensPicture(
        CASES["rate-high-late"],
        *_RATE,
        "norm of all gradients",
        statistics_of("run", "run", gradient_norm="Gradient Norm/gradient_norm mean"),
        "log",
        "log",
    ),
    "output_norm": LensPicture(
        LARGE_WEIGHTS,
        "He initialisation",
        "weights 2.8 times as large",
        "norm of outputs",
        _layers("OutputNorm", "Output Norm/mean"),
        "log",
        "log",
    ),
    "output_activation": LensPicture(
        CASES["dead-late"],
        *_DEAD,
        "share of active outputs",
        _layers("OutputActivation", "Output Activations/activation_rate"),
    ),
    "activation_health": LensPicture(
        CASES["dead-late"],
        *_DEAD,
        "share of zeros",
        _layers("ActivationHealth", "Activation Zeros/mean"),
    ),
    "output_gradient_geometry": LensPicture(
        SIGMOIDS,
        "eight layers with ReLU",
        "the same with sigmoids",
        "norm of output gradients",
        _layers("OutputGradientGeometry", "Output Gradient Norm/mean"),
        "log",
    ),
    "parameter_gradient_geometry": LensPicture(
        CASES["oscillating"],
        "learning rate 0.1",
        "learning rate 0.4",
        "cosine with the gradient before",
        _layers("ParameterGradientGeometry", "Parameter Gradient Correlation/mean", ".weight"),
        loss_scale="log",
    ),
    "parameter_gradient_activation": LensPicture(
        CASES["dead-late"],
        *_DEAD,
        "share that gets a gradient",
        _layers("ParameterGradientActivation", "Weight Gradient Activation/activation_rate"),
    ),
    "parameter_update_geometry": LensPicture(
        CASES["rate-high-late"],
        *_RATE,
        "norm of updates",
        _layers("ParameterUpdateGeometry", "Parameter Update Norm/mean", ".weight"),
        "log",
        "log",
        until=200,
    ),
    "update_ratio": LensPicture(
        CASES["rate-low"],
        "learning rate 0.002",
        "learning rate 0.000001",
        "|update| / |weight|",
        _layers("UpdateRatio", "Parameter Update Ratio/mean", ".weight"),
        "log",
    ),
    "parameter_norm": LensPicture(
        CASES["decay-high"],
        "weight decay 0.0001",
        "weight decay 0.3",
        "norm of weights",
        _layers("ParameterNorm", "Parameter Norm/mean", ".weight"),
        "log",
    ),
    "parameter_cond": LensPicture(
        CASES["rate-high-late"],
        *_RATE,
        "condition number",
        _layers("ParameterCond", "Weight Cond/mean"),
        "log",
        "log",
    ),
    "spectral_norm": LensPicture(
        CASES["rate-high-late"],
        *_RATE,
        "largest singular value",
        _layers("SpectralNorm", "Weight Spectral Norm/mean"),
        "log",
        "log",
    ),
    "distribution": LensPicture(
        CASES["saturated"],
        "tanh layers",
        "the same with huge weights",
        "1 % to 99 % of outputs of layer 2",
        statistics_of("Distribution of outputs", "2", **_QUANTILES),
        "symlog",
    ),
    "attention": LensPicture(
        CASES["transformer-attention-collapse"],
        "the usual queries and keys",
        "14 times as large",
        "largest logit",
        _layers("Attention", "Attention Largest Logit/max"),
        "log",
    ),
    "routing": LensPicture(
        FOUR_EXPERTS,
        "four experts",
        "all tokens to one after step 60",
        "share of each expert",
        statistics_of(
            "Routing", "blocks.0.ffn.router", **{f"expert {one}": f"Expert Shares/expert {one}" for one in range(4)}
        ),
    ),
    "batch_norm_statistics": LensPicture(
        CASES["slow-statistics"],
        "BatchNorm with momentum 0.1",
        "with momentum 0.0001",
        "mean shift",
        _layers("BatchNormStatistics", "BatchNorm Mean Shift/mean"),
        shows_validation=True,
    ),
    "attribute": LensPicture(
        CASES["slow-statistics"],
        "BatchNorm with momentum 0.1",
        "with momentum 0.0001",
        "change of running mean",
        _layers("Attribute", "Running Mean Difference/mean"),
        "log",
        shows_validation=True,
    ),
    "input_statistics": LensPicture(
        CASES["raw-inputs-regression"],
        "inputs with mean 0, standard deviation 1",
        "the same in other units",
        "inputs",
        statistics_of("InputStatistics", "input", mean="Input Mean/mean", standard_deviation="Input Std/mean"),
        "symlog",
        "log",
    ),
    "target_statistics": LensPicture(
        CASES["sorted"],
        "shuffled data",
        "data in the order of their classes",
        "class perplexity of a batch",
        _layers("TargetStatistics", "Class Perplexity Of Batch/mean"),
    ),
    "parameter_facts": LensPicture(
        CASES["no-zero-grad"],
        "with zero_grad()",
        "without zero_grad()",
        "share: gradient was empty",
        _layers("ParameterFacts", "Gradient Was Empty/mean", ".weight"),
        loss_scale="log",
    ),
    "signal_to_noise": LensPicture(
        CASES["spike"],
        "all batches are fine",
        "one batch is spoilt",
        "Adam gradient RMS",
        _layers("SignalToNoise", "Adam Gradient RMS/mean", ".weight"),
        "log",
        "log",
    ),
    "non_finite": LensPicture(
        CASES["transformer-zero-temperature-late"],
        "a temperature of 1",
        "a temperature of 0 after step 60",
        "NaN or infinite gradients",
        _layers("NonFinite", "Non-Finite Gradients/max"),
        "symlog",
    ),
}
"""By the page of the lens."""


def make(name: str, runs: Path, pages: Path = PAGES) -> None:
    """The picture of a lens, and on its page what is in it, in words."""
    picture = PICTURES[name]
    found = pair(picture.case.symptom, picture.case, runs / "lenses" / picture.case.name, everything)
    (pages / "pictures").mkdir(exist_ok=True)
    (pages / "pictures" / f"{name}.svg").write_text(draw(picture, found), encoding="utf-8")
    page = pages / f"{name}.md"
    page.write_text(renew(page.read_text(encoding="utf-8"), name), encoding="utf-8")


def renew(page: str, name: str, pictures: Mapping[str, LensPicture] = PICTURES) -> str:
    """The page with what its picture shows, in words."""
    words = f"![Healthy: {pictures[name].healthy}. Sick: {pictures[name].sick}.](pictures/{name}.svg)"
    return re.sub(rf"!\[.*?\]\(pictures/{name}\.svg\)", lambda _: words, page, count=1, flags=re.DOTALL)
