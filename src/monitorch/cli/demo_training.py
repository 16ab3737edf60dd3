"""The training run of the demo: an ordinary loop, watched."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import lens
from ..lens.diagnosis_signals import DiagnosisSignals
from ..visualizer import Record
from ..watching import watch
from .demo_data import Corpus, random_windows
from .demo_model import CharacterTransformer

_CONTEXT, _BATCH, _VALIDATION_BATCH = 64, 16, 32
_LEARNING_RATE = 5e-3
_TICKS = 25


@dataclass(frozen=True)
class Outcome:
    """The result of a run: losses on held-out text, and the numbers of the last tick."""

    layers: list[str]
    first_loss: float
    last_loss: float
    records: list[Record]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: the model is small, so on a busy machine threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def train(corpus: Corpus, steps: int, seed: int, visualizer: Any, tell: Callable[[int, str], None]) -> Outcome:
    """Train a model, watched by every lens; ``tell`` is called with each step and its loss."""
    torch.manual_seed(seed)
    model = CharacterTransformer(len(corpus.vocabulary), _CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    loss_fn = nn.CrossEntropyLoss()
    held_out = random_windows(corpus.validation, _VALIDATION_BATCH, _CONTEXT)
    first_loss = _validate(model, loss_fn, held_out)

    lenses = [
        lens.LossMetrics(loss_fn=loss_fn),
        lens.GradientNorm(),
        lens.InputStatistics(),
        lens.TargetStatistics(loss_fn),
        lens.OutputActivation(),
        lens.OutputNorm(include=(nn.Embedding, nn.LayerNorm, nn.Linear)),
        lens.OutputGradientGeometry(),
        lens.ParameterGradientGeometry(parameters="weight"),
        lens.ParameterGradientActivation(parameters="weight"),
        lens.ParameterUpdateGeometry(optimizer, parameters="weight"),
        lens.UpdateRatio(optimizer, parameters="weight"),
        lens.ParameterNorm(parameters="weight"),
        lens.ParameterCond(log_scale=True),
        lens.SpectralNorm(),
        DiagnosisSignals(),
    ]
    last_loss, ticks = first_loss, min(_TICKS, steps)
    # ticks come only where the loop asks for them
    with watch(model, optimizer, lenses=lenses, every=1, tick_every=steps + 1, visualizer=visualizer) as watched:
        for step in range(1, steps + 1):
            text, following = random_windows(corpus.training, _BATCH, _CONTEXT)
            loss = loss_fn(model(text).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step * ticks % steps < ticks:  # evenly spread, and one at the end
                last_loss = _validate(model, loss_fn, held_out)
                watched.tick()
            tell(step, f"loss {loss.item():.3f}")
        return Outcome(watched.inspector.layers, first_loss, last_loss, watched.records())


@torch.no_grad()
def _validate(model: nn.Module, loss_fn: nn.Module, held_out: tuple[Tensor, Tensor]) -> float:
    text, following = held_out
    model.eval()
    loss = loss_fn(model(text).flatten(0, 1), following.flatten())
    model.train()
    return float(loss)
