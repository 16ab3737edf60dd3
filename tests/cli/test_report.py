import json
import os
import sys

import pytest

from monitorch import cli
from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Writer


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder to be in, with two runs in the usual place."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        with Writer(tmp_path / "monitorch_runs" / name) as writer:
            writer.put("Norm", 1, [[1.0]], layers=["fc"], statistics=["mean"])
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["first"], "first.html"),
        (["monitorch_runs/second", "first"], "second-first.html"),
        (["first", "-o", "report.html"], "report.html"),
        ([], "second.html"),
        (["--runs", "monitorch_runs", "first"], "first.html"),
    ],
)
def test_a_report_is_one_file(runs, arguments, file, capsys):
    assert cli.main(["report", *arguments]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: 0.")
    assert (runs / file).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_for_programs_it_says_what_it_has_written(runs, capsys):
    assert cli.main(["report", "first", "second", "-o", "both.html", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["path"], facts["size"]) == ("both.html", (runs / "both.html").stat().st_size)
    told = [(one["name"], one["verdict"], one["findings"]) for one in facts["runs"]]
    assert told == [("first", "not diagnosed", None), ("second", "not diagnosed", None)]


def test_nothing_in_the_name_of_a_run_is_obeyed(runs, capsys):
    (runs / "monitorch_runs" / "first").rename(runs / "monitorch_runs" / "evil\u202e\x1b[2J")
    assert cli.main(["report", "evil\u202e\x1b[2J"]) == 0
    assert capsys.readouterr().out.startswith(r"evil\u202e\x1b[2J.html: ")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every name is Unicode")
def test_the_name_of_a_run_need_not_be_unicode(runs, capsys):
    name = os.fsdecode(b"a\xffb")
    (runs / "monitorch_runs" / "first").rename(runs / "monitorch_runs" / name)
    assert cli.main(["report", name]) == 0
    assert (runs / f"{name}.html").read_text(encoding="utf-8").count(r"a\udcffb")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing"),
        (["first", "-o", "monitorch_runs"], "monitorch_runs is a folder: name a file, such as"),
        (["first", "-o", "file/report.html"], "file"),
        (["monitorch_runs"], "monitorch_runs is a folder of runs: name one of them: "),
    ],
)
def test_what_is_wrong_is_said(runs, arguments, message, capsys):
    (runs / "file").touch()
    assert cli.main(["report", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_made(runs):
    assert cli.main(["report", "first", "-o", "for/you/report.html"]) == 0
    assert (runs / "for" / "you" / "report.html").is_file()


def test_what_was_found_is_said(runs, capsys):
    dead = Finding("dead_units", "error", "fc\x1b", 80, 100, "No unit is active.", Remedy("Lower the rate."))
    for name, findings in (("sick", [dead.to_json()]), ("fine", [])):
        with Writer(runs / "monitorch_runs" / name, meta={"findings": findings}) as writer:
            writer.put("Norm", 1, [[1.0]], layers=["fc"], statistics=["mean"])
    problem = r"error: dead units in fc\x1b since step 80: No unit is active."
    assert cli.main(["report", "sick"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["", "1 problem since step 80", problem]
    assert cli.main(["report", "sick", "first", "fine"]) == 0
    below = capsys.readouterr().out.splitlines()[1:]
    assert cli.main(["report", "sick", "fine", "--json"]) == 0
    told = [(one["verdict"], one["findings"]) for one in json.loads(capsys.readouterr().out)["runs"]]
    assert told == [("1 problem since step 80", [dead.to_json()]), ("healthy", [])]
    assert below == ["", "sick:", "1 problem since step 80", problem, "", "fine:", "healthy"]
