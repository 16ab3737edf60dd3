"""How a case is measured: a bare and a watched model take turns, step by step, in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import nn

from . import counters
from .cases import Case
from .models import Workload, workload
from .subjects import SUBJECTS, Watcher


@dataclass(frozen=True)
class Effort:
    """Where, and how long."""

    device: str
    quick: bool = False

    def warm_up(self, case: Case) -> int:
        """Steps before the first measured one: a compiled model has met its observed and its idle steps by then."""
        return 2 if self.quick else max(5, min(case.every, 10) + 2)

    def is_enough(self, pairs: int, case: Case, seconds: float) -> bool:
        """Whether to stop measuring."""
        return pairs >= 2 if self.quick else pairs >= max(2, 5 // case.block) and seconds >= case.seconds


class Trial:
    """One model with its optimizer, its data and whoever watches it."""

    def __init__(self, work: Workload, device: str, compiled: bool, watch: Callable[[Trial], Watcher]) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            self.model = work.model()
            self.inputs, self.targets = work.batch()
        self.workload, self.device = work, device
        self.loss_fn = nn.CrossEntropyLoss()
        self.optimizer = work.optimizer(self.model.parameters())
        self.watcher = watch(self)
        self.forward = compile_alone(self.model) if compiled else self.model

    def step(self) -> float:
        """Train one step and return its seconds."""
        counters.synchronize(self.device)
        start = time.perf_counter()
        self.train()
        counters.synchronize(self.device)
        return time.perf_counter() - start

    def train(self) -> None:
        """One step, as in any training loop."""
        self.watcher.before_step()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.workload.bfloat16):
            scores = self.forward(self.inputs)
            loss = self.loss_fn(scores.flatten(0, -2), self.targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.watcher.before_update()
        self.optimizer.step()
        self.watcher.after_step()


def compile_alone(model: nn.Module) -> Callable[..., Any]:
    """``torch.compile`` with a graph of its own.

    Graphs are kept by code object and hooks are not guarded: a watched model that shares its code with a bare one would
    silently run the graph of the bare one.
    """

    def call(*args: Any) -> Any:
        return model(*args)

    code = call.__code__.replace()
    alone = FunctionType(code, call.__globals__, call.__name__, None, call.__closure__)
    return torch.compile(alone)


def settle(make: Callable[[], Trial], case: Case, effort: Effort) -> tuple[Trial, counters.Counts]:
    """A trial past its warm-up, and what one of its steps takes besides time."""
    gc.collect()
    held = counters.allocated(effort.device)
    breaks, recompiles = counters.compilations()
    trial = make()
    for _ in range(effort.warm_up(case)):
        trial.step()
    peak = counters.peak(trial.train, case.block, effort.device)
    now = counters.compilations()
    counts = counters.Counts(
        memory_gib=None if peak is None else (peak - held) / 2**30,
        syncs=counters.syncs(trial.train, case.block, effort.device),
        launches=counters.launches(trial.train, case.block, effort.device),
        breaks=now[0] - breaks if case.compiled else None,
        recompiles=now[1] - recompiles if case.compiled else None,
    )
    return trial, counts


@lru_cache(maxsize=1)
def bare(model: str, compiled: bool, effort: Effort) -> tuple[Trial, counters.Counts]:
    """The unwatched model; cases that follow each other share it."""
    work = workload(model, effort.device, effort.quick)
    case = Case("", model, compiled=compiled)
    return settle(lambda: Trial(work, effort.device, compiled, lambda trial: Watcher()), case, effort)


def measure(case: Case, effort: Effort) -> dict[str, Any]:
    """The figures of a case; a subject that cannot do what it asks for yields the reason as ``problem``."""
    start = time.perf_counter()
    row: dict[str, Any] = {**asdict(case), "label": case.label, "problem": None}
    try:
        row |= _compare(case, effort)
    except Exception as error:
        is_new = isinstance(error, TypeError) and "unexpected keyword" in str(error)
        row["problem"] = f"unavailable: {error}" if is_new else f"failed: {type(error).__name__}: {error}"
    if case.compiled and (row["problem"] or row["breaks"] or row["recompiles"]):
        bare.cache_clear()
        torch.compiler.reset()  # fragments of graphs would count against the next case
    return {**row, "took_s": round(time.perf_counter() - start, 2)}


def _compare(case: Case, effort: Effort) -> dict[str, Any]:
    plain, without = bare(case.model, case.compiled, effort)
    subject = SUBJECTS[case.subject]

    def make() -> Trial:
        return Trial(plain.workload, effort.device, case.compiled, lambda trial: subject(trial, case))

    watched, with_ = settle(make, case, effort)
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while not effort.is_enough(len(pairs), case, time.perf_counter() - start):
        turns = [(plain.step(), watched.step()) for _ in range(case.block)]
        pairs.append((statistics.fmean(a for a, _ in turns), statistics.fmean(b for _, b in turns)))
    ratios = sorted(after / before for before, after in pairs)
    row: dict[str, Any] = {
        "bare_ms": statistics.median(before for before, _ in pairs) * 1e3,
        "watched_ms": statistics.median(after for _, after in pairs) * 1e3,
        "added_ms": statistics.median(after - before for before, after in pairs) * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]],
        "pairs": len(pairs),
        **with_.minus(without),
        "modules": len(list(watched.model.modules())),
        "seen": watched.watcher.seen(),
    }
    if row["seen"] == 0 and case.every == 1 and not case.tick:
        row["problem"] = "failed: nothing was recorded"
    return row
