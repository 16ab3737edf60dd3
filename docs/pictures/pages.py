"""What the page of a symptom takes from the code: what it means, its thresholds, and a finding of a real run."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from monitorch.diagnosis import Finding, Symptom

from .recipes import Picture

PAGES = Path(__file__).parents[1] / "gallery" / "symptoms"
_HEAD = "| threshold | default | what it is |\n| --- | --- | --- |"


def meaning(symptom: type[Symptom]) -> str:
    """The symptom in one sentence."""
    return (inspect.getdoc(symptom) or "").split("\n\n")[0].replace("\n", " ")


def thresholds(symptom: type[Symptom]) -> str:
    """The thresholds as a table; nothing if there is none.

    >>> from monitorch.diagnosis.symptoms import DeadUnits
    >>> print(thresholds(DeadUnits))
    | threshold | default | what it is |
    | --- | --- | --- |
    | `share` | 0.5 | the share of units that must be dead |
    | `nearly_all` | 0.99 | the share that is a warning even if the run learns |
    """
    said = _attributes(symptom)
    rows = [f"| `{own.name}` | {own.default:g} | {said[own.name]} |" for own in fields(symptom)]
    return "\n".join([_HEAD, *rows]) if rows else ""


def _attributes(symptom: type[Symptom]) -> Mapping[str, str]:
    """What the docstring says of each field."""
    _, _, section = (inspect.getdoc(symptom) or "").partition("Attributes:\n")
    joined = re.sub(r"\n\s{5,}", " ", section)
    found = re.findall(r"^\s+(\w+): (.*)$", joined, re.MULTILINE)
    return {name: text.rstrip(".,").replace("|", r"\|") for name, text in found}  # a bar would end the cell


def renew(page: str, picture: Picture, finding: Finding) -> str:
    """The page with what the code says now, and what was found in the run that its picture shows."""
    symptom = picture.symptom
    page = re.sub(r"(?<=\n\n).*?(?=\n\n!\[)", lambda _: _wrapped(meaning(symptom)), page, count=1, flags=re.DOTALL)
    alternative = f"![Healthy: {picture.healthy}. Sick: {picture.sick}.]"
    page = re.sub(r"!\[.*?\](?=\(pictures/)", lambda _: alternative, page, count=1, flags=re.DOTALL)
    page = re.sub(r"^>.*?(?=\n\n)", lambda _: _wrapped(finding.line, "> "), page, count=1, flags=re.M | re.DOTALL)
    if table := thresholds(symptom):
        page = re.sub(rf"^{re.escape(_HEAD)}.*?(?=\n\n)", lambda _: table, page, count=1, flags=re.M | re.DOTALL)
    return page


def _wrapped(text: str, before: str = "") -> str:
    r"""In lines of 120 columns; a number at the end of a sentence does not begin a list in the next line.

    >>> print(_wrapped("with batches of 1. Most is noise".replace("batches", "b" * 110)).replace("b" * 110, "batches"))
    with batches of
    1\. Most is noise
    """
    lines = textwrap.fill(text, 120, initial_indent=before, subsequent_indent=before, break_on_hyphens=False)
    return re.sub(rf"^({before}\d+)\. ", r"\1\\. ", lines, flags=re.MULTILINE)
