"""Faults of perceptrons."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import data
from .case import Case, adam, sgd, vectors
from .faults import bias, decay, few, mixed_up, rates, rebuilt, set_, sort, without
from .models import mlp
from .program import Program, binary, explained


class Standardise(nn.Module):
    """Gives each sample mean 0 and standard deviation 1."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, h: Tensor) -> Tensor:
        """Divides by 0 where all features are the same and ``eps`` is 0."""
        return (h - h.mean(-1, keepdim=True)) / (h.std(-1, keepdim=True) + self.eps)


class Length(nn.Module):
    """Appends the length of each vector; without ``eps`` its gradient at the zero vector is not a number."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, h: Tensor) -> Tensor:
        """One feature more."""
        return torch.cat([h, (h.pow(2).sum(-1, keepdim=True) + self.eps).sqrt()], -1)


class Cut(nn.Module):
    """Lets no gradient through."""

    def forward(self, h: Tensor) -> Tensor:
        """The same, detached."""
        return h.detach()


def with_blanks(seed: int, *layers: nn.Module) -> Program:
    """Some samples are blank, and layers without bias leave them so; these layers follow."""
    torch.manual_seed(seed)
    x, y = data.clusters(seed)
    model = mlp((20, 64, 64, 64))
    for layer in model[::2]:
        layer.bias = None
    return vectors(seed, model=model.extend(layers), made=(x * (torch.rand(len(x), 1) > 0.03), y), optimizer=adam(3e-3))


def standardised(seed: int) -> Program:
    """With a norm in the middle."""
    torch.manual_seed(seed)
    return with_blanks(seed, Standardise(), *mlp((64, 64, 10)))


def with_length(seed: int) -> Program:
    """With lengths in the middle."""
    torch.manual_seed(seed)
    return with_blanks(seed, Length(), *mlp((65, 64, 10)))


def half(seed: int) -> Program:
    """Forward passes in half precision, the loss as sums over a large reference count."""
    return vectors(seed, optimizer=sgd(3e4), loss_scale=3e-6, autocast=torch.bfloat16, steps=200)


def weighty(p: Program, layers: list[int], factor: float) -> None:
    """Multiply weights."""
    with torch.no_grad():
        for layer in layers:
            p.model[layer].weight.mul_(factor)


def constant(p: Program, layers: list[int], value: float) -> None:
    """Give all weights of some layers the same value."""
    for layer in layers:
        nn.init.constant_(p.model[layer].weight, value)
        nn.init.zeros_(p.model[layer].bias)


def spoil_batch(p: Program, at: int) -> None:
    """One batch with huge inputs and wrong targets."""
    p.alter = lambda step, x, y: (x * 20, (y + 3) % 10) if step == at else (x, y)


def rare(p: Program) -> None:
    """Nearly all samples are of one class."""
    x, y = p.train
    kept = (y == 0) | (torch.arange(len(y)) % 60 == 0)
    p.train = (x[kept], y[kept])


def scale_inputs(p: Program, factor: float, shift: float, features: int | None = None) -> None:
    """Raw features, of training and validation."""
    for x, _ in (p.train, p.valid):
        x[:, :features] = x[:, :features] * factor + shift


def append(p: Program, layer: nn.Module) -> None:
    """One more layer at the end."""
    p.model.append(layer)


def cut(p: Program) -> None:
    """No gradient below the last layer."""
    p.model.insert(6, Cut())


def curves(seed: int, **options: Any) -> Program:
    """Regression."""
    options = {"made": data.curve(seed), "loss": nn.MSELoss(), "optimizer": adam(3e-3), "target": 0.8} | options
    return vectors(seed, (8, 64, 64, 1), score=explained, **options)


def normed(seed: int) -> Program:
    """With batch norm."""
    return vectors(seed, norm=nn.BatchNorm1d)


def slow_statistics(p: Program) -> None:
    """Running statistics that hardly move."""
    for module in p.model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 1e-4


def deep_sigmoid(p: Program) -> Program:
    """Eight sigmoid layers instead of the healthy model."""
    return vectors(p.seed, (20, *[32] * 8, 10), act=nn.Sigmoid)


def deep_tanh(p: Program) -> None:
    """Small weights in all layers but the last."""
    weighty(p, list(range(0, 18, 2)), 0.2)


CASES = [
    Case("nonfinite", "nonfinite", standardised, lambda p: setattr(p.model[5], "eps", 0.0), layers=("5",)),
    Case("nonfinite-backward", "nonfinite", with_length, lambda p: setattr(p.model[5], "eps", 0.0), layers=("5",)),
    Case("underflow", "underflow", half, set_(autocast=torch.float16), cure=("grad_scaler", {})),
    Case(
        "vanishing-sigmoid",
        "vanishing_gradient",
        lambda seed: vectors(seed, (20, *[32] * 8, 10), norm=nn.BatchNorm1d),
        deep_sigmoid,
        cure=("replace_activation", {"by": "ReLU"}),
    ),
    Case(
        "vanishing-tanh",
        "vanishing_gradient",
        lambda seed: vectors(seed, (20, *[32] * 9, 10), act=nn.Tanh),
        deep_tanh,
        synonyms=("rank_collapse",),
        cure=("reinit", {"gain": 1.0}),
    ),
    Case(
        "exploding",
        "exploding_signal",
        lambda seed: vectors(seed, (20, *[64] * 7, 10), he=True, optimizer=adam(1e-3)),
        lambda p: weighty(p, list(range(0, 16, 2)), 4 / 2**0.5),
        cure=("reinit", {}),
    ),
    Case(
        "dead",
        "dead_units",
        lambda seed: vectors(seed, (20, 64, 64, 64, 64, 10)),
        lambda p: bias(p.model[2], -6.0),
        layers=("2", "3"),
        cure=("reinit", {"layers": ["2"]}),
    ),
    Case(
        "dead-late",
        "dead_units",
        lambda seed: vectors(seed, (20, 48, 48, 48, 10), optimizer=sgd(0.1, 0.9), steps=300),
        lambda p: bias(p.model[4], -20.0),
        layers=("4", "5"),
        onset=100,
        cure=("reinit", {"layers": ["4"]}),
    ),
    Case(
        "saturated",
        "saturated_activation",
        lambda seed: vectors(seed, (20, *[64] * 5, 10), act=nn.Tanh, optimizer=adam(1e-3)),
        lambda p: weighty(p, [2, 4, 6, 8], 200.0),
        layers=("2", "3"),
        cure=("reinit", {}),
    ),
    Case(
        "saturated-late",
        "saturated_activation",
        lambda seed: vectors(seed, (20, 64, 64, 64, 10), act=nn.Tanh, optimizer=adam(1e-3), steps=300),
        lambda p: weighty(p, [2, 4], 300.0),
        layers=("2", "3"),
        onset=100,
        cure=("reinit", {}),
    ),
    Case(
        "detached",
        "no_gradient",
        vectors,
        cut,
        layers=("0", "2", "4", "6"),
    ),
    Case(
        "not-in-optimizer",
        "no_update",
        lambda seed: vectors(seed, (20, 64, 64, 64, 64, 10)),
        lambda p: without(p, p.model[4]),
        layers=("4",),
        cure=("add_to_optimizer", {"parameters": ["4.weight", "4.bias"]}),
    ),
    Case(
        "rebuilt-late",
        "no_update",
        lambda seed: vectors(seed, (20, 64, 64, 10), optimizer=sgd(0.05, 0.9)),
        lambda p: rebuilt(p, p.model[2]),
        layers=("2",),
        onset=90,
        cure=("add_to_optimizer", {"parameters": ["2.weight", "2.bias"]}),
    ),
    Case(
        "no-zero-grad",
        "stale_gradient",
        lambda seed: vectors(seed, optimizer=sgd(0.05)),
        set_(zeroes_gradients=False),
        cure=("zero_grad", {}),
    ),
    Case("rate-high", "step_too_large", vectors, rates(150), cure=("scale_lr", {"factor": 0.01})),
    Case(
        "diverging",
        "step_too_large",
        lambda seed: curves(seed, optimizer=sgd(0.1)),
        rates(10),
        synonyms=("nonfinite", "exploding_signal"),
        cure=("scale_lr", {"factor": 0.1}),
    ),
    Case(
        "rate-high-late",
        "step_too_large",
        lambda seed: vectors(seed, optimizer=adam(1e-3), steps=300),
        rates(300),
        onset=120,
        cure=("scale_lr", {"factor": 0.01}),
    ),
    Case("rate-low", "no_progress", vectors, rates(5e-4), cure=("scale_lr", {"factor": 1000})),
    Case(
        "decays-too-soon",
        "no_progress",
        lambda seed: vectors(seed, optimizer=sgd(0.02, 0.9)),
        rates(1e-6),
        onset=8,
        cure=("scale_lr", {"factor": 1e6}),
    ),
    Case("spike", "loss_spike", lambda seed: vectors(seed, steps=300), lambda p: spoil_batch(p, 200), onset=200),
    Case(
        "oscillating",
        "oscillation",
        lambda seed: curves(seed, act=nn.Tanh, optimizer=sgd(0.1), batch=10**6, target=0.7),
        rates(4),
        synonyms=("step_too_large",),
        cure=("scale_lr", {"factor": 0.2}),
    ),
    Case(
        "large-head", "bad_initial_loss", vectors, lambda p: weighty(p, [6], 60.0), layers=("6",), cure=("reinit", {})
    ),
    Case(
        "symmetric",
        "symmetric_units",
        lambda seed: vectors(seed, (20, 64, 64, 64, 64, 10)),
        lambda p: constant(p, [2, 4, 6], 0.02),
        layers=("2", "3", "4", "6"),
        cure=("reinit", {}),
    ),
    Case(
        "raw-inputs",
        "input_scale",
        lambda seed: vectors(seed, optimizer=sgd(0.1)),
        lambda p: scale_inputs(p, 300.0, 500.0, 4),
        cure=("standardise_input", {}),
    ),
    Case(
        "raw-inputs-regression",
        "input_scale",
        lambda seed: curves(seed),
        lambda p: scale_inputs(p, 40.0, 1500.0),
        cure=("standardise_input", {}),
    ),
    Case(
        "overfitting",
        "overfitting",
        lambda seed: vectors(seed, made=data.clusters(seed, noise=2.0), target=0.7, steps=300),
        few,
    ),
    Case(
        "mixed-up-labels",
        "no_label_signal",
        lambda seed: vectors(seed, made=data.clusters(seed, 900), steps=300),
        mixed_up,
    ),
    Case(
        "two-softmaxes",
        "output_loss_mismatch",
        lambda seed: vectors(seed, optimizer=sgd(0.1)),
        lambda p: append(p, nn.Softmax(-1)),
        layers=("6", "7"),
        cure=("drop_output_activation", {}),
    ),
    Case(
        "relu-head",
        "output_loss_mismatch",
        curves,
        lambda p: append(p, nn.ReLU()),
        synonyms=("dead_units",),
        layers=("4", "5"),
        cure=("drop_output_activation", {}),
    ),
    Case(
        "sigmoid-twice",
        "output_loss_mismatch",
        lambda seed: vectors(
            seed,
            (20, 32, 32, 1),
            made=data.halves(seed),
            loss=nn.BCEWithLogitsLoss(),
            score=binary(0.5),
            optimizer=adam(3e-3),
        ),
        lambda p: append(p, nn.Sigmoid()),
        layers=("4", "5"),
        cure=("drop_output_activation", {}),
    ),
    Case("stays-in-eval-mode", "left_train_mode", normed, set_(returns_to_training=False)),
    Case("slow-statistics", "train_eval_mismatch", normed, slow_statistics, layers=("1", "4", "7")),
    Case(
        "decay-high",
        "over_regularised",
        lambda seed: vectors(seed, optimizer=sgd(0.1, 0.9, weight_decay=1e-4)),
        lambda p: decay(p, 0.3),
        cure=("scale_weight_decay", {"factor": 1e-3}),
    ),
    Case("batch-of-one", "gradient_noise", lambda seed: vectors(seed, batch=128), set_(batch=1)),
    Case(
        "sorted",
        "unrepresentative_batches",
        lambda seed: vectors(seed, optimizer=sgd(0.1, 0.9)),
        sort,
        cure=("shuffle", {}),
    ),
    Case("rare-classes", "unrepresentative_batches", vectors, rare),
]
