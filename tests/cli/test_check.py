import json

import pytest

from monitorch import cli
from monitorch.cli.check import SEVERITIES, is_as_bad
from monitorch.diagnosis import Finding, Remedy, check
from monitorch.store import Writer, open_run, types


@pytest.fixture
def folder(write_judged, write_run):
    write_run("other", {"L": {"Norm/mean": {"fc": [1.0]}}})
    write_judged("sick", std=290.0)
    write_judged("empty", std=1.0, steps=0)
    return write_judged("fine", std=1.0).parent


def run_check(folder, capsys, *arguments, code=0):
    assert cli.main(["check", "--runs", str(folder), *arguments]) == code
    return capsys.readouterr().out


def test_the_verdict_comes_first_then_the_run_then_what_was_found(folder, capsys):
    with open_run(folder / "sick") as run:
        (found,) = check(run)
    lines = run_check(folder, capsys, "sick").splitlines()
    assert lines[0] == "1 problem since step 1"
    assert lines[1].startswith("sick  finished  step 20")
    expected = ["", "warning: input scale since step 1", f"  {found.explanation}", f"  Try: {found.remedy.text}"]
    told = " ".join(lines[2:]).split()  # however wide the screen is
    assert told[-len(" ".join(expected).split()) :] == " ".join(expected).split()
    assert "290" in found.explanation


def test_without_a_name_it_is_the_newest_run(folder, capsys):
    lines = run_check(folder, capsys).splitlines()
    assert lines[0] == "healthy"
    assert lines[1].startswith("fine  finished")
    assert "too few to judge" in " ".join(lines[2:])
    assert "warning" not in " ".join(lines[2:])


def test_it_says_what_could_not_be_judged(folder, capsys):
    notes = json.loads(run_check(folder, capsys, "--json"))["notes"]
    assert notes[-1] == "0 steps were observed: too few to judge layers; that needs 5."
    assert " ".join(notes) in " ".join(run_check(folder, capsys).split())


def test_json_is_strict_and_has_every_finding(folder, capsys):
    facts = json.loads(run_check(folder, capsys, "sick", "--json"), parse_constant=pytest.fail)
    with open_run(folder / "sick") as run:
        found = check(run)
    assert (facts["name"], facts["verdict"], facts["last_step"]) == ("sick", "1 problem since step 1", 20)
    assert [Finding.from_json(one) for one in facts["findings"]] == found
    fine = json.loads(run_check(folder, capsys, "--json"))
    assert (fine["name"], fine["verdict"], fine["findings"]) == ("fine", "healthy", [])


@pytest.mark.parametrize("option", [[], ["--json"]])
@pytest.mark.parametrize(
    ("run", "severity", "code"),
    [
        ("sick", None, 0),
        ("sick", "info", 1),
        ("sick", "warning", 1),
        ("sick", "error", 0),
        ("fine", None, 0),
        ("fine", "info", 0),
    ],
)
def test_it_fails_only_if_asked_to(folder, capsys, run, severity, code, option):
    limit = [] if severity is None else ["--fail-on", severity]
    assert run_check(folder, capsys, run, *limit, *option, code=code)


@pytest.mark.parametrize(("limit", "code"), [([], 0), (["--fail-on", "error"], 1)])
def test_a_run_that_has_crashed_says_what_ended_it_and_is_as_bad_as_any_finding(folder, capsys, limit, code):
    with Writer(folder / "fine", resume=True) as writer:
        writer.close("crashed", ValueError("the batch is empty"))
    lines = run_check(folder, capsys, "fine", *limit, code=code).splitlines()
    assert lines[1].startswith("fine  crashed")
    assert lines[2] == "ValueError: the batch is empty"


def finding(severity, **more):
    return Finding("dead_units", severity, "fc1", 80, 100, "No unit is active.", Remedy(""), **more)


INFO, WARNING, ERROR = map(finding, SEVERITIES)
HEALED, CONSEQUENCE = finding("error", resolved_at=90), finding("error", caused_by="no_update:fc0")


@pytest.mark.parametrize(
    ("findings", "as_bad_as"),
    [
        ([], ()),
        ([INFO], ("info",)),
        ([WARNING], ("info", "warning")),
        ([ERROR, INFO], SEVERITIES),
        ([HEALED], ()),
        ([HEALED, INFO], ("info",)),
        ([INFO, CONSEQUENCE], SEVERITIES),
    ],
    ids=["none", "info", "warning", "error", "healed", "healed and info", "consequence"],
)
def test_only_what_lasts_counts_a_consequence_or_not(findings, as_bad_as):
    assert tuple(severity for severity in SEVERITIES if is_as_bad(findings, severity)) == as_bad_as


def test_severities_are_those_of_findings():
    assert types.SEVERITIES == SEVERITIES


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 2, "there is no run 'nowhere'"),
        (["sick", "--rank", "7"], 2, "rank=7 is not in"),
        ([".."], 2, "there is no run in"),
        (["empty"], 1, "cannot be diagnosed: no step was stored"),
        (["other"], 1, "cannot be diagnosed"),
    ],
)
def test_a_run_that_cannot_be_judged_is_an_error(folder, capsys, arguments, code, message):
    assert cli.main(["check", "--runs", str(folder), *arguments]) == code
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""
