"""What a finding says, and that it survives JSON."""

import json
import math

import pytest

from monitorch.diagnosis import ACTIONS, Evidence, Finding, Remedy, findings_of, verdict
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
        ([finding("a", step=7), finding("b", "error", step=5)], "2 problems since step 5"),
        (
            [finding("a", step=7), finding("b", caused_by="a:fc1"), finding("c", caused_by="b:fc1")],
            "1 problem since step 7",
        ),
        ([finding("a", step=2), finding("b", caused_by="a:fc1", resolved_at=90)], "1 problem since step 2"),
        # a cause that is over has left something behind
        ([finding("a", "info", step=2, resolved_at=9), finding("b", caused_by="a:fc1")], "1 problem since step 2"),
        # the step is that of the first card
        ([finding("a", step=90), finding("b", caused_by="a:fc1")], "1 problem since step 90"),
        ([finding("a", caused_by="gone:fc1")], "1 problem since step 80"),
        ([finding("a", caused_by="a:fc1")], "1 problem since step 80"),
    ],
)
def test_verdict_counts_first_causes_of_what_lasts(findings, words):
    assert verdict(iter(findings)) == words


def test_a_run_that_nobody_has_looked_at_is_not_diagnosed():
    assert findings_of({}) is None
    assert verdict(findings_of({})) == "not diagnosed"


def test_findings_come_back_from_the_facts_of_a_run():
    kept = finding(evidence=(Evidence("norm", None, (1, 2), (0.5, math.inf), 0.1),), caused_by="b:fc1", confidence=0.5)
    assert findings_of(json.loads(json.dumps({"findings": [kept.to_json()]}))) == [kept]
    assert findings_of({"findings": []}) == []


@pytest.mark.parametrize(
    "noted",
    [
        *(None, 3, "text", [3], [None], [{}], [{"symptom": "a"}]),
        [{**finding().to_json(), "severity": "fatal"}],
        [{**finding().to_json(), "remedy": {"text": "Try.", "action": "pray"}}],
    ],
)
def test_findings_that_this_release_cannot_read_are_none(noted):
    assert findings_of({"findings": noted}) is None


def test_line_says_where_and_until_when():
    assert finding().line == "warning: dead units in fc1 since step 80: Half of it is dead. It stays so."
    assert " since step 80 until step 1,200: " in finding(resolved_at=1200).line
