"""What watching costs: the time of a training step with lenses over that of a bare step, measured in turns.

python bench/overhead.py [--steps 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from monitorch import PyTorchInspector, lens

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM_UP = 20

LENSES: dict[str, Callable[[Trial], lens.AbstractLens]] = {
    "LossMetrics": lambda trial: lens.LossMetrics(loss_fn=trial.loss_fn),
    "OutputActivation": lambda trial: lens.OutputActivation(),
    "OutputNorm": lambda trial: lens.OutputNorm(),
    "OutputGradientGeometry": lambda trial: lens.OutputGradientGeometry(),
    "ParameterGradientGeometry": lambda trial: lens.ParameterGradientGeometry(),
    "ParameterGradientActivation": lambda trial: lens.ParameterGradientActivation(),
    "ParameterUpdateGeometry": lambda trial: lens.ParameterUpdateGeometry(trial.optimizer),
    "ParameterNorm": lambda trial: lens.ParameterNorm(),
}


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    """784-512-512-10, batch 128."""
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), (128, 784)


def cnn() -> tuple[nn.Module, tuple[int, ...]]:
    """Four times conv, batch norm, ReLU; batch 64."""
    layers: list[nn.Module] = []
    channels = 3
    for width, stride in ((32, 1), (64, 2), (64, 2), (128, 2)):
        conv = nn.Conv2d(channels, width, kernel_size=3, padding=1, stride=stride)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)), (64, 3, 32, 32)


MODELS = {"MLP": mlp, "CNN": cnn}


class Trial:
    """One model with its optimizer, data and, if any, inspector."""

    def __init__(self, make: Callable[[], tuple[nn.Module, tuple[int, ...]]], lens_names: Sequence[str] = ()) -> None:
        torch.manual_seed(0)
        model, shape = make()
        self.model = model.to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loss_fn = nn.CrossEntropyLoss()
        self.inputs = torch.randn(shape, device=DEVICE)
        self.targets = torch.randint(0, 10, (shape[0],), device=DEVICE)
        lenses = [LENSES[name](self) for name in lens_names]
        self.inspector = PyTorchInspector(lenses, module=self.model, visualizer="dummy") if lenses else None

    def step(self) -> float:
        """Train one step and return its seconds."""
        synchronize()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss_fn(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()
        synchronize()
        return time.perf_counter() - start


def synchronize() -> None:
    """Wait for the device, so that a clock tells the truth."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measure(model: str, lens_names: Sequence[str], steps: int) -> tuple[float, float]:
    """Median seconds of a bare and of a watched step; the two take turns, so that both meet the same machine."""
    bare, watched = Trial(MODELS[model]), Trial(MODELS[model], lens_names)
    times = [(bare.step(), watched.step()) for _ in range(WARM_UP + steps)][WARM_UP:]
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def main() -> None:
    """Measure every lens alone and all together, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="measured steps of each kind")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    rows = []
    cases = {"all lenses": list(LENSES), **{name: [name] for name in LENSES}}
    print(f"{DEVICE}, torch {torch.__version__}, python {platform.python_version()}, {options.steps} steps")
    print(f"{'model':6}{'lenses':30}{'bare ms':>9}{'watched ms':>12}{'ratio':>8}")
    for model in MODELS:
        for case, names in cases.items():
            bare, watched = measure(model, names, options.steps)
            rows.append({"model": model, "lenses": case, "bare_s": bare, "watched_s": watched})
            print(f"{model:6}{case:30}{bare * 1e3:9.3f}{watched * 1e3:12.3f}{watched / bare:8.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"device": DEVICE, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
