"""The bench is no part of the package: it is imported from the root of the project."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture
def figures():
    """Rows of cases by keyword, as the bench leaves them."""
    from dataclasses import asdict

    from bench.cases import Case

    def make(model="mlp", ratio=1.2, problem=None, **options):
        case = Case("small", model, **options)
        numbers = {
            "bare_ms": 1.0,
            "watched_ms": ratio,
            "added_ms": ratio - 1,
            "ratio": ratio,
            "pairs": 3,
            "modules": 6,
            "took_s": 0.1,
        }
        extra = {"label": case.label, "problem": problem, "memory_gib": 0.1, "breaks": 0 if case.compiled else None}
        return {**asdict(case), **extra, **({} if problem else numbers)}

    return make
