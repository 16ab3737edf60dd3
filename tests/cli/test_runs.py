import contextlib
import io
import json
import os
import sqlite3

import pytest

from monitorch import cli
from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Writer, journal, list_runs

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


def finding(symptom, step, severity="warning", **options):
    return Finding(symptom, severity, "fc", step, step, "", Remedy(""), **options).to_json()


@pytest.mark.parametrize(
    ("meta", "line"),
    [
        ({}, "not diagnosed"),
        ({"findings": [{"symptom": "of another release"}]}, "not diagnosed"),
        ({"findings": []}, "healthy"),
        ({"findings": [finding("no_update", 5, resolved_at=9), finding("dead_units", 3, "info")]}, "healthy"),
        ({"findings": [finding("no_update", 1200)]}, "no update since step 1,200"),
        (
            {"findings": [finding("dead_units", 8), finding("no_update", 3, "error"), finding("loss_spike", 4)]},
            "dead units since step 8, 2 more",
        ),
        (
            {"findings": [finding("dead_units", 8), finding("no_update", 9, caused_by="dead_units:fc")]},
            "dead units since step 8",
        ),
    ],
)
def test_table_tells_the_first_problem(write_run, capsys, monkeypatch, meta, line):
    monkeypatch.setenv("COLUMNS", "200")
    folder = write_run("a", ONE, meta=meta).parent
    assert cli.main(["runs", str(folder)]) == 0
    headings, _, row, *_ = capsys.readouterr().out.splitlines()
    assert row[headings.index("verdict") :] == line


@pytest.mark.parametrize(
    ("dropped", "notes"),
    [
        (0, []),
        (1, ["1 frame lost, because the disk was too slow"]),
        (1234, ["1,234 frames lost, because the disk was too slow"]),
    ],
)
def test_what_was_lost_is_told_below_the_run(write_run, capsys, monkeypatch, dropped, notes):
    monkeypatch.setenv("COLUMNS", "200")
    folder = write_run("a", ONE)
    with contextlib.closing(sqlite3.connect(folder / "rank0.db", isolation_level=None)) as file:
        file.execute("UPDATE meta SET value = ? WHERE key = 'dropped'", [str(dropped)])
    assert cli.main(["runs", str(folder.parent)]) == 0
    _, _, _, *below, _, _ = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in below] == notes


@pytest.fixture
def states(write_run, tmp_path, monkeypatch):
    """A run in each state that a file can be in."""
    monkeypatch.setattr(journal, "READ_SECONDS", 0)
    runs = tmp_path / "runs"
    for name in ("empty", "empty_log", "newer", "newer_log", "foreign", "flipped", "cut", "locked", "crashed"):
        write_run(name, ONE, journal="log" if name.endswith("log") else None)
    write_run("crashed_too", ONE).joinpath("rank0.db").unlink()
    with Writer(runs / "crashed_too") as writer:
        writer.close("crashed", error=ValueError("loss is NaN\nin step 7"))
    files = {folder.name: next(folder.glob("rank0.*")) for folder in runs.iterdir()}
    for name in ("empty", "empty_log"):
        files[name].write_bytes(b"")
    whole = files["newer"].read_bytes()
    files["newer"].write_bytes(whole[:60] + (99).to_bytes(4, "big") + whole[64:])
    files["newer_log"].write_bytes(b"monitorch frame log 9\n...")
    files["foreign"].write_bytes(whole[:68] + (7).to_bytes(4, "big") + whole[72:])
    files["flipped"].write_bytes(whole[:100] + bytes(byte ^ 0xFF for byte in whole[100:4000]) + whole[4000:])
    files["cut"].write_bytes(whole[:5000])
    with contextlib.closing(sqlite3.connect(files["locked"], isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield runs


STATES = {
    "empty": ("empty", "is empty: nothing was stored yet"),
    "empty_log": ("empty", "is empty: nothing was stored yet"),
    "newer": ("newer", "was written by a newer monitorch"),
    "newer_log": ("newer", "was written by a newer monitorch"),
    "foreign": ("foreign", "is a database of another program"),
    "flipped": ("damaged", "is damaged or not a run of monitorch"),
    "cut": ("damaged", "is damaged or not a run of monitorch"),
    "locked": ("locked", "is locked by another program at the moment"),
    "crashed_too": ("crashed", "ValueError: loss is NaN in step 7"),
}


def test_every_run_says_what_it_is(states, capsys):
    assert cli.main(["runs", str(states)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (status, why) in STATES.items():
        place = next(place for place, line in enumerate(lines) if line.split()[:1] == [name])
        assert lines[place].split()[1] == status
        assert lines[place + 1].strip().startswith(why)
    assert cli.main(["runs", str(states), "--json"]) == 0
    found = {info["name"]: info for info in json.loads(capsys.readouterr().out)["runs"]}
    assert {name: found[name]["status"] for name in STATES} == {name: status for name, (status, _) in STATES.items()}
    assert found["crashed_too"]["error"]["type"] == "ValueError"
    assert (found["crashed"]["error"], found["crashed"]["problem"]) == (None, None)
    assert found["newer"]["problem"].startswith("was written by")
    assert {name: info["verdict"] for name, info in found.items()} == {
        name: "not diagnosed" if info["problem"] is None else None for name, info in found.items()
    }


def test_what_cannot_be_read_is_never_pruned(states):
    before = names(states)
    assert cli.main(["runs", str(states), "--prune", "--yes", "--older-than", "0s"]) == 0
    assert set(before) - set(names(states)) == {"crashed", "crashed_too"}


@pytest.mark.parametrize("name", [name for name, (status, _) in STATES.items() if status != "crashed"])
def test_commands_say_why_a_run_cannot_be_read(states, capsys, name):
    for command, *options in (["show"], ["top"], ["export", "--to", "csv", "-o", "-"]):
        assert cli.main([command, name, "--runs", str(states), *options]) == 1
        assert STATES[name][1] in capsys.readouterr().err


def test_a_folder_with_nothing_readable_says_why(tmp_path, capsys):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rank0.db").touch()
    assert cli.main(["show", "--runs", str(tmp_path)]) == 2
    assert "; bad is empty: nothing was stored yet" in capsys.readouterr().err


def test_json_tells_the_same_as_the_store(folder, capsys):
    assert cli.main(["runs", str(folder), "--json"]) == 0
    found = {info["name"]: info for info in json.loads(capsys.readouterr().out)["runs"]}
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
    assert "no runs in monitorch_runs; train with monitorch.watch(model, optimizer)" in capsys.readouterr().out
    assert cli.main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == []


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
    assert [info["name"] for info in json.loads(capsys.readouterr().out)["removed"]] == ["bad"]
    assert cli.main(["runs", str(folder), "--prune", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == []
