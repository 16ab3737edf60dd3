"""The page about the diagnosis says what the code does."""

from dataclasses import fields
from pathlib import Path

import pytest

from monitorch.diagnosis import SYMPTOMS

PAGE = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.id)
def test_each_symptom_is_there_with_its_meaning_and_thresholds(symptom):
    thresholds = ", ".join(f"`{own.name}={own.default:g}`" for own in fields(symptom)) or "none"
    star = " *" * symptom.needs_start
    meaning = symptom.__doc__.splitlines()[0]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{symptom.id}`")]
    name, means, limits, remedy = row.strip("| ").split(" | ")
    assert (name, means, limits) == (f"`{symptom.id}`{star}", meaning, thresholds)
    assert remedy


def test_there_are_no_other_symptoms():
    table = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(table) == len(SYMPTOMS)
