"""Measure how well problems of training are named, print tables, keep the figures.

python -m bench.diagnosis                              (make bench-diagnosis)
python -m bench.diagnosis --quick                      (a tenth of all cases, every step, no rule sets of others)
python -m bench.diagnosis --only dead,healthy-lora --cadence every-step --no-rules
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..__main__ import FOLDER, machine
from ..report import cells, text
from . import report
from .cases import CASES, HEALTHY
from .runs import CADENCES, Task, do, plan, prepare
from .score import Run

NAMES = {name.replace(" ", "-"): name for name in CADENCES}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What to run, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of all cases, at every step, without rule sets")
    parser.add_argument("--only", help="comma-separated: cases whose names contain one of these")
    parser.add_argument("--cadence", help=f"comma-separated: {', '.join(NAMES)}; all")
    parser.add_argument("--seeds", type=int, default=1, help="how often each case runs; 1")
    parser.add_argument("--no-rules", action="store_true", help="leave out the rule sets of others")
    parser.add_argument("--no-remedies", action="store_true", help="do not run again with the first remedy")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 2")
    parser.add_argument("--json", type=Path, default=FOLDER / "diagnosis.json", help="where the figures go")
    parser.add_argument("--write", action="store_true", help="also write bench/diagnosis/RESULTS.md")
    options = parser.parse_args(arguments)
    names = [*CASES, *HEALTHY]
    if options.only:
        names = [name for name in names if any(part in name for part in options.only.split(","))]
    elif options.quick:
        names = names[::10]
    if not names:
        parser.error(f"no case is called like {options.only}")
    chosen = options.cadence.split(",") if options.cadence else ["every-step"] if options.quick else list(NAMES)
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"no cadence is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    options.tasks = plan(
        names,
        options.seeds,
        [NAMES[name] for name in chosen],
        rules=not (options.no_rules or options.quick),
        remedies=not options.no_remedies,
    )
    return options


def run_all(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, list[Run]]]:
    """Each task as it is done, in processes of their own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=prepare) as pool:
        waiting = {pool.submit(do, task): task for task in tasks}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, show how far it is, print tables, keep all."""
    options = parse(arguments)
    began = time.monotonic()
    runs: list[Run] = []
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("starting", total=len(options.tasks))
        for task, done in run_all(options.tasks, options.jobs):
            runs += done
            progress.update(bar, advance=1, description=f"{task.case} {task.kind}"[:40])
    order = {task: number for number, task in enumerate([*CASES, *HEALTHY])}
    runs.sort(key=lambda run: (order[run["case"]], run["seed"], run["kind"]))
    figures: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine("cpu"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "seeds": options.seeds,
        "minutes": (time.monotonic() - began) / 60,
        "scores": report.scores(runs, CASES),
        "runs": runs,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    tables = [cells(figures["scores"], report.MEASURES)]
    tables += [table(runs, CASES) for table in (report.by_symptom, report.wrong, report.unhealed)]
    print(*(text(table) for table in tables if len(table) > 1), f"figures in {options.json}", sep="\n\n")
    if options.write:
        report.RESULTS.write_text(report.document(figures, CASES), encoding="utf-8")
        print(f"tables in {report.RESULTS}")


if __name__ == "__main__":
    main()
