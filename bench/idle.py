"""What is left in idle steps: the hooks that notice a pass, take the loss, and count the step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from . import counters
from .windows import quartiles

WIDTH, BATCH = 32, 16
LAYERS = (2, 20)
ROUNDS = 4000
"""Steps of each model; they take turns, so that all have the same conditions."""

TURN, LEFT_OUT = 50, 10
"""Steps of a turn, and how many of them find in the caches what another model has left there. A user trains one model:
its steps find there what it has left itself, which makes bare ones faster than steps of models that alternate."""

WARM_UP = 600
"""Steps after which all that is observed at first is over."""

RARELY = {"budget": 1e-6, "head_start": 0.05, "tick_every": 10**9, "visualizer": "dummy"}
"""Options of ``monitorch.watch`` with which almost all steps are idle, and no tick comes."""


def measure(device: str, layers: Sequence[int] = LAYERS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One row for each number of layers: microseconds that a step takes longer than a bare one.

    Compared are lower quartiles: what else the machine does makes steps only longer.
    """
    return [_measure(device, number, rounds) for number in layers]


def _measure(device: str, layers: int, rounds: int) -> dict[str, Any]:
    trained = {kind: Training(device, layers, kind) for kind in ("bare", "empty", "idle", "loss")}
    took: dict[str, list[float]] = {kind: [] for kind in trained}
    order = list(trained)
    for kind in order:
        for _ in range(min(WARM_UP, rounds)):
            trained[kind].step()
    for number in range(max(1, rounds // TURN)):
        order.append(order.pop(number % len(order)))  # none always follows the same one
        for kind in order:
            took[kind] += [trained[kind].step() for _ in range(TURN)][LEFT_OUT:]
    usual = {kind: quartiles(seconds)[0] * 1e6 for kind, seconds in took.items()}
    for training in trained.values():
        training.close()
    return {
        "layers": layers,
        "bare_us": usual["bare"],
        "empty_us": usual["empty"] - usual["bare"],
        "idle_us": usual["idle"] - usual["bare"],
        "loss_us": usual["loss"] - usual["idle"],
    }


class Training:
    """A small model.

    Args:
        kind: ``"bare"``, ``"empty"`` for four empty hooks, ``"idle"`` for a watch that does not look for a loss,
            ``"loss"`` for one that takes the loss of every step.
    """

    def __init__(self, device: str, layers: int, kind: str) -> None:
        torch.manual_seed(0)
        parts = (part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
        self._model = nn.Sequential(*parts).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._loss_fn, self._device = nn.MSELoss(), device
        self._input, self._target = torch.rand(2, BATCH, WIDTH, device=device)
        self.close: Callable[[], Any] = lambda: None
        if kind == "empty":
            self._model.register_forward_pre_hook(_do_nothing, with_kwargs=True)
            self._loss_fn.register_forward_hook(_do_nothing, with_kwargs=True)
            self._optimizer.register_step_pre_hook(_do_nothing)
            self._optimizer.register_step_post_hook(_do_nothing)
        elif kind != "bare":
            self._watch(takes_loss=kind == "loss")

    def _watch(self, *, takes_loss: bool) -> None:
        import monitorch
        from monitorch.lens import LossMetrics
        from monitorch.watching.lens_sets import standard_lenses

        lenses = standard_lenses(self._model, [self._optimizer], self._loss_fn)
        chosen = [lens for lens in lenses if takes_loss or not isinstance(lens, LossMetrics)]
        self.close = monitorch.watch(self._model, self._optimizer, lenses=chosen, **RARELY).close

    def step(self) -> float:
        """Train one step and return its seconds."""
        begin = time.perf_counter()
        self._optimizer.zero_grad()
        self._loss_fn(self._model(self._input), self._target).backward()
        self._optimizer.step()
        counters.synchronize(self._device)
        return time.perf_counter() - begin


def _do_nothing(*_: Any) -> None:
    pass
