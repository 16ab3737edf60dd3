"""The pages about the diagnosis and its symptoms say what the code does."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from monitorch.cli.demo import FAULTS
from monitorch.diagnosis import SYMPTOMS
from monitorch.store.types import SEVERITIES

DOCS = Path(__file__).parents[2] / "docs" / "gallery"
HEADINGS = ["The rule", "How to read it", "First things to try", "Caveats"]
each_symptom = pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.id)


def meaning(symptom):
    return symptom.__doc__.split("\n\n")[0].replace("\n", " ")


def page(symptom):
    return (DOCS / "symptoms" / f"{symptom.id}.md").read_text(encoding="utf-8")


def test_the_diagnosis_lists_all_symptoms():
    text = (DOCS / "diagnosis.md").read_text(encoding="utf-8")
    rows = [
        f"| [`{symptom.id}`](symptoms/{symptom.id}.md){' *' * symptom.needs_start} | {meaning(symptom)} |"
        for symptom in SYMPTOMS
    ]
    assert [line for line in text.splitlines() if line.startswith("| [`")] == rows


def test_each_symptom_has_a_page_and_a_picture_and_there_are_no_others():
    known = sorted(symptom.id for symptom in SYMPTOMS)
    assert sorted(path.stem for path in (DOCS / "symptoms").glob("*.md")) == known
    assert sorted(path.stem for path in (DOCS / "symptoms" / "pictures").iterdir()) == known


@each_symptom
def test_a_page_has_all_that_is_wanted(symptom):
    text = page(symptom)
    assert re.findall("^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert f"](pictures/{symptom.id}.svg)\n" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "!["))) <= 120
    assert (f"`monitorch demo --fault {symptom.id}`" in text) == (symptom.id in FAULTS)


@each_symptom
def test_a_page_says_what_the_code_says(symptom):
    text = page(symptom)
    _, said, *_ = text.split("\n\n")
    assert said.replace("\n", " ") == meaning(symptom)
    rows = [re.split(r"(?<!\\)\|", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    table = [[cell.strip().replace(r"\|", "|") for cell in row] for row in rows]
    assert [row[:2] for row in table] == [[f"`{own.name}`", f"{own.default:g}"] for own in fields(symptom)]
    words = " ".join(symptom.__doc__.split())
    assert all(f"{name.strip('`')}: {what}" in words for name, _, what in table)


@each_symptom
def test_the_rule_explains_every_threshold(symptom):
    rule = page(symptom).split("## The rule")[1].split("\n| ")[0].split("\n## ")[0]
    assert {own.name for own in fields(symptom)} <= set(re.findall(r"`(\w+)`", rule))


@each_symptom
def test_a_page_has_the_finding_of_its_run(symptom):
    (severity, said) = re.findall(r"^> (\w+): (.*?) (?:in|since) ", page(symptom), re.MULTILINE)[0]
    assert severity in SEVERITIES
    assert said == symptom.id.replace("_", " ")


@each_symptom
def test_pictures_are_small_and_have_two_looks(symptom):
    svg = (DOCS / "symptoms" / "pictures" / f"{symptom.id}.svg").read_text(encoding="utf-8")
    assert len(svg) < 150_000
    assert "prefers-color-scheme: dark" in svg
    assert "Healthy: " in svg
    assert "Sick: " in svg
