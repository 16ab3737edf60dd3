<<<<<<< HEAD
=======
"""What a finding says, and that it survives JSON."""

>>>>>>> cd13011cae86dae8682ccd7d72cb4c1e1ad1068f
import json
import math

import pytest

<<<<<<< HEAD
from monitorch.diagnosis import Evidence, Finding, Remedy, findings_of, verdict
from monitorch.errors import OptionError


def finding(symptom, step=3, severity="error", **fields):
    return Finding(symptom, severity, "fc", step, step, "It is so.", Remedy("Try."), **fields)


OVER = {"resolved_at": 9}
=======
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
>>>>>>> cd13011cae86dae8682ccd7d72cb4c1e1ad1068f


@pytest.mark.parametrize(
    ("findings", "words"),
    [
<<<<<<< HEAD
        (None, "not diagnosed"),
        ([], "healthy"),
        ([finding("a", severity="info")], "healthy"),
        ([finding("a", **OVER)], "healthy"),
        ([finding("a", 1_500)], "1 problem since step 1,500"),
        ([finding("a", 7), finding("b", 5, severity="warning")], "2 problems since step 5"),
        (
            [finding("a", 7), finding("b", 8, caused_by="a:fc"), finding("c", 9, caused_by="b:fc")],
            "1 problem since step 7",
        ),
        # a cause that is over has left something behind
        ([finding("a", 2, **OVER), finding("b", 5, caused_by="a:fc")], "1 problem since step 5"),
        ([finding("a", 2), finding("b", 5, caused_by="a:fc", **OVER)], "1 problem since step 2"),
        ([finding("a", 2, caused_by="gone:fc")], "1 problem since step 2"),
        ([finding("a", 2, caused_by="a:fc")], "1 problem since step 2"),
    ],
)
def test_the_verdict_counts_first_causes_of_what_lasts(findings, words):
    assert verdict(findings) == words


def test_a_circle_of_causes_ends():
    assert verdict([finding("a", caused_by="b:fc"), finding("b", caused_by="a:fc")]).endswith("since step 3")


def test_findings_come_back_from_the_facts_of_a_run():
    evidence = Evidence("norm", None, (1, 2), (0.5, math.inf), 0.1)
    kept = finding("a", evidence=(evidence,), caused_by="b:fc", confidence=0.5, **OVER)
    facts = json.loads(json.dumps({"findings": [kept.to_json()]}))
    assert findings_of(facts) == [kept]
    assert findings_of({"findings": []}) == []


@pytest.mark.parametrize("noted", [None, 3, "text", [3], [None], [{}], [{"symptom": "a"}]])
def test_findings_that_cannot_be_read_are_none(noted):
    assert findings_of({"findings": noted}) is None
    assert findings_of({}) is None


@pytest.mark.parametrize("fields", [{"severity": "fatal"}, {"remedy": {"text": "Try.", "action": "pray"}}])
def test_what_only_another_release_knows_is_not_read(fields):
    data = {**finding("a").to_json(), **fields}
    with pytest.raises(OptionError, match="is unknown; choose from"):
        Finding.from_json(data)
    assert findings_of({"findings": [data]}) is None
=======
        ([], "healthy"),
        ([finding(severity="info")], "healthy"),
        ([finding(resolved_at=90)], "healthy"),
        ([finding(caused_by="no_update:")], "healthy"),
        ([finding(step=1234)], "1 problem since step 1,234"),
        ([finding(step=9), finding(step=7, severity="error"), finding(step=1, severity="info")], "2 problems since step 7"),
    ],
)
def test_verdict_counts_open_first_causes(findings, words):
    assert verdict(iter(findings)) == words


def test_line_says_where_and_until_when():
    assert finding().line == "warning: dead units in fc1 since step 80: Half of it is dead. It stays so."
    assert " since step 80 until step 1,200: " in finding(resolved_at=1200).line
>>>>>>> cd13011cae86dae8682ccd7d72cb4c1e1ad1068f
