import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import numpy as np
import pytest

import monitorch
from monitorch import cli
from monitorch.diagnosis import Finding, Remedy
from monitorch.errors import MonitorchError
from monitorch.store import Writer


@pytest.fixture
def command(monkeypatch):
    """Add a command that does what the test says."""

    def add(run):
        thing = SimpleNamespace(__doc__="Do a thing.\n\nMore.", add_options=lambda parser: None, run=run)
        monkeypatch.setitem(cli.COMMANDS, "thing", thing)

    return add


def raising(error):
    def run(options):
        raise error

    return run


def test_entry_point_is_main():
    (script,) = entry_points(group="console_scripts", name="monitorch")
    assert script.load() is cli.main


def test_without_a_command_help_lists_them_all(capsys):
    assert cli.main([]) == 0
    output = capsys.readouterr().out
    assert output.startswith("usage: monitorch")
    assert all(name in output for name in cli.COMMANDS)


def test_help_of_a_command_lists_its_options(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["demo", "--help"])
    assert exit_.value.code == 0
    output = capsys.readouterr().out
    assert all(option in output for option in ("--out DIR", "--steps N", "--seed N", "--quiet"))


def test_purpose_of_a_command_is_the_first_line_of_its_docstring(command, capsys):
    command(raising(AssertionError))
    cli.main([])
    output = capsys.readouterr().out
    assert "Do a thing." in output
    assert "More." not in output


def test_help_of_a_command_is_its_docstring(command, capsys):
    command(raising(AssertionError))
    with pytest.raises(SystemExit):
        cli.main(["thing", "--help"])
    assert "Do a thing. More." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("run", "code", "message"),
    [
        (lambda options: None, 0, ""),
        (raising(MonitorchError("no such model")), 1, "monitorch: error: no such model\n"),
        (raising(OSError(28, "No space left on device")), 1, "monitorch: error: [Errno 28] No space left on device\n"),
        (raising(KeyboardInterrupt()), 130, "monitorch: interrupted\n"),
    ],
)
def test_exit_codes(command, capsys, run, code, message):
    command(run)
    assert cli.main(["thing"]) == code
    assert capsys.readouterr().err == message


def test_a_bug_is_not_hidden(command):
    command(raising(ZeroDivisionError("division by zero")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["thing"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "invalid choice: 'fly'"),
        (["--fly"], "unrecognized arguments: --fly"),
        (["demo", "--fly"], "unrecognized arguments: --fly"),
        (["demo", "--steps", "0"], "argument --steps: '0' is not a whole number of at least 1"),
        (["demo", "--steps", "many"], "argument --steps: 'many' is not a whole number of at least 1"),
        (["demo", "--steps", "1.5"], "argument --steps: '1.5' is not a whole number"),
        (["demo", "--seed", "-1"], "argument --seed: '-1' is not a whole number between 0 and 9223372036854775807"),
        (["demo", "--seed", str(2**63)], "is not a whole number between 0"),
        (["demo", "--fault", "fly"], "argument --fault: invalid choice: 'fly' (choose from"),
        (["demo", "--fault", "fly"], "output_loss_mismatch"),
        (["check", "--fail-on", "fatal"], "argument --fail-on: invalid choice: 'fatal' (choose from"),
        (["demo", "--out"], "argument --out: expected one argument"),
    ],
)
def test_bad_arguments_are_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


def test_version(python):
    result = python("-m", "monitorch", "--version")
    assert (result.returncode, result.stdout) == (0, f"monitorch {monitorch.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["--version"], ["demo", "--help"], ["demo", "--steps", "0"]])
def test_no_torch_before_a_command_runs(python, arguments):
    script = (
        "import sys, monitorch.cli\n"
        "try: monitorch.cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    assert python("-c", script, *arguments).stderr.splitlines()[-1] == "[]"


def test_a_reader_that_goes_away_is_no_traceback():
    script = (
        "from types import SimpleNamespace\n"
        "from monitorch import cli\n"
        "cli.COMMANDS['chat'] = SimpleNamespace(add_options=lambda parser: None, run=lambda options: print('text'))\n"
        "raise SystemExit(cli.main(['chat']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, b"")


HOSTILE = "fc\u202e\x1b[31m\x07\u2066\x9b2J"


@pytest.fixture
def hostile(tmp_path):
    """Runs whose names, and whatever else they hold, have orders for a terminal in them."""
    tmp_path = tmp_path / "runs"
    found = Finding(HOSTILE, "error", HOSTILE, 3, 4, HOSTILE, Remedy(HOSTILE))
    names = {"layers": [HOSTILE, "b"], "statistics": [f"{HOSTILE}/mean"]}
    for number in range(2):
        meta = {HOSTILE: HOSTILE, "config": {HOSTILE: [HOSTILE]}, "findings": [found.to_json()]}
        with Writer(tmp_path / f"{HOSTILE}{number}", meta=meta) as writer:
            for step in range(9):
                writer.put(HOSTILE, step, [[1.0 + number, np.nan]], **names)
                writer.put("run", step, [[1.0 + number]], layers=["run"], statistics=[f"{HOSTILE}/{HOSTILE} mean"])
            writer.event(3, HOSTILE, "error", layer=HOSTILE, statistic=HOSTILE, body={HOSTILE: HOSTILE})
            writer.close("crashed", error=type(HOSTILE, (Exception,), {})(HOSTILE))
    return tmp_path


@pytest.mark.parametrize("columns", ["40", "100", "300"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "DIR"],
        ["check", "--runs", "DIR", "--all"],
        ["show", "--runs", "DIR", "--all"],
        ["top", "--runs", "DIR"],
        ["compare", f"{HOSTILE}0", f"{HOSTILE}1", "--runs", "DIR"],
        ["report", "--runs", "DIR", "-o", f"{HOSTILE}.html"],
        ["export", f"{HOSTILE}0", "--runs", "DIR", "--to", "csv", "-o", f"{HOSTILE}.csv"],
        ["export", f"{HOSTILE}0", "--runs", "DIR", "--to", "csv", "-o", "-", "--all"],
        ["show", f"{HOSTILE}x", "--runs", "DIR"],
        ["show", "--runs", "DIR", "--layers", re.escape(HOSTILE) + "x"],
        ["runs", "DIR", "--prune", "--yes"],
    ],
    ids=lambda arguments: " ".join(arguments[:1]),
)
def test_no_command_lets_a_terminal_obey_a_name(hostile, capsys, monkeypatch, tmp_path, arguments, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # without colours, which are orders, too
    monkeypatch.chdir(tmp_path)
    options = ["--once"] if arguments[0] == "top" else []
    cli.main([str(hostile) if word == "DIR" else word for word in arguments] + options)
    output = capsys.readouterr()
    text = output.out + output.err
    assert text
    assert [character for character in text if not character.isprintable() and character != "\n"] == []
