"""One run of a program, watched or recorded, as a dictionary that the scorer reads."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch

import monitorch

from .cases import CASES, HEALTHY
from .program import Program
from .remedies import treated
from .rules import RULES, findings, forward_order, record
from .score import Run

CADENCES: dict[str, dict[str, Any]] = {"every step": {"every": 1}, "every 10th": {"every": 10}, "default": {}}
STORED = "default"
"""The cadence in which runs are stored, and judged again from what is on disk."""

TREATED = "every step"
"""The cadence of which the first remedy is tried."""


@dataclass(frozen=True)
class Task:
    """What one process does at a time: a program, and a cadence, or None for the rule sets of others."""

    case: str
    seed: int
    kind: str
    cadence: str | None
    tries_remedy: bool = False

    def build(self) -> Program:
        """The program."""
        return (CASES.get(self.case) or HEALTHY[self.case]).build(self.seed, self.kind == "fault")


def prepare() -> None:
    """Make a fresh process ready."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a faulty program is full of them, and findings tell more


def do(task: Task) -> list[Run]:
    """The runs of a task."""
    began = time.perf_counter()
    program = task.build()
    base = {"case": task.case, "seed": task.seed, "kind": task.kind, "target": program.target, "findings": []}
    base |= {"order": forward_order(program), "score": 0.0, "problem": None, "by": task.cadence or "rules"}
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # events are findings, and those are kept
            runs = _rules(base, program) if task.cadence is None else [_watched(base, program, task)]
    except Exception as error:  # one program that fails must not end all others
        base["problem"] = f"{type(error).__name__}: {error}"
        runs = [base | {"by": by} for by in (RULES if task.cadence is None else [task.cadence])]
    return [run | {"took_s": round(time.perf_counter() - began, 2)} for run in runs]


def _rules(base: Run, program: Program) -> list[Run]:
    recording = record(program)
    score = program.evaluate()
    return [base | {"by": by, "score": score, "findings": findings(recording, rule)} for by, rule in RULES.items()]


def _watched(base: Run, program: Program, task: Task) -> Run:
    assert task.cadence is not None
    options = CADENCES[task.cadence] | ({"grad_scaler": program.scaler} if program.scaler else {})
    with tempfile.TemporaryDirectory() as folder:
        place = {"folder": folder, "capture": False} if task.cadence == STORED else {"visualizer": "dummy"}
        with monitorch.watch(program.model, program.optimizer, loss_fn=program.loss_fn, **options, **place) as watched:
            for _ in program.run():
                pass
        found = [plain(one) for one in watched.findings]
        run = base | {"score": program.evaluate(), "findings": found}
        if task.cadence == STORED:
            run |= _judge_again(watched.visualizer.path, found)
    return run | (try_remedy(task, found) if task.tries_remedy else {})


def _judge_again(path: Path, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether the stored run says what was said while it trained."""
    try:
        return {"agrees": agree(found, [plain(one) for one in monitorch.diagnosis.check(path)])}
    except Exception as error:  # what was found live counts all the same
        return {"agrees": False, "problem": f"{type(error).__name__}: {error}"}


def try_remedy(task: Task, found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The score with the first remedy that there is an action for; None without one, or if it cannot be applied."""
    remedy = next((one["remedy"] for one in found if one["remedy"]["action"]), None)
    if remedy is None:
        return {"treated": None, "remedy": "none"}
    tried = f"{remedy['action']} {remedy['arguments'] or ''}".strip()
    try:
        program = treated(CASES[task.case], task.seed, remedy["action"], remedy["arguments"])
        for _ in program.run():
            pass
        return {"treated": program.evaluate(), "remedy": tried}
    except Exception as error:  # a remedy that does not fit is one that does not heal
        return {"treated": None, "remedy": f"{tried}: {type(error).__name__}: {error}"}


def plain(finding: Any) -> dict[str, Any]:
    """What the scorer needs of a finding."""
    names = ("symptom", "severity", "layer", "step", "detected_at", "caused_by", "confidence", "resolved_at")
    remedy = {"action": finding.remedy.action, "arguments": dict(finding.remedy.arguments)}
    return {name: getattr(finding, name) for name in names} | {"remedy": remedy, "explanation": finding.explanation}


def agree(live: list[dict[str, Any]], stored: list[dict[str, Any]]) -> bool:
    """Whether both have the same first finding, and the same warnings and errors."""

    def said(found: list[dict[str, Any]]) -> tuple[Any, Any]:
        each = [(one["symptom"], one["layer"], one["severity"]) for one in found]
        return each[:1], {one for one in each if one[2] != "info"}

    return said(live) == said(stored)


def plan(
    names: Iterable[str], seeds: int, cadences: Iterable[str], *, rules: bool = True, remedies: bool = True
) -> list[Task]:
    """All tasks for these cases; long ones last would leave processes idle, so cases are mixed as they are."""
    modes: list[str | None] = [*cadences, *([None] if rules else [])]
    return [
        Task(name, seed, kind, mode, remedies and kind == "fault" and mode == TREATED)
        for name in names
        for seed in range(seeds)
        for kind in (("fault", "twin") if name in CASES else ("healthy",))
        for mode in modes
    ]
