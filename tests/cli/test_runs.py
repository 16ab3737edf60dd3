import io
import json
import os

import pytest

from monitorch import cli
from monitorch.store import Writer, list_runs

ONE = {"Norm": {"Norm/mean": {"fc": [1.0, 2.0]}}}


@pytest.fixture
def folder(write_run, tmp_path):
    """A run that finished, one that crashed, one that cannot be read, one that goes on, one linked to from outside."""
    write_run("good", ONE, every=50)
    write_run("bad", ONE, status="crashed")
    (tmp_path / "runs" / "odd").mkdir()
    (tmp_path / "runs" / "odd" / "rank0.db").write_text("no database")
    write_run("elsewhere", ONE, status="crashed").rename(tmp_path / "elsewhere")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    with Writer(tmp_path / "runs" / "live") as writer:
        writer.flush()
        yield tmp_path / "runs"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_table_tells_status_ticks_and_steps(folder, capsys):
    assert cli.main(["runs", str(folder)]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["good"][1:4] == ["finished", "2", "100"]
    assert lines["bad"][1] == "crashed"
    assert lines["odd"][1] == "damaged"
    assert lines["live"][1:4] == ["running", "0", "-"]
    assert lines["5"][:2] == ["5", "runs"]


def test_json_tells_the_same_as_the_store(folder, capsys):
    assert cli.main(["runs", str(folder), "--json"]) == 0
    found = {info["name"]: info for info in json.loads(capsys.readouterr().out)}
    assert found.keys() == {"good", "bad", "odd", "live", "link"}
    for info in list_runs(folder):
        known = {key: getattr(info, key) for key in ("status", "ticks", "last_step", "size", "dropped")}
        assert known.items() <= found[info.name].items()
        assert found[info.name]["path"] == str(info.path)
        assert 0 <= info.age - found[info.name]["age"] < 60


def test_a_name_that_is_no_text_is_listed(write_run, capsys, tmp_path):
    write_run("x", ONE).rename(tmp_path / "runs" / os.fsdecode(b"\xff\x1b[31m"))
    assert cli.main(["runs", str(tmp_path / "runs")]) == 0
    assert r"\udcff\x1b[31m" in capsys.readouterr().out


def test_without_runs_it_says_how_to_get_some(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["runs"]) == 0
    assert 'no runs in monitorch_runs; train with visualizer="store"' in capsys.readouterr().out
    assert cli.main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "nowhere"], "there is no folder 'nowhere'; without FOLDER it is monitorch_runs"),
        (["runs", "--yes"], "--yes and --older-than are for --prune"),
        (["runs", "--older-than", "1d"], "--yes and --older-than are for --prune"),
        (["runs", "--prune", "--json"], "--prune --json cannot ask: add --yes"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(capsys, arguments, message):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == f"monitorch: error: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ([], ["good", "link", "live", "odd"]),
        (["--older-than", "1d"], ["bad", "good", "link", "live", "odd"]),
        (["--older-than", "0s"], ["link", "live", "odd"]),
    ],
)
def test_prune_removes_what_crashed_or_is_old_and_nothing_else(folder, capsys, arguments, left):
    assert cli.main(["runs", str(folder), "--prune", "--yes", *arguments]) == 0
    assert names(folder) == left
    assert (folder / "link" / "rank0.db").exists()


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False)])
def test_prune_shows_and_asks_first(folder, capsys, monkeypatch, answer, removed):
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert cli.main(["runs", str(folder), "--prune"]) == 0
    output = capsys.readouterr().out
    assert output.index("crashed") < output.index("Remove 1 run? [y/N]")
    assert ("removed 1 run" in output) is removed
    assert (folder / "bad").exists() is not removed


def test_prune_removes_nothing_when_nobody_answers(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert cli.main(["runs", str(folder), "--prune"]) == 1
    assert "nobody answered, so nothing is removed; --yes removes without asking" in capsys.readouterr().err
    assert (folder / "bad").exists()


def test_prune_spares_a_run_that_was_resumed_while_it_asked(folder, capsys, monkeypatch):
    writers = []

    def resume(prompt):
        writers.append(Writer(folder / "bad", resume=True))
        writers[0].flush()
        return "y"

    monkeypatch.setattr("builtins.input", resume)
    assert cli.main(["runs", str(folder), "--prune"]) == 0
    writers[0].close()
    assert "removed 0 runs" in capsys.readouterr().out
    assert (folder / "bad" / "rank0.db").exists()


def test_prune_leaves_other_files_of_the_folder_alone(folder, capsys):
    for name in ("checkpoint.pt", "rank0.db.copy"):
        (folder / "bad" / name).write_text("precious")
    assert cli.main(["runs", str(folder), "--prune", "--yes"]) == 0
    assert names(folder / "bad") == ["checkpoint.pt", "rank0.db.copy"]
    assert f"left alone, since it holds other files: {folder / 'bad'}" in capsys.readouterr().out


def test_prune_in_json_tells_what_it_removed(folder, capsys):
    assert cli.main(["runs", str(folder), "--prune", "--yes", "--json"]) == 0
    assert [info["name"] for info in json.loads(capsys.readouterr().out)] == ["bad"]
    assert cli.main(["runs", str(folder), "--prune", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
