"""All cases with a fault, and all healthy programs, by name."""

from __future__ import annotations

from . import healthy, mlp, ports, transformer
from .case import Case, Healthy

CASES: dict[str, Case] = {case.name: case for case in [*mlp.CASES, *transformer.CASES, *ports.CASES]}
HEALTHY: dict[str, Healthy] = {f"healthy-{case.name}": case for case in healthy.CASES}
