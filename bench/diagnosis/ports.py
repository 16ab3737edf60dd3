"""Programs of others, rebuilt from what is known of them: Stack Overflow questions and models of a study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import data
from .case import Case, adam, sgd
from .faults import Fault
from .models import mlp
from .program import Data, Program, accuracy, binary, explained


class Exp(nn.Module):
    """An activation that nobody should use."""

    def forward(self, x: Tensor) -> Tensor:
        """The exponential."""
        return x.exp()


class CrossEntropyOfShares(nn.Module):
    """Binary cross-entropy that keeps away from 0 and 1, and that takes anything, as Keras has it."""

    def forward(self, p: Tensor, y: Tensor) -> Tensor:
        """The mean."""
        p = p.clamp(1e-7, 1 - 1e-7)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


def circle(seed: int, act: type[nn.Module] = nn.Tanh, depth: int = 5) -> Program:
    """Narrow layers that tell an inner from an outer circle; uniform He init."""
    torch.manual_seed(seed)
    train, valid = data.split(data.circles(seed), 0.3)
    model = mlp((2, *[5] * depth, 1), act).append(nn.Sigmoid())
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    made = adam(6e-3)(model.parameters())
    return Program(model, made, CrossEntropyOfShares(), train, valid, binary(0.5), 0.7, seed, steps=500, batch=128)


def xor(seed: int, healthy: bool = True) -> Program:
    """Six rows."""
    torch.manual_seed(seed)
    x = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [0, 1], [1, 0]]).float()
    y = torch.tensor([[0], [1], [1], [0], [1], [1]]).float()
    if healthy:
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1), nn.Sigmoid())
        made = adam(0.02)(model.parameters())
    else:
        model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1))
        model.append(nn.Softmax(-1))
        for layer in (0, 2, 4):
            nn.init.uniform_(model[layer].weight, -0.05, 0.05)
        made = sgd(1e-3, 0.9)(model.parameters())
    return Program(model, made, nn.MSELoss(), (x, y), (x, y), binary(0.5), 0.99, seed, steps=400, batch=6)


def digits(seed: int) -> tuple[Data, Data]:
    """Grey values of 784 pixels, of ten classes."""
    x, y = data.images(seed, count=1500, side=28)
    return data.split((x.flatten(1), y))


def network(seed: int, healthy: bool = True) -> Program:
    """The first network of a well known book, with all its activations forgotten."""
    torch.manual_seed(seed)
    train, valid = digits(seed)
    if healthy:
        model, loss = nn.Sequential(nn.Linear(784, 30), nn.Sigmoid(), nn.Linear(30, 10)), nn.CrossEntropyLoss()
        made = sgd(0.5)(model.parameters())
    else:
        model, loss = nn.Sequential(nn.Linear(784, 30), nn.Linear(30, 10)), nn.MSELoss()
        train, valid = ((x, nn.functional.one_hot(y, 10).float()) for x, y in (train, valid))
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        made = sgd(3.0)(model.parameters())

    def right(outputs: Tensor, y: Tensor) -> float:
        return accuracy(outputs, y.argmax(-1) if y.dim() > 1 else y)

    return Program(model, made, loss, train, valid, right, 0.9, seed, steps=300, batch=10)


def fourth_power(seed: int, healthy: bool = True) -> Program:
    """A curve over whole numbers between -100 and 100."""
    torch.manual_seed(seed)
    x = torch.arange(-100.0, 100.0)[:, None]
    y = x**4
    if healthy:
        x, y = ((v - v.mean()) / v.std() for v in (x, y))
    model = nn.Sequential(nn.Linear(1, 50), nn.Sigmoid(), nn.Linear(50, 50), nn.ELU(), nn.Linear(50, 1))
    made = adam(1e-2)(model.parameters())
    return Program(model, made, nn.MSELoss(), (x, y), (x, y), explained, 0.95, seed, steps=400, batch=200)


def one_unit(seed: int, healthy: bool = True) -> Program:
    """Five features, yes or no."""
    torch.manual_seed(seed)
    train, valid = data.split(data.halves(seed, count=1000, features=5, noise=0.5))
    model = mlp((5, 60, 50, 1)).append(nn.Sigmoid() if healthy else nn.Softmax(-1))
    made = adam(2e-3)(model.parameters())
    return Program(model, made, nn.BCELoss(), train, valid, binary(0.5), 0.85, seed, steps=300, batch=32)


def spoilt(make: Callable[..., Program], **options: Any) -> Fault:
    """The same program as somebody wrote it."""
    return lambda p: make(p.seed, **options)


CASES = [
    Case(
        "deep-sigmoid-circle",
        "vanishing_gradient",
        circle,
        spoilt(circle, act=nn.Sigmoid, depth=8),
        synonyms=("no_progress",),
        cure=("replace_activation", {"layers": [str(layer) for layer in range(1, 16, 2)], "by": "Tanh"}),
    ),
    Case(
        "exp-circle",
        "nonfinite",
        circle,
        spoilt(circle, act=Exp, depth=9),
        synonyms=("exploding_signal",),
        layers=tuple(map(str, range(4, 18))),
        cure=("replace_activation", {"layers": [str(layer) for layer in range(1, 18, 2)], "by": "ELU"}),
    ),
    Case(
        "xor-softmax",
        "output_loss_mismatch",
        xor,
        spoilt(xor, healthy=False),
        synonyms=("no_gradient",),
        layers=("4", "5"),
    ),
    Case(
        "no-activations",
        "step_too_large",
        network,
        spoilt(network, healthy=False),
        synonyms=("nonfinite", "exploding_signal", "bad_initial_loss"),
    ),
    Case(
        "fourth-power",
        "input_scale",
        fourth_power,
        spoilt(fourth_power, healthy=False),
        synonyms=("no_progress", "output_loss_mismatch", "exploding_signal"),
    ),
    Case(
        "softmax-of-one",
        "output_loss_mismatch",
        one_unit,
        spoilt(one_unit, healthy=False),
        synonyms=("no_gradient",),
        layers=("4", "5"),
        cure=("replace_activation", {"layers": ["5"], "by": "Sigmoid"}),
    ),
]
CASES = [Case(**{**vars(case), "family": "port", "name": f"port-{case.name}"}) for case in CASES]
