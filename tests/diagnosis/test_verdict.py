import json
import math

import pytest

from monitorch.diagnosis import Evidence, Finding, Remedy, findings_of, verdict
from monitorch.errors import OptionError


def finding(symptom, step=3, severity="error", **fields):
    return Finding(symptom, severity, "fc", step, step, "It is so.", Remedy("Try."), **fields)


OVER = {"resolved_at": 9}


@pytest.mark.parametrize(
    ("findings", "words"),
    [
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
        ([finding("a", 2, **OVER), finding("b", 5, caused_by="a:fc")], "1 problem since step 2"),
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
