"""What a finding says, and that it survives JSON."""

import json
import math

import pytest

from monitorch.diagnosis import ACTIONS, Evidence, Finding, Remedy, verdict
from monitorch.errors import OptionError
from monitorch.store.types import SEVERITIES


def finding(symptom="dead_units", severity="warning", layer="fc1", step=80, **more):
    return Finding(symptom, severity, layer, step, 100, "Half of it is dead. It stays so.", Remedy("Try."), **more)


def test_json_gives_the_same_finding():
    shown = Evidence("dead units", "fc1", (1, 2, 5), (0.25, -1e300, 1e-300), 0.5)
    remedy = Remedy("Lower it.", "scale_lr", {"factor": 0.1, "layers": ["a", "b"]})
    known = Finding("x", "error", None, 3, 4, "Text.", remedy, (shown,), "input_scale:", 0.7, 12)
    again = Finding.from_json(json.loads(json.dumps(known.to_json(), allow_nan=False)))
    assert again == known


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_evidence_that_is_not_finite_survives_strict_json(value):
    known = finding(evidence=(Evidence("loss", None, (1, 2), (0.5, value)),))
    text = json.dumps(known.to_json(), allow_nan=False)
    (again,) = Finding.from_json(json.loads(text)).evidence
    assert again.values[0] == 0.5
    assert str(again.values[1]) == str(value)


def test_json_has_what_a_page_shows_and_may_have_more():
    data = finding(layer=None).to_json()
    assert (data["id"], data["title"], data["layer"]) == ("dead_units:", "dead units", None)
    assert Finding.from_json({**data, "of a later release": 1}) == finding(layer=None)


def test_an_unknown_action_is_refused_with_the_right_ones():
    with pytest.raises(OptionError, match="scale_rl") as told:
        Remedy("Lower it.", "scale_rl")
    assert all(action in str(told.value) for action in ACTIONS)


@pytest.mark.parametrize("severity", ["fatal", "", "Warning", None])
def test_an_unknown_severity_is_refused_with_the_right_ones(severity):
    with pytest.raises(OptionError) as told:
        finding(severity=severity)
    assert all(known in str(told.value) for known in SEVERITIES)


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ([], "healthy"),
        ([finding(severity="info")], "healthy"),
        ([finding(resolved_at=90)], "healthy"),
        ([finding(step=1234)], "1 problem since step 1,234"),
    ],
)
def test_verdict_counts_open_first_causes(findings, words):
    assert verdict(iter(findings)) == words


def test_line_says_where_and_until_when():
    assert finding().line == "warning: dead units in fc1 since step 80: Half of it is dead. It stays so."
    assert " since step 80 until step 1,200: " in finding(resolved_at=1200).line
