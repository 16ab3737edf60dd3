"""Runs to draw: programs of the public benchmark, watched and stored, with a fault and without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import monitorch
from bench.diagnosis.case import Case
from bench.diagnosis.program import Program
from monitorch.diagnosis import Finding
from monitorch.diagnosis.check import check, stored_history
from monitorch.diagnosis.run import RunView
from monitorch.lens import AbstractLens
from monitorch.store import open_run

SEED = 0
Lenses = Callable[[nn.Module], list[str | AbstractLens]]
"""What is looked at in a model."""
Each = Callable[[monitorch.Watch, Program, int], None]
"""What else is done after each step: of the watch, the program and the step."""


def standard(model: nn.Module) -> list[str | AbstractLens]:
    """What is looked at if nobody says otherwise."""
    return ["standard"]


class Seen(NamedTuple):
    """A run as symptoms see it, and what they say of it."""

    view: RunView
    findings: list[Finding]
    path: Path


class Pair(NamedTuple):
    """A program that is fine, and the same with a fault."""

    healthy: Seen
    sick: Seen

    @property
    def finding(self) -> Finding:
        """What is wrong with the second one."""
        return self.sick.findings[0]

    @property
    def found_at(self) -> int | None:
        """The step at which that was found; None if what is wrong is not of the kind that a diagnosis finds."""
        return self.finding.detected_at if self.sick.findings else None

    @property
    def layer(self) -> str | None:
        """Where."""
        return self.finding.layer if self.sick.findings else None


class WrongFindingError(RuntimeError):
    """A run does not show what its picture is about."""


def pair(
    symptom: str, case: Case, folder: Path, lenses: Lenses = standard, each: Each | None = None, **options: Any
) -> Pair:
    """Both runs of a case; those that are in the folder already are not trained again.

    Args:
        symptom: what must be found first in the sick one; empty for nothing.
        case: the program.
        folder: of the runs.
        lenses: what is looked at.
        each: what else is done after each step.
        **options: of the watch.
    """
    paths = {is_faulty: folder / f"{symptom or case.name}-{name}" for name, is_faulty in _KINDS.items()}
    found = Pair(*(_seen(case, is_faulty, path, lenses, each, options) for is_faulty, path in paths.items()))
    said = [one.symptom for one in found.sick.findings]
    if said[:1] != ([symptom] if symptom else []):
        raise WrongFindingError(
            f"{case.name} should show {symptom or 'nothing'} first, but has {said or 'no findings'}"
        )
    if said := [one.line for one in found.healthy.findings]:
        raise WrongFindingError(f"nothing should be found in the healthy twin of {case.name}, but there is {said}")
    return found


_KINDS = {"healthy": False, "sick": True}


def _seen(case: Case, is_faulty: bool, path: Path, lenses: Lenses, each: Each | None, options: dict[str, Any]) -> Seen:
    if not path.exists():
        _train(case, is_faulty, path, lenses, each, options)
    with open_run(path) as run:
        return Seen(RunView(stored_history(run)), check(run), path)


def _train(case: Case, is_faulty: bool, path: Path, lenses: Lenses, each: Each | None, further: dict[str, Any]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same numbers on any number of cores
    program = case.build(SEED, is_faulty)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")  # a program with a fault is full of them
            # norms of weights are read at ticks, which must not depend on how fast the machine is
            options = {"loss_fn": program.loss_fn, "every": 1, "tick_every": 5, "folder": path.parent, "run": path.name}
            options["lenses"] = lenses(program.model)
            with monitorch.watch(program.model, program.optimizer, capture=False, **options | further) as watched:
                for step in program.run():
                    if each is not None:
                        each(watched, program, step)
    finally:
        torch.set_num_threads(threads)
