"""The document about answers for programs names their fields: no other ones, and none that is missing."""

import json
import re
from pathlib import Path

import pytest

from monitorch import cli
from monitorch.cli.strict_json import SCHEMA

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")


def rows(heading):
    """The rows of the table below a heading."""
    section = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def fields(heading):
    return [first.strip("`") for first, _ in rows(heading)]


COMMANDS = {first.strip("`"): (bool(about), own) for first, about, own in rows("Commands")}


@pytest.fixture
def ask(write_judged, write_run, capsys, tmp_path):
    """The answer of a command about two runs, of which one has findings."""
    write_run("crashed", {"L": {"Norm/mean": {"fc": [1.0]}}}, status="crashed")
    write_judged("first", std=290.0)
    folder = write_judged("second", std=1.0).parent
    arguments = {
        "runs": ["runs", folder],
        "runs --prune": ["runs", folder, "--prune", "--yes"],
        "compare": ["compare", "first", "second", "--runs", folder],
        "export": ["export", "first", "--to", "csv", "-o", tmp_path / "x.csv", "--runs", folder],
        "report": ["report", "first", "-o", tmp_path / "x.html", "--runs", folder],
    }

    def run(command):
        cli.main([*map(str, arguments.get(command, [command, "first", "--runs", folder])), "--json"])
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_has_the_fields_that_the_document_names(ask, command):
    is_about_a_run, own = COMMANDS[command]
    answer = ask(command)
    assert next(iter(answer)) == "schema"
    assert answer.pop("schema") == SCHEMA
    expected = fields("A run") if is_about_a_run else []
    named = re.findall(r"`(\w+)`", re.sub(r":[^;]*(?=;|$)", "", own)) if not own.startswith("none") else []
    assert set(answer) == {*expected, *named}


def test_the_document_lists_every_command_that_answers_programs():
    parsers = next(action for action in cli.build_parser()._actions if action.dest == "command").choices
    answering = {name for name, parser in parsers.items() if "--json" in parser.format_help()}
    assert {command.split()[0] for command in COMMANDS} == answering
    assert all(f"`{name}`" in DOCUMENT.partition("```")[0] for name in answering - {"runs"})


def test_runs_and_findings_have_the_fields_that_the_document_names(ask):
    listed, checked, reported = ask("runs"), ask("check"), ask("report")
    assert [sorted(run) for run in listed["runs"]] == [sorted(fields("A run in short"))] * 3
    assert [sorted(run) for run in reported["runs"]] == [sorted(fields("A run"))]
    (finding,) = checked["findings"]
    assert sorted(finding) == sorted(fields("A finding"))
    told = dict(rows("A finding"))
    for name, inside in (("remedy", finding["remedy"]), ("evidence", finding["evidence"][0])):
        assert set(re.findall(r"`(\w+)`", told[f"`{name}`"])) - {"null"} == set(inside)


def test_the_document_tells_the_version():
    assert f'assert answer["schema"] == {SCHEMA}' in DOCUMENT
