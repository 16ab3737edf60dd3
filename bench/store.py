"""How fast the run store writes and reads, what it costs training, and whether it survives being killed.

python -m bench.store                       (a minute; --quick for seconds)
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from monitorch.store import Run, Writer, list_runs, open_run


def say(what: str, figure: str) -> None:
    """One line of the report."""
    print(f"{what:<62} {figure}", flush=True)


def milliseconds(action: Callable[[], object], repeats: int = 9) -> list[float]:
    """How long it takes, sorted, after a first time that does not count."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)


def ask(what: str, action: Callable[[], object]) -> None:
    """Say how long a question takes; on a busy machine the fastest tells more."""
    times = milliseconds(action)
    say(what, f"median {statistics.median(times):.3g} ms, fastest {times[0]:.3g} ms")


def write(folder: Path, ticks: int, layers: int, kinds: int) -> None:
    """Frames as fast as they are taken."""
    stream = np.random.default_rng(0)
    frames = stream.lognormal(size=(64, kinds, layers)).astype(np.float32)
    names: dict[str, Any] = {
        "layers": [f"layer{n}" for n in range(layers)],
        "statistics": [f"stat{n}" for n in range(kinds)],
    }
    waits, refused = [], 0
    start, used = time.perf_counter(), time.process_time()
    with Writer(folder) as writer:
        for step in range(ticks):
            begin = time.perf_counter()
            taken = writer.put("Norm", step, frames[step % 64], **names)
            waits.append(time.perf_counter() - begin)
            if not taken:  # faster than the disk: wait, as training would not
                refused += 1
                writer.flush()
                writer.put("Norm", step, frames[step % 64], **names)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    points, size = ticks * layers * kinds, sum(file.stat().st_size for file in folder.iterdir())
    what = f"write {ticks:,} ticks x {layers * kinds:,} numbers, with closing"
    say(what, f"{points / seconds / 1e6:.1f} M points/s, {size / points:.2f} bytes a point, {refused} refused")
    say("  processor time a tick", f"{1e6 * used / ticks:.0f} us")
    p50, p99, most = (1e3 * np.quantile(waits, q) for q in (0.5, 0.99, 1))
    say("  put, with the queue always full", f"median {p50:.3f} ms, p99 {p99:.2f} ms, longest {most:.1f} ms")


def read(folder: Path) -> None:
    """The questions that pages ask, all answered before."""
    with open_run(folder) as run:
        lens = run.lenses["Norm"]
        what = f"{len(lens.layers)} layers x {lens.ticks:,} ticks"
        ask("open", lambda: Run(run.path).close())
        for resolution in (lens.ticks, 4000, 1000, 300):
            question = partial(run.window, "Norm", "stat1", resolution=resolution)
            ask(f"heat map, {what}, at most {resolution:,} columns", question)
        ask("series of one layer, every tick", lambda: run.series("Norm", "stat1", "layer7"))
        ask("newest frame", run.newest)
        ask("frame of a step", lambda: run.frame_at(lens.ticks // 2))
        ask("is there anything new", run.data_version)
    ask("list runs", lambda: list_runs(folder.parent))


def training(folder: Path, ticks: int, numbers: int) -> None:
    """What a training thread feels whose steps compute for about 9 ms."""
    work = np.random.default_rng(0).normal(size=(64, 64))
    rounds = int(9 / milliseconds(lambda: [work @ work for _ in range(100)])[0] * 100)
    values = np.zeros((20, numbers // 20), np.float32)
    names: dict[str, Any] = {"layers": [*map(str, range(numbers // 20))], "statistics": [*map(str, range(20))]}

    def step_time(act: Callable[[int], object], step: int) -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            work @ work
        act(step)
        return 1e3 * (time.perf_counter() - start)

    bare: list[float] = []
    stored: list[float] = []
    with Writer(folder) as writer:
        for first in range(0, ticks, 50):  # in turns, since other programs come and go
            steps = range(first, first + 50)
            bare += [step_time(lambda _: None, step) for step in steps]
            stored += [step_time(lambda step: writer.put("Norm", step, values, **names), step) for step in steps]
            writer.flush()
        dropped = writer.dropped
    for name, times in (("bare", bare), (f"stored, {dropped} dropped", stored)):
        p50, p99 = np.quantile(times, [0.5, 0.99])
        what = f"training steps, {numbers:,} numbers each, {name}"
        say(what, f"median {p50:.2f}, p99 {p99:.2f}, max {max(times):.1f} ms")


def victim(folder: Path, journal: Any) -> None:
    """Write until killed; say what is certainly stored."""
    writer = Writer(folder, journal=journal, resume=True)
    rows = np.arange(20.0)[None]
    names: dict[str, Any] = {"layers": [*map(str, range(20))], "statistics": ["mean"]}
    for step in itertools.count((writer.resumed_step or 0) + 1):
        writer.put("Norm", step, rows + step, **names)
        if step % 8 == 0:
            writer.flush()
            print(step, flush=True)


def kill(folder: Path, times: int, journal: str) -> None:
    """End a writer at random moments: what it said is stored must be there, and the file must open."""
    chance, lost = random.Random(0), 0
    for _ in range(times):
        command = [sys.executable, "-m", "bench.store", "--victim", journal, "--folder", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(chance.random() * 0.1)
            process.kill()
            said = [first, *process.stdout.readlines()]
        promised = int([line for line in said if line.endswith("\n")][-1])
        with open_run(folder) as run:
            axis, values = run.series("Norm", "mean", "7")
        lost += not (axis.step[-1] >= promised and (values == axis.step + 7).all() and (np.diff(axis.step) == 1).all())
    say(f"killed {times} times ({journal})", f"{lost} with a loss or damage")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the ticks and kills")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if not given")
    parser.add_argument("--no-kills", action="store_true", help="leave out the longest part")
    parser.add_argument("--victim", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.victim:
        victim(options.folder, options.victim)
    share = 10 if options.quick else 1
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        root = Path(temporary)
        write(root / "runs" / "large", 100_000 // share, 100, 10)
        read(root / "runs" / "large")
        write(root / "wide", 3_000 // share, 1000, 20)
        training(root / "training", 1_000 // share, 20_000)
        for journal in () if options.no_kills else ("wal", "truncate", "log"):
            kill(root / journal, max(50 // share, 5), journal)


if __name__ == "__main__":
    main()
