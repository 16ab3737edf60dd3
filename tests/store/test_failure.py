"""What ended a run is kept with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from monitorch.store import Failure, Writer, list_runs, open_run
from monitorch.store.failure import LONGEST_LINE, LONGEST_MESSAGE, MOST_LINES
from monitorch.store.journal import JOURNALS


def raised(call):
    """The exception of a call, with its traceback."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # whatever it is
        call()
    return caught.value


def divide():
    return 1 / 0


def error_of(folder):
    with open_run(folder) as run:
        return run.error


@pytest.mark.parametrize("journal", JOURNALS)
def test_exception_that_ended_a_run_is_read_back(tmp_path, journal):
    Writer(tmp_path / "run", journal=journal).close("crashed", error=raised(divide))
    with open_run(tmp_path / "run") as run:
        assert (run.status, run.error.type, run.error.message) == ("crashed", "ZeroDivisionError", "division by zero")
        assert run.error.line == "ZeroDivisionError: division by zero"
    lines = run_lines(tmp_path / "run")
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert any("in divide" in line for line in lines)
    assert any("1 / 0" in line for line in lines)


def run_lines(folder):
    return error_of(folder).traceback


def test_block_that_fails_keeps_its_exception(tmp_path):
    def train():
        with Writer(tmp_path / "run"):
            divide()

    assert raised(train).__class__ is ZeroDivisionError
    assert error_of(tmp_path / "run").type == "ZeroDivisionError"


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("", None),
        ("raise SystemExit(3)", None),
        ("raise KeyError('lr')", "KeyError: 'lr'"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_exception_that_nobody_caught_is_kept(tmp_path, ending, error):
    code = f"from monitorch.store import Writer\nwriter = Writer({str(tmp_path / 'run')!r})\n{ending}"
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, timeout=60, check=False)
    found = error_of(tmp_path / "run")
    assert (found and found.line) == error


def test_run_that_ends_well_or_goes_on_has_none(tmp_path):
    with Writer(tmp_path / "run"):
        assert error_of(tmp_path / "run") is None
    assert error_of(tmp_path / "run") is None


@pytest.mark.parametrize("journal", JOURNALS)
def test_resumed_run_forgets_how_it_failed(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        writer.put("Norm", 1, [[1.0]], layers=["fc"], statistics=["mean"])
        writer.close("crashed", error=raised(divide))
    with Writer(tmp_path / "run", journal=journal, resume=True):
        assert error_of(tmp_path / "run") is None
    assert error_of(tmp_path / "run") is None
    assert [info.status for info in list_runs(tmp_path)] == ["finished"]


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Weird(Exception):
    """A message that is no text a file can hold as it is."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Mute(), ""),
        (Weird("x" * 100_000), "x" * LONGEST_MESSAGE),
        (Weird("\udcff\x00\x1b[31m\u202e"), "\udcff\x00\x1b[31m\u202e"),
        (Weird(), ""),
        (KeyboardInterrupt(), ""),
    ],
    ids=["mute", "endless", "odd characters", "empty", "interrupt"],
)
def test_any_exception_can_be_kept(tmp_path, error, message):
    Writer(tmp_path / "run").close("crashed", error=error)
    found = error_of(tmp_path / "run")
    assert (found.type, found.message) == (type(error).__name__, message)
    assert all(len(line) <= LONGEST_LINE for line in found.traceback)


def test_only_the_end_of_a_long_traceback_is_kept(tmp_path):
    def dig(depth):
        return dig(depth - 1) + dig(0) if depth else divide()  # not one call on a line: such lines are folded

    found = Failure.of(raised(lambda: dig(200)))
    assert 10 < len(found.traceback) <= MOST_LINES
    assert found.traceback[-1] == "ZeroDivisionError: division by zero"


def test_cause_is_in_the_traceback():
    def train():
        try:
            divide()
        except ZeroDivisionError as error:
            raise ValueError("bad batch") from error

    found = Failure.of(raised(train))
    assert found.line == "ValueError: bad batch"
    assert "ZeroDivisionError: division by zero" in found.traceback


def test_traceback_does_not_tell_where_somebody_lives(tmp_path, monkeypatch):
    script = tmp_path / "home" / "me" / "project" / "train.py"
    package = tmp_path / "home" / "me" / "env" / "site-packages" / "lib" / "net.py"
    for path, text in ((package, "def forward():\n    return 1 / 0\n"), (script, "def main(call):\n    call()\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    names = {}
    for path in (package, script):
        exec(compile(path.read_text(), str(path), "exec"), names)
    error = raised(lambda: names["main"](names["forward"]))
    places = (script.parent, "train.py"), (script.parent.parent, "project/train.py"), (Path("/"), "train.py")
    for folder, shown in places:
        monkeypatch.chdir(folder)
        text = "\n".join(Failure.of(error).traceback)
        assert '"lib/net.py"' in text
        assert f'"{shown}"' in text
        assert tmp_path.name not in text


@pytest.mark.parametrize("ending", ["from error", ""], ids=["its cause", "while it was handled"])
def test_paths_of_an_error_before_it_are_shortened_too(ending, tmp_path):
    script = tmp_path / "train.py"
    text = "def main():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n        raise ValueError "
    text += ending
    script.write_text(text)
    names = {}
    exec(compile(text, str(script), "exec"), names)
    lines = Failure.of(raised(names["main"])).traceback
    assert "ZeroDivisionError: division by zero" in lines
    assert [line for line in lines if '"train.py", line 3' in line]
    assert tmp_path.name not in "\n".join(lines)


def test_file_of_an_earlier_version_has_none(tmp_path):
    Writer(tmp_path / "run").close("crashed")
    for kept in (None, "old text", 3, {"type": "E"}, {"type": "E", "message": 1, "traceback": "no list"}):
        failure = Failure.from_meta({"error": kept})
        assert failure is None or failure.traceback == ()
    assert error_of(tmp_path / "run") is None
    assert json.loads(json.dumps(Failure("E", "m", ("a",))._asdict()))["traceback"] == ["a"]
