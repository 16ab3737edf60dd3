"""The bench is no part of the package: it is imported from the root of the project."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture
def case_row():
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


@pytest.fixture
def paid():
    """The same of what users pay."""
    from dataclasses import asdict

    from bench.user import UserCase
    from bench.windows import compare, is_true

    def make(model="mlp", setting="default", ratio=1.5, said=0.1, problem=None, compiled=False, **figures):
        case = UserCase(model, setting, compiled)
        row = {**asdict(case), "label": case.label, "problem": problem, "took_s": 0.1}
        if problem:
            return row
        is_bound = setting == "every1"
        row |= compare([1.0] * 4, [ratio] * 4, 1000)
        row |= {"overhead": ratio - 1, "said": said, "said_is_bound": is_bound}
        row |= {"said_is_true": is_true(said, ratio - 1, is_bound)}
        row |= {
            "cpu_ratio": 1.25,
            "whole_runs": {"5": 1.4, "60": 1.08},
            "memory_gib": 0.5,
            "first_extra_s": 2.25,
            "seen": 7,
        }
        return row | figures

    return make
