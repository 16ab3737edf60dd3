"""What a tick costs: time of the training thread, CPU time of all threads, and Python calls, by number of series."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

STEPS = 10
"""Observed steps between two ticks."""

TICKS = 9
SIZES = ((76, True), (76, False), (760, True), (760, False))
"""Small layers, and whether the norms of parameters are read at ticks, too."""


def measure(device: str, sizes: Sequence[tuple[int, bool]] = SIZES) -> list[dict[str, Any]]:
    """One row for each size; runs are stored."""
    return [_measure(device, *size) for size in sizes]


def _measure(device: str, layers: int, reads_parameters: bool) -> dict[str, Any]:
    from monitorch import PyTorchInspector, lens
    from monitorch.visualizer import StoreVisualizer

    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(8, 8), nn.ReLU()))).to(device)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(4, 8, device=device)
    gradients = [lens.OutputGradientGeometry(), lens.ParameterGradientGeometry(), lens.ParameterGradientActivation()]
    others = [lens.OutputActivation(), lens.OutputNorm(), lens.ParameterUpdateGeometry(optimizer)]
    lenses = [*gradients, *others, *([lens.ParameterNorm()] if reads_parameters else [])]
    with tempfile.TemporaryDirectory() as folder, StoreVisualizer(folder, "ticks") as store:
        inspector = PyTorchInspector(lenses, module=model, visualizer=store, optimizer=optimizer)

        def train() -> None:
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            if device == "cuda":
                torch.cuda.synchronize()

        own, total = [], []
        for _ in range(TICKS):
            train()
            began, began_cpu = time.perf_counter(), time.process_time()
            inspector.tick()
            own.append(time.perf_counter() - began)
            inspector.state.settle()  # waits for the other thread
            total.append(time.process_time() - began_cpu)
        series = len(inspector.records())
        train()
        profile = cProfile.Profile()
        profile.runcall(inspector.tick)
        inspector.detach()
    calls = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return {
        "series": series,
        "layers": layers,
        "parameters": reads_parameters,
        "thread_ms": statistics.median(own[2:]) * 1e3,
        "cpu_ms": statistics.median(total[2:]) * 1e3,
        "calls": calls,
    }
