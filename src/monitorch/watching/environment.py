"""Facts to keep beside the numbers of a run: what was trained, with which settings, and on which machine."""

import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..engine.optimizers import StandIn
from ..inspector.module_tree import size_of
from .settings import settings

GIT_SECONDS = 2.0
"""How long git may take to answer."""


def environment_facts(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """The model and its optimizers, the script, the git commit and the machine, as JSON data."""
    return {
        "model": {
            "kind": type(model).__name__,
            "parameters": _count(model.parameters()),
            "trained parameters": _count(parameter for parameter in model.parameters() if parameter.requires_grad),
        },
        "optimizers": [_optimizer(optimizer) for optimizer in optimizers],
        "script": Path(sys.argv[0]).name if sys.argv else "",
        "git": commit(Path.cwd()),
        "machine": {"platform": platform.platform(), "devices": _devices()},
    }


def _count(parameters: Iterable[nn.Parameter]) -> int | None:
    """How many elements they have; None while some are not initialised."""
    known = list(parameters)
    return None if any(map(is_lazy, known)) else sum(map(size_of, known))


def commit(folder: Path) -> dict[str, Any] | None:
    """The git commit that is checked out, and whether files differ from it; None outside a repository."""
    head, status = (_git(folder, *command) for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno")))
    return None if head is None else {"commit": head, "changed": bool(status)}


def _git(folder: Path, *command: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *command], cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """The class and the options of an optimizer, without those that are None."""
    options = {name: value for name, value in getattr(optimizer, "defaults", {}).items() if value is not None}
    kind = optimizer.kind if isinstance(optimizer, StandIn) else type(optimizer).__name__
    return {"kind": kind, **settings(options)}


def _devices() -> list[str]:
    if not torch.cuda.is_available():
        return ["cpu"]
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
