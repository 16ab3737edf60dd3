import json

import pytest

import monitorch
from monitorch import cli
from monitorch.cli.check import SEVERITIES
from monitorch.diagnosis import Evidence, Finding, Remedy
from monitorch.store import types


def finding(symptom="dead_units", severity="error", layer="fc1", **more):
    return Finding(symptom, severity, layer, 80, 100, "No unit is active.", Remedy("Lower the rate."), **more)


@pytest.fixture
def folder(write_run):
    return write_run("first", {"L": {"Norm/mean": {"fc1": [1.0, 2.0]}}}, every=10).parent


@pytest.fixture
def found(monkeypatch):
    """Say what there is to be found; returns the runs that were looked at."""

    def find(*findings):
        seen = []
        monkeypatch.setattr(
            monitorch.diagnosis, "check", lambda run: seen.append(run.name) or [*findings], raising=False
        )
        return seen

    return find


def check(folder, capsys, *arguments, code=0):
    assert cli.main(["check", "--runs", str(folder), *arguments]) == code
    return capsys.readouterr().out


def test_the_verdict_comes_first_then_the_run_then_what_was_found(folder, capsys, found):
    seen = found(finding())
    lines = check(folder, capsys, "first").splitlines()
    assert lines[0] == "1 problem since step 80"
    assert lines[1].startswith("first  finished  step 20")
    expected = ["", "error: dead units in fc1 since step 80", "  No unit is active.", "  Try: Lower the rate."]
    assert lines[2:] == expected
    assert seen == ["first"]


def test_without_a_name_it_is_the_newest_run(folder, capsys, found, write_run):
    write_run("second", {"L": {"Norm/mean": {"fc1": [1.0]}}})
    seen = found()
    assert check(folder, capsys).startswith("healthy\nsecond  finished")
    assert seen == ["second"]


def test_json_is_strict_and_has_everything(folder, capsys, found):
    numbers = Evidence("loss", None, (1, 2), (0.5, float("nan")), float("inf"))
    cause = finding("nonfinite", evidence=(numbers,))
    findings = [cause, finding("no_progress", "warning", None, caused_by=cause.id, resolved_at=90)]
    found(*findings)
    text = check(folder, capsys, "--json")
    facts = json.loads(text, parse_constant=pytest.fail)
    assert list(facts) == ["run", "verdict", "findings"]
    assert (facts["run"], facts["verdict"]) == ("first", "1 problem since step 80")
    assert facts["findings"][0]["evidence"][0]["values"] == [0.5, "nan"]
    assert facts["findings"][0]["evidence"][0]["threshold"] == "inf"
    assert [one["id"] for one in facts["findings"]] == ["nonfinite:fc1", "no_progress:"]
    assert (facts["findings"][1]["caused_by"], facts["findings"][1]["resolved_at"]) == (cause.id, 90)


INFO, WARNING, ERROR = (finding(severity=severity) for severity in SEVERITIES)
HEALED = finding(resolved_at=90)
CONSEQUENCE = finding(caused_by="no_update:fc0")


@pytest.mark.parametrize("option", [[], ["--json"]])
@pytest.mark.parametrize(
    ("findings", "fails_on"),
    [
        ([], []),
        ([INFO], ["info"]),
        ([WARNING], ["info", "warning"]),
        ([ERROR], ["info", "warning", "error"]),
        ([HEALED], []),
        ([HEALED, INFO], ["info"]),
        ([CONSEQUENCE], ["info", "warning", "error"]),
    ],
    ids=["none", "info", "warning", "error", "healed", "healed and info", "consequence"],
)
def test_it_fails_only_if_asked_to_and_something_as_bad_lasts(folder, capsys, found, findings, fails_on, option):
    found(*findings)
    assert check(folder, capsys, *option)
    for severity in SEVERITIES:
        assert check(folder, capsys, "--fail-on", severity, *option, code=int(severity in fails_on))


def test_severities_are_those_of_findings():
    assert types.SEVERITIES == SEVERITIES


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 2, "there is no run 'nowhere'"),
        (["first", "--rank", "7"], 1, "7"),
    ],
)
def test_a_run_that_is_not_there_is_said_as_by_the_other_commands(folder, capsys, found, arguments, code, message):
    found(ERROR)
    assert cli.main(["check", "--runs", str(folder), *arguments, "--fail-on", "error"]) == code
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""
