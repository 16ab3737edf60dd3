"""Where cases run: each subject in a process of its own, since two of them bear the same import name."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch

from . import user
from .cases import Case
from .measure import Effort, measure
from .user import UserCase

Row = dict[str, Any]
AnyCase = TypeVar("AnyCase", Case, UserCase)
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
        torch.set_flush_denormal(True)  # a model that has learned its one batch by heart would become slow


def run(cases: list[Case], effort: Effort, folder: Path) -> Iterator[tuple[Case, Row]]:
    """The figures of all cases, one subject after the other, so that their processes do not disturb each other."""
    for subject, group in groupby(sorted(cases, key=lambda case: case.subject), key=lambda case: case.subject):
        path = folder / subject if subject in PEERS else None
        if path and not path.is_dir():
            yield from ((case, _failed(case, f"unavailable: there is no {path}")) for case in group)
        else:
            yield from _one_process(list(group), measure, path, effort)


STEADY_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
"""Lets processes keep memory that they have freed. Otherwise, of two models in one process, often one gives its memory
back and faults it in again at each step, by chance, which costs more than what is measured."""


def run_user(cases: list[UserCase], effort: Effort, seconds: float | None = None) -> Iterator[tuple[UserCase, Row]]:
    """What users pay: one process per model, and on a CPU others that tell the memory of each case.

    Args:
        cases: what to measure.
        effort: where, and how long.
        seconds: no case begins after so many of them.
    """
    end = None if seconds is None else time.monotonic() + seconds
    os.environ.update(STEADY_MEMORY)
    for _, group in groupby(cases, key=lambda case: case.name):
        own, unwatched = list(group), None
        if effort.device == "cpu":
            unwatched = _fresh(user.footprint, own[0], False, effort)
        for case, row in _one_process(own, user.measure, None, effort, end):
            if effort.device == "cpu" and not row["problem"]:
                watched = _fresh(user.footprint, case, True, effort)
                row["memory_gib"] = None if None in (watched, unwatched) else (watched - unwatched) / 2**30
            yield case, row


def _fresh(task: Callable[..., Any], *args: Any) -> Any:
    """The result of a task in a process of its own; None if that ends before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare, (None, "cpu")) as pool:
        try:
            return pool.submit(task, *args).result()
        except BrokenProcessPool:
            return None


def _one_process(
    cases: list[AnyCase],
    task: Callable[[AnyCase, Effort], Row],
    path: Path | None,
    effort: Effort,
    end: float | None = None,
) -> Iterator[tuple[AnyCase, Row]]:
    """Cases in one process, unless one of them ends it: then the others get another one."""
    while cases:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, prepare, (path, effort.device)) as pool:
            try:
                while cases:
                    if end is not None and time.monotonic() > end:
                        yield cases[0], _failed(cases[0], "left out: the time was up")
                    else:
                        yield cases[0], pool.submit(task, cases[0], effort).result()
                    del cases[0]
            except BrokenProcessPool:
                case = cases.pop(0)
                yield case, _failed(case, "failed: the process ended, out of memory perhaps")


def _failed(case: Case | UserCase, problem: str) -> Row:
    return {**asdict(case), "label": case.label, "problem": problem, "took_s": 0.0}


def versions(folder: Path) -> dict[str, str]:
    """What was compared."""
    import monitorch  # here, since the processes of subjects import this module first

    peers = {name: version.partition("==")[2] for name, version in PEERS.items() if (folder / name).is_dir()}
    return {"torch": torch.__version__, "monitorch": monitorch.__version__, **peers}
