"""What a tick costs with several processes: real ones, and for more of them one that replays the reductions."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from monitorch.engine.columns import WIDTH
from monitorch.engine.distributed_tensors import OWN, SHARED
from monitorch.engine.meeting import Meeting
from monitorch.engine.meter import GRADIENT, OUTPUT, Meter, Request
from monitorch.engine.rank_rows import RankMerge
from monitorch.engine.ranks import merge_all
from monitorch.engine.reductions import How, Seat, run

TENSORS, STEPS = 660, 10
"""As many tensors as GPT-2 has, and observed steps between two ticks."""

TICKS = 12
PROCESSES, SIMULATED = (2, 4, 8, 16), (64, 256, 1024)


def measure(
    processes: Sequence[int] = PROCESSES, simulated: Sequence[int] = SIMULATED, tensors: int = TENSORS
) -> list[dict[str, Any]]:
    """One row for each number of processes."""
    return [*(_start(number, tensors) for number in processes), *(_simulate(number, tensors) for number in simulated)]


class Rows:
    """The rows of one process, the same tensors in each tick: a third of them outputs, the others parameters."""

    def __init__(self, tensors: int) -> None:
        self.merge, self.tensors, self.ticks = RankMerge(lambda *_: None), tensors, 0
        for number in range(tensors):
            kind = GRADIENT if number % 3 else OUTPUT
            self.merge.register(Meter(number, f"layer {number}", Request()), kind, "weight", f"layer {number}")

    def tick(self) -> None:
        """All rows of a tick."""
        steps = range(self.ticks * STEPS, (self.ticks + 1) * STEPS)
        numbers = range(self.tensors)
        infos = [(number, step, 3, SHARED if number % 3 else OWN) for step in steps for number in numbers]
        self.merge.keep(np.array(infos), np.random.default_rng(self.ticks).uniform(1, 2, (len(infos), WIDTH)), {})
        self.ticks += 1


def _row(processes: int, cpu: list[float], wall: list[float], sent: int, how: str) -> dict[str, Any]:
    figures = {"cpu_ms": statistics.median(cpu[2:]) * 1e3, "wall_ms": statistics.median(wall[2:]) * 1e3}
    return {"processes": processes, "how": how, **figures, "sent_kb": sent / 1e3}


def _simulate(processes: int, tensors: int) -> dict[str, Any]:
    """One process, with as many additions as a tree of so many processes has levels."""
    rows, sent = Rows(tensors), list[int]()

    def reduce(numbers: Any, how: How) -> Any:
        sent.append(numbers.nbytes)
        for _ in range(processes.bit_length() - 1):
            numbers = numbers + numbers if how is How.SUM else np.maximum(numbers, numbers)
        return numbers

    cpu, wall = [], []
    for _ in range(TICKS):
        rows.tick()
        sent.clear()
        began, began_cpu = time.perf_counter(), time.thread_time()
        payload = rows.merge.payload()
        rows.merge.hand_out(run(rows.merge.merge_ranks(payload, Seat(0, processes)), reduce))
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
    return _row(processes, cpu, wall, sum(sent), "simulated")


def _start(processes: int, tensors: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.processes", folder, str(processes), str(tensors)]
        started = [subprocess.Popen([*command, str(rank)]) for rank in range(processes)]
        if any(process.wait() for process in started):
            raise RuntimeError(f"one of {processes} processes has failed")
        found: dict[str, Any] = json.loads(Path(folder, "row.json").read_text(encoding="utf-8"))
        return found


def _take_part(folder: str, processes: int, tensors: int, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    rows, meeting, sent = Rows(tensors), Meeting("bench"), list[int]()
    reduce = meeting.reduce
    meeting.reduce = lambda numbers, how: sent.append(numbers.nbytes) or reduce(numbers, how)  # type: ignore[assignment, func-returns-value]
    meeting.meet(0, patience=120.0)
    cpu, wall = [], []
    for tick in range(TICKS):
        rows.tick()
        dist.barrier()
        sent.clear()
        began, began_cpu = time.perf_counter(), time.thread_time()
        merge_all([rows.merge], partial(meeting.exchange, step=tick), Seat(rank, processes))
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
    if rank == 0:
        row = _row(processes, cpu, wall, sum(sent), "measured")
        Path(folder, "row.json").write_text(json.dumps(row), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # threads of gloo may outlive this, and abort a process that takes itself apart


if __name__ == "__main__":
    _take_part(sys.argv[1], *map(int, sys.argv[2:]))
