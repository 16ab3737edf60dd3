"""Trainings that go wrong, each in one way: a small network that would learn classes of made-up points."""

import contextlib
import io
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from ..watching import Watch, watch
from .demo_training import one_thread

_SAMPLES, _FEATURES, _CLASSES, _WIDTH, _BATCH = 2048, 20, 10, 64, 64


def network(depth: int = 3, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Layers ``fc1``, ``act1``, ``fc2`` ... and ``head``."""
    layers: dict[str, nn.Module] = {}
    for number in range(1, depth + 1):
        layers[f"fc{number}"] = nn.Linear(_FEATURES if number == 1 else _WIDTH, _WIDTH)
        layers[f"act{number}"] = activation()
    return nn.Sequential(OrderedDict(layers, head=nn.Linear(_WIDTH, _CLASSES)))


@dataclass
class Training:
    """A training that works, until a fault changes it."""

    inputs: Tensor
    targets: Tensor
    model: nn.Sequential = field(default_factory=network)
    optimizer: Callable[[nn.Module], Optimizer] = lambda model: Adam(model.parameters(), lr=1e-3)
    zeroes_gradients: bool = True

    @one_thread()
    def run(self, steps: int, name: str, folder: Path, tell: Callable[[int, str], None]) -> Watch:
        """Train, and store the run; ``tell`` is called with each step and its loss."""
        loss_fn, optimizer = nn.CrossEntropyLoss(), self.optimizer(self.model)
        with contextlib.redirect_stdout(io.StringIO()):  # the demo says itself where the run is
            watched = watch(self.model, optimizer, loss_fn=loss_fn, every=1, run=name, folder=folder)
        batches: list[Tensor] = []
        with watched:
            for step in range(1, steps + 1):
                batches = batches or list(torch.randperm(_SAMPLES).view(-1, _BATCH))
                chosen = batches.pop()
                if self.zeroes_gradients:
                    optimizer.zero_grad()
                loss = loss_fn(self.model(self.inputs[chosen]), self.targets[chosen])
                loss.backward()
                optimizer.step()
                tell(step, f"loss {loss.item():.3f}")
        return watched


class UnitLength(nn.Linear):
    """A layer whose output has length 1 for each sample."""

    def forward(self, input: Tensor) -> Tensor:
        """Divide without a care: NaN for a sample that is all 0."""
        output = super().forward(input)
        result: Tensor = output / output.norm(dim=1, keepdim=True)
        return result


def _dead_units(training: Training) -> None:
    nn.init.constant_(training.model.get_parameter("fc2.bias"), -20.0)


def _vanishing_gradient(training: Training) -> None:
    training.model = network(depth=8, activation=nn.Sigmoid)
    training.optimizer = lambda model: SGD(model.parameters(), lr=0.1)


def _exploding_signal(training: Training) -> None:
    training.model = network(depth=8)
    for parameter in training.model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=4 * parameter.shape[1] ** -0.5)


def _nonfinite(training: Training) -> None:
    training.inputs[0] = 0.0
    training.model.fc1 = UnitLength(_FEATURES, _WIDTH, bias=False)


def _no_update(training: Training) -> None:
    training.optimizer = lambda model: Adam(
        [parameter for name, parameter in model.named_parameters() if not name.startswith("fc2")], lr=1e-3
    )


def _stale_gradient(training: Training) -> None:
    training.optimizer = lambda model: SGD(model.parameters(), lr=0.05)
    training.zeroes_gradients = False


def _step_too_large(training: Training) -> None:
    training.optimizer = lambda model: Adam(model.parameters(), lr=0.3)


def _no_progress(training: Training) -> None:
    training.optimizer = lambda model: Adam(model.parameters(), lr=1e-6)


def _input_scale(training: Training) -> None:
    training.inputs[:, :4] = 300 * training.inputs[:, :4] + 500


def _output_loss_mismatch(training: Training) -> None:
    training.model.add_module("softmax", nn.Softmax(dim=1))


CHANGES: Mapping[str, Callable[[Training], None]] = {
    "dead_units": _dead_units,
    "vanishing_gradient": _vanishing_gradient,
    "exploding_signal": _exploding_signal,
    "nonfinite": _nonfinite,
    "no_update": _no_update,
    "stale_gradient": _stale_gradient,
    "step_too_large": _step_too_large,
    "no_progress": _no_progress,
    "input_scale": _input_scale,
    "output_loss_mismatch": _output_loss_mismatch,
}
"""What makes a training go wrong, by the symptom that it shows."""


def healthy(seed: int) -> Training:
    """A training without a fault."""
    torch.manual_seed(seed)
    targets = torch.randint(_CLASSES, (_SAMPLES,))
    return Training(torch.randn(_CLASSES, _FEATURES)[targets] + torch.randn(_SAMPLES, _FEATURES), targets)


def faulty(fault: str, seed: int) -> Training:
    """A training with one of the faults."""
    training = healthy(seed)
    CHANGES[fault](training)
    return training
