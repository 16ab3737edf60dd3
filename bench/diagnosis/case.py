"""What a case is, and the two programs that most cases spoil."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import data
from .faults import Fault
from .models import Transformer, mlp
from .program import Data, Program, Score, accuracy

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer | Sequence[Optimizer]]


def adam(lr: float = 2e-3, **options: Any) -> MakeOptimizer:
    """Adam."""
    return partial(torch.optim.Adam, lr=lr, **options)


def adamw(lr: float = 2e-3, weight_decay: float = 0.01) -> MakeOptimizer:
    """AdamW."""
    return partial(torch.optim.AdamW, lr=lr, weight_decay=weight_decay)


def sgd(lr: float = 0.1, momentum: float = 0.0, **options: Any) -> MakeOptimizer:
    """SGD."""
    return partial(torch.optim.SGD, lr=lr, momentum=momentum, **options)


@dataclass(frozen=True)
class Case:
    """A healthy program and how it is spoilt: the truth that findings are scored against.

    Args:
        name: of the case.
        symptom: the root cause.
        base: makes the healthy program, which is the twin, from a seed.
        fault: spoils the program, before step ``onset``; it may return another one instead.
        synonyms: symptoms that are right as well.
        layers: modules that are right to name; empty if the fault is of the whole program.
        onset: the step from which on it is there.
        cure: an action with its arguments that heals it; None if no action of the vocabulary does.
        family: MLP, Transformer or a program of somebody.
    """

    name: str
    symptom: str
    base: Callable[[int], Program]
    fault: Fault = field(repr=False)
    synonyms: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    onset: int = 0
    cure: tuple[str, dict[str, Any]] | None = None
    family: str = "MLP"

    def build(self, seed: int, faulty: bool = True) -> Program:
        """The program, ready to run."""
        program = self.base(seed)
        if not faulty:
            return program
        if self.onset:
            program.changes.append((self.onset, self.fault))
            return program
        return self.fault(program) or program


@dataclass(frozen=True)
class Healthy:
    """A program in which nothing is wrong, however it looks."""

    name: str
    base: Callable[[int], Program]

    def build(self, seed: int, faulty: bool = False) -> Program:
        """The program, ready to run; there is no faulty one."""
        return self.base(seed)


def vectors(
    seed: int,
    widths: Sequence[int] = (20, 64, 64, 64, 10),
    *,
    made: Data | None = None,
    model: nn.Module | None = None,
    optimizer: MakeOptimizer | None = None,
    loss: nn.Module | None = None,
    score: Score = accuracy,
    target: float = 0.9,
    act: Callable[[], nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
    dropout: float = 0.0,
    he: bool = False,
    change_model: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Program:
    """A perceptron that sorts points, unless told otherwise."""
    torch.manual_seed(seed)
    train, valid = data.split(data.clusters(seed) if made is None else made)
    model = mlp(widths, act, norm, dropout, he) if model is None else model
    if change_model:
        change_model(model)
    trained = (optimizer or adam())(p for p in model.parameters() if p.requires_grad)
    return Program(model, trained, loss or nn.CrossEntropyLoss(), train, valid, score, target, seed, **options)


def tokens(
    seed: int,
    *,
    made: Data | None = None,
    kinds: int = 12,
    outputs: int = 12,
    optimizer: MakeOptimizer | None = None,
    loss: nn.Module | None = None,
    score: Score = accuracy,
    target: float = 0.9,
    steps: int = 160,
    batch: int = 32,
    change_model: Callable[[Any], Any] | None = None,
    program: dict[str, Any] | None = None,
    **options: Any,
) -> Program:
    """A Transformer that turns sequences round, unless told otherwise."""
    torch.manual_seed(seed)
    train, valid = data.split(data.reversed_tokens(seed) if made is None else made, 0.1)
    model = Transformer(kinds, outputs, train[0].shape[1], **options)
    if change_model:
        change_model(model)
    trained = (optimizer or adam(4e-3))(p for p in model.parameters() if p.requires_grad)
    rest = {"steps": steps, "batch": batch, **(program or {})}
    return Program(model, trained, loss or nn.CrossEntropyLoss(), train, valid, score, target, seed, **rest)
