"""What a training step takes besides time: memory, waits of the host, kernel launches, graph breaks, compilations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters as dynamo


@dataclass(frozen=True)
class Counts:
    """Per step, except memory and what the compiler did; None: does not apply."""

    memory_gib: float | None
    syncs: float | None
    launches: float | None
    breaks: int | None
    recompiles: int | None

    def minus(self, other: Counts) -> dict[str, float | None]:
        """What was added to ``other``."""
        ours, theirs = asdict(self), asdict(other)
        return {name: None if None in (ours[name], theirs[name]) else ours[name] - theirs[name] for name in ours}


def synchronize(device: str) -> None:
    """Wait for the device, so that a clock tells the truth."""
    if device == "cuda":
        torch.cuda.synchronize()


def allocated(device: str) -> int:
    """Bytes held on the device."""
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def peak(step: Callable[[], None], steps: int, device: str) -> int | None:
    """Most bytes held during some steps; of a CPU nobody knows."""
    if device != "cuda":
        return None
    forget_peak(device)
    _repeat(step, steps)
    return peak_since(0, device)


def forget_peak(device: str) -> None:
    """Begin to look for the most bytes held."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_since(held: int, device: str) -> int | None:
    """Most bytes held since then, beyond ``held``; of a CPU nobody knows."""
    return torch.cuda.max_memory_allocated() - held if device == "cuda" else None


def peak_of_process() -> int | None:
    """Most bytes of memory that this process had so far; None where the system does not tell."""
    status = Path("/proc/self/status")  # getrusage would count the process that started this one, too
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def syncs(step: Callable[[], None], steps: int, device: str) -> float | None:
    """How often the host waits for the device in a step."""
    if device != "cuda":
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            _repeat(step, steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught) / steps


def launches(step: Callable[[], None], steps: int, device: str) -> float | None:
    """Kernels that a step runs on the device."""
    if device != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        _repeat(step, steps)
        torch.cuda.synchronize()
    on_device = [event for event in profile.key_averages() if str(event.device_type).endswith("CUDA")]
    count = sum(event.count for event in on_device if not event.key.startswith(("Memcpy", "Memset")))
    return count / steps if count else None  # a machine may forbid to look


def compilations() -> tuple[int, int]:
    """Graph breaks so far, and frames that were compiled again."""
    again = sum(count - 1 for count in convert_frame.FRAME_COMPILE_COUNTER.values())
    return sum(dynamo["graph_break"].values()), again


def _repeat(step: Callable[[], None], steps: int) -> None:
    for _ in range(steps):
        step()
