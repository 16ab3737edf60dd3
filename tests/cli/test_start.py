"""What a command loads, and how it ends, in processes of their own."""

import json

import pytest

from tests.marks import slow

LENS = {"L": {"Norm/mean": {"fc": [1.0, 2.0], "head": [3.0, 4.0]}}}
COMMANDS = {
    "runs": ["runs", "{runs}"],
    "check": ["check", "judged", "--runs", "{runs}"],
    "show": ["show", "a", "--runs", "{runs}"],
    "top": ["top", "a", "--runs", "{runs}", "--once"],
    "compare": ["compare", "a", "a", "--runs", "{runs}"],
    "export": ["export", "a", "--runs", "{runs}", "--to", "csv", "-o", "-"],
}
LOADED = """
import json, sys, monitorch.cli
LARGE = {"torch", "rich", "starlette", "uvicorn", "tensorboard", "pyarrow"}
for arguments in json.loads(sys.argv[1]):
    print(monitorch.cli.main(arguments), *sorted(LARGE & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def folder(write_run, write_judged):
    write_judged("judged", std=290.0)
    write_run("b", {"L": {"Norm/mean": {"fc": [1.0, 2.0], "head": [3.0, 5.0]}}})
    return write_run("a", LENS).parent


@pytest.mark.parametrize("name", COMMANDS)
def test_a_reading_command_loads_what_it_needs_and_no_more(python, folder, tmp_path, name):
    plain = [argument.format(runs=folder) for argument in COMMANDS[name]]
    machine = [*plain, "--json"] if name != "export" else [*plain[:-1], str(tmp_path / "x.csv"), "--json"]
    result = python("-c", LOADED, json.dumps([machine, plain]))
    assert result.stderr.splitlines() == ["0", "0" if name == "export" else "0 rich"]
    assert result.stdout


def test_importing_the_command_line_loads_nothing_large(python):
    script = "import sys, monitorch.cli; print(*({'torch', 'rich', 'starlette', 'uvicorn'} & set(sys.modules)))"
    assert python("-c", script).stdout == "\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["compare", "a", "a"], 0),
        (["compare", "a", "b"], 1),
        (["compare", "a", "c"], 2),
        (["check", "judged", "--fail-on", "error"], 0),
        (["check", "judged", "--fail-on", "warning"], 1),
        (["check", "judged", "--fail-on", "fatal"], 2),
        slow(["check", "judged"], 0),
        slow(["check", "a"], 1),
        slow(["check", "c"], 2),
        slow(["show", "a", "--lens", "xyz"], 2),
        slow(["show", "a", "--fly"], 2),
        slow(["show", "a", "--rank", "7"], 2),
    ],
)
def test_exit_codes(python, folder, arguments, code):
    result = python("-m", "monitorch", *arguments, "--runs", folder)
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    is_answer = code == 0 or arguments in (["compare", "a", "b"], ["check", "judged", "--fail-on", "warning"])
    assert bool(result.stderr) != is_answer


def test_a_terminal_without_unicode_is_written_to(python, folder):
    result = python("-m", "monitorch", "top", "a", "--runs", folder, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "head" in result.stdout
    assert result.stdout.isascii()
