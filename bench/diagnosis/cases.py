"""All cases with a fault, by name, and all healthy programs."""

from __future__ import annotations

from . import mlp, ports, transformer
from .case import Case

CASES: dict[str, Case] = {case.name: case for case in [*mlp.CASES, *transformer.CASES, *ports.CASES]}
