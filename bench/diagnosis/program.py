"""A small training program: a plain loop whose parts can be spoilt, and put right again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Data = tuple[Tensor, Tensor]
Score = Callable[[Tensor, Tensor], float]
VALIDATIONS = 12
"""How often a run looks at its validation data."""


def accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of right classes."""
    return float((outputs.argmax(-1) == y).float().mean())


def binary(border: float) -> Score:
    """The share of right answers of one output that says yes above this border."""
    return lambda outputs, y: float(((outputs > border) == (y > 0.5)).float().mean())


def explained(outputs: Tensor, y: Tensor) -> float:
    """The share of variance explained, at least 0."""
    return float(1 - (outputs - y).double().pow(2).mean() / (y - y.mean(0)).double().pow(2).mean().clamp_min(1e-30))


@dataclass
class Program:
    """What is trained, on what, and how; nothing here knows that anybody watches.

    Args:
        model: what is trained.
        optimizer: one, or several that step together.
        loss_fn: of outputs and targets.
        train: inputs and targets.
        valid: the same, to look at now and then and to score.
        score: of outputs and targets of the validation data, greater is better, 1 is perfect.
        target: the score that a healthy run reaches.
        seed: of the order of samples, and of all that is random in training.
        steps: steps of the optimizer.
        batch: samples of a step.
        shuffled: whether samples come in a new order in each epoch.
        zeroes_gradients: whether gradients are forgotten after a step.
        returns_to_training: whether the model goes back to train mode after a validation.
        accumulate: backward passes per step.
        max_norm: gradients are clipped to this norm.
        schedule: a factor of the learning rates for each step.
        loss_scale: the loss is multiplied by it before backward.
        autocast: the type of low precision, if any.
        scaler: scales losses for low precision.
        alter: changes a batch: of step, inputs, targets.
        changes: what happens to this program before which step.
        step: does a step in another way than the usual one.
    """

    model: nn.Module
    optimizer: Optimizer | Sequence[Optimizer]
    loss_fn: nn.Module
    train: Data
    valid: Data
    score: Score
    target: float
    seed: int
    steps: int = 240
    batch: int = 64
    shuffled: bool = True
    zeroes_gradients: bool = True
    returns_to_training: bool = True
    accumulate: int = 1
    max_norm: float | None = None
    schedule: Callable[[int], float] | None = None
    loss_scale: float = 1.0
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    alter: Callable[[int, Tensor, Tensor], Data] | None = None
    changes: list[tuple[int, Callable[[Program], Any]]] = field(default_factory=list)
    step: Callable[[Program, int, Tensor, Tensor], None] | None = None

    @property
    def optimizers(self) -> list[Optimizer]:
        """All of them."""
        return [self.optimizer] if isinstance(self.optimizer, Optimizer) else list(self.optimizer)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def scale_rates(self, factor: float) -> None:
        """Multiply all learning rates."""
        for group in self.groups:
            group["lr"] *= factor

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of one batch; places in a sequence count like samples."""
        with nullcontext() if self.autocast is None else torch.autocast("cpu", self.autocast):
            outputs = self.model(x)
        if outputs.dim() == 3:
            outputs, y = outputs.flatten(0, 1), y.flatten()
        return self.loss_fn(outputs.to(y.dtype) if y.is_floating_point() else outputs, y)

    def run(self) -> Iterator[int]:
        """Train; yields the number of each step when it is done."""
        torch.manual_seed(self.seed)
        rates: list[float] = []
        batches = self._batches()
        for number in range(self.steps):
            for when, change in self.changes:
                if when == number:
                    change(self)
            if self.schedule is not None:
                now = self.schedule(number)
                rates = rates or [group["lr"] for group in self.groups]
                for group, rate in zip(self.groups, rates, strict=True):
                    group["lr"] = rate * now
            if self.returns_to_training or number == 0:
                self.model.train()
            x, y = next(batches)
            if self.alter is not None:
                x, y = self.alter(number, x, y)
            (self.step or Program.usual_step)(self, number, x, y)
            if (number + 1) % max(self.steps // VALIDATIONS, 1) == 0:
                self.validate()
            yield number

    def usual_step(self, number: int, x: Tensor, y: Tensor) -> None:
        """Forward, backward, step, zero."""
        for part_x, part_y in zip(x.chunk(self.accumulate), y.chunk(self.accumulate), strict=True):
            loss = self.loss(part_x, part_y) * (self.loss_scale / self.accumulate)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        for optimizer in self.optimizers:
            if self.max_norm is not None:
                if self.scaler is not None:
                    self.scaler.unscale_(optimizer)
                given = [p for group in optimizer.param_groups for p in group["params"]]
                torch.nn.utils.clip_grad_norm_(given, self.max_norm)
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        if self.zeroes_gradients:
            self.model.zero_grad()

    def validate(self) -> float:
        """The loss of the validation data, as people compute it."""
        self.model.eval()
        with torch.no_grad():
            return float(self.loss(*self.valid))

    def evaluate(self) -> float:
        """The score of the validation data between 0 and 1; 0 if it is not finite."""
        self.model.eval()
        with torch.no_grad():
            outputs, y = self.model(self.valid[0]), self.valid[1]
            found = self.score(outputs, y)
        return min(max(found, 0.0), 1.0) if math.isfinite(found) else 0.0

    def _batches(self) -> Iterator[Data]:
        x, y = self.train
        generator = torch.Generator().manual_seed(self.seed)
        size, kept = min(self.batch, len(x)), torch.empty(0, dtype=torch.long)
        while True:
            while len(kept) < size:
                new = torch.randperm(len(x), generator=generator) if self.shuffled else torch.arange(len(x))
                kept = torch.cat([kept, new])
            now, kept = kept[:size], kept[size:]
            yield x[now], y[now]
