"""A training run that keeps a journal of what it did, for the oracle to do again in float64."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

LossOf = Callable[[nn.Module, torch.dtype], torch.Tensor]
"""The user's own code: the loss of a model for one batch, computed with that precision."""


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.detach().to("cpu", torch.float64, copy=True) for name, parameter in model.named_parameters()
    }


@dataclass
class Backward:
    loss_of: LossOf
    weights: dict[str, torch.Tensor]
    trainable: set[str]
    owned: set[str]
    scale: float


@dataclass
class ZeroGrad:
    owned: set[str]


@dataclass
class Clip:
    max_norm: float


@dataclass
class Step:
    optimizer: int
    owned: set[str]
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]
    skipped: bool
    called: bool
    """Whether the optimizer was called at all; a fused one skips a step by itself."""
    rates: dict[str, tuple[float, int]]
    """Learning rate and group of each parameter of the optimizer."""
    orphans: set[str]
    """Parameters that are in no optimizer."""
    beta: float | None
    """That of second moments, if the optimizer keeps some."""


class Tick:
    """Numbers are shown here."""


def sample_counts(inspector):
    """How many samples of each series there are in the tick that ends: no number shows a sample that came twice."""
    counts = {}
    for lens in inspector.lenses:
        kind = type(lens).__name__
        if kind == "OutputNorm":
            counts |= {("Output Norm", layer): kept.count for layer, kept in lens._preprocessors[0].value.items()}
        elif kind == "OutputActivation":
            for layer, kept in lens._preprocessors[0].value.items():
                counts |= {(rate, layer): one.count for rate, one in zip(RATES, kept, strict=True)}
        elif kind.endswith("Geometry"):
            for what, preprocessor in geometries(lens, kind):
                for layer, kept in preprocessor.value.items():
                    counts |= {(f"{what} {tag}", layer): one.count for tag, one in zip(GEOMETRY, kept, strict=True)}
        elif kind == "UpdateRatio":
            for view in lens._views:
                series = view.source.preprocessor.value
                counts |= {(view.tag, layer): kept.count for layer, kept in series.items()}
        elif kind == "Routing":
            for layer, kept in lens._preprocessors[0].value.items():
                counts |= {("Routing Entropy", layer): kept["entropy"].count}
                counts |= {("Dropped Tokens", layer): kept["dropped"].count}
        elif kind == "BatchNormStatistics":
            for layer, kept in lens._preprocessors[0].value.items():
                counts |= {(tag, layer): one.count for tag, one in zip(NORMS, kept, strict=True)}
    return {series: count for series, count in counts.items() if count}


RATES, GEOMETRY = ("activation_rate", "death_rate"), ("Norm", "Correlation")
NORMS = "BatchNorm Mean Shift", "BatchNorm Variance Ratio"


def geometries(lens, kind):
    if kind == "OutputGradientGeometry":
        return [("Output Gradient", lens._preprocessors[0])]
    what = kind.removeprefix("Parameter").removesuffix("Geometry")
    names = {name: "parameter" if name == "all" else name for name in lens._by_parameter}
    return [(f"{names[name]} {what}".title(), preprocessor) for name, preprocessor in lens._by_parameter.items()]


@dataclass
class Training:
    """What a loop uses: every verb trains, and is written down.

    ``root`` is the model, ``called`` what the loop calls: the same, or a compiled form of it.
    """

    root: nn.Module
    called: nn.Module
    optimizers: list[Any]
    scaler: Any = None
    autocast: torch.dtype | None = None
    precision: torch.dtype = torch.float32
    inspector: Any = None
    journal: list[Any] = field(default_factory=list)
    shown: list[list[Any]] = field(default_factory=list)
    counts: list[dict[Any, int]] = field(default_factory=list)
    graphs: int = 0
    breaks: int = 0

    def owned(self, index):
        ids = {id(p) for group in self.optimizers[index].param_groups for p in group["params"]}
        return {name for name, parameter in self.root.named_parameters() if id(parameter) in ids}

    def backward(self, loss_of):
        precision = (
            nullcontext()
            if self.autocast is None
            else torch.autocast(next(self.root.parameters()).device.type, self.autocast)
        )
        with precision:
            loss = loss_of(self.called, self.precision)
        trainable = {name for name, parameter in self.root.named_parameters() if parameter.requires_grad}
        owned = set().union(*map(self.owned, range(len(self.optimizers))))
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        self.journal.append(Backward(loss_of, weights_of(self.root), trainable, owned, scale))
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss

    def zero_grad(self, index=0):
        self.optimizers[index].zero_grad()
        self.journal.append(ZeroGrad(self.owned(index)))

    def forget_gradients(self):
        """The loop has dropped all gradients."""
        self.journal.append(ZeroGrad({name for name, _ in self.root.named_parameters()}))

    def clip(self, max_norm):
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizers[0])
        nn.utils.clip_grad_norm_(self.root.parameters(), max_norm)
        self.journal.append(Clip(max_norm))

    def groups(self, index):
        """Learning rate and number of the group of each parameter."""
        groups = enumerate(self.optimizers[index].param_groups)
        by_id = {id(p): (float(group["lr"]), number) for number, group in groups for p in group["params"]}
        return {name: by_id[id(p)] for name, p in self.root.named_parameters() if id(p) in by_id}

    def step(self, index=0, closure=None, *, overflows=False):
        optimizer, owned, before = self.optimizers[index], self.owned(index), weights_of(self.root)
        everybody = set().union(*map(self.owned, range(len(self.optimizers))))
        facts = {
            "called": not overflows or bool(optimizer.defaults.get("fused")),
            "rates": self.groups(index),
            "orphans": {name for name, _ in self.root.named_parameters()} - everybody,
            "beta": optimizer.defaults.get("betas", (0, None))[1],
        }
        if closure is not None:
            optimizer.step(closure)
        elif self.scaler is not None:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()
        self.journal.append(Step(index, owned, before, weights_of(self.root), overflows, **facts))

    def tick(self):
        self.journal.append(Tick())
        if self.inspector is not None:
            self.counts.append(sample_counts(self.inspector))
            self.inspector.tick_epoch()
            self.shown.append(self.inspector.records())
