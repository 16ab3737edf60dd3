"""Where cases run: each subject in a process of its own, since two of them bear the same import name."""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from .cases import Case
from .measure import Effort, measure

Row = dict[str, Any]
PEERS = {"upstream": "monitorch==0.1.0.7", "torch_module_monitor": "torch-module-monitor==0.1.0"}


def install(folder: Path) -> None:
    """Put the peers into ``folder``, away from the environment, and without what they require: that is torch."""
    for name, requirement in PEERS.items():
        if not (folder / name).is_dir():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "1"]
            subprocess.run([*command, "--target", str(folder / name), requirement], check=False)


def prepare(path: Path | None, device: str) -> None:
    """Make a fresh process ready for one subject; what peers and the compiler say about them is not our business."""
    if path:
        sys.path.insert(0, str(path))
        warnings.simplefilter("ignore")
        logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    if device == "cpu":
        torch.set_num_threads(1)


def run(cases: list[Case], effort: Effort, folder: Path) -> Iterator[tuple[Case, Row]]:
    """The figures of all cases, one subject after the other, so that their processes do not disturb each other."""
    for subject, group in groupby(sorted(cases, key=lambda case: case.subject), key=lambda case: case.subject):
        path = folder / subject if subject in PEERS else None
        if path and not path.is_dir():
            yield from ((case, _failed(case, f"unavailable: there is no {path}")) for case in group)
        else:
            yield from _run_subject(list(group), path, effort)


def _run_subject(cases: list[Case], path: Path | None, effort: Effort) -> Iterator[tuple[Case, Row]]:
    while cases:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, prepare, (path, effort.device)) as pool:
            try:
                while cases:
                    yield cases[0], pool.submit(measure, cases[0], effort).result()
                    del cases[0]
            except BrokenProcessPool:
                case = cases.pop(0)
                yield case, _failed(case, "failed: the process ended, out of memory perhaps")


def _failed(case: Case, problem: str) -> Row:
    return {**asdict(case), "label": case.label, "problem": problem, "took_s": 0.0}


def versions(folder: Path) -> dict[str, str]:
    """What was compared."""
    import monitorch  # here, since the processes of subjects import this module first

    peers = {name: version.partition("==")[2] for name, version in PEERS.items() if (folder / name).is_dir()}
    return {"torch": torch.__version__, "monitorch": monitorch.__version__, **peers}
