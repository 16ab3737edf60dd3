"""What a command loads, and how it ends, in processes of their own."""

import pytest

LENS = {"L": {"Norm/mean": {"fc": [1.0, 2.0], "head": [3.0, 4.0]}}}
COMMANDS = {
    "runs": ["runs", "{runs}"],
    "check": ["check", "judged", "--runs", "{runs}"],
    "show": ["show", "a", "--runs", "{runs}"],
    "top": ["top", "a", "--runs", "{runs}", "--once"],
    "compare": ["compare", "a", "a", "--runs", "{runs}"],
    "export": ["export", "a", "--runs", "{runs}", "--to", "csv", "-o", "-"],
}
LOADED = (
    "import sys, monitorch.cli\n"
    "code = monitorch.cli.main(sys.argv[1:])\n"
    "print(code, *sorted({'torch', 'rich', 'starlette', 'uvicorn', 'tensorboard', 'pyarrow'} & set(sys.modules)),"
    " file=sys.stderr)"
)


@pytest.fixture
def folder(write_run, write_judged):
    write_judged("judged", std=290.0)
    write_run("b", {"L": {"Norm/mean": {"fc": [1.0, 2.0], "head": [3.0, 5.0]}}})
    return write_run("a", LENS).parent


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_reading_command_loads_what_it_needs_and_no_more(python, folder, tmp_path, name, option):
    arguments = [argument.format(runs=folder) for argument in COMMANDS[name]] + option
    if name == "export" and option:
        arguments[-2] = str(tmp_path / "x.csv")
    result = python("-c", LOADED, *arguments)
    code, *loaded = result.stderr.splitlines()[-1].split()
    assert code == "0"
    assert loaded == ([] if option or name == "export" else ["rich"])
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
        (["check", "judged"], 0),
        (["check", "judged", "--fail-on", "error"], 0),
        (["check", "judged", "--fail-on", "warning"], 1),
        (["check", "judged", "--fail-on", "fatal"], 2),
        (["check", "a"], 1),
        (["check", "c"], 2),
        (["show", "a", "--lens", "xyz"], 2),
        (["show", "a", "--fly"], 2),
        (["show", "a", "--rank", "7"], 1),
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
