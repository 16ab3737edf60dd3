import json
import shutil
import sqlite3
import time
from contextlib import closing

import pytest

from monitorch.errors import NoRunError
from monitorch.store import Writer, list_runs, open_run, run_list
from monitorch.store.status import CRASHED_SECONDS


def make(folder, steps=3, **options):
    with Writer(folder, **options) as writer:
        for step in range(steps):
            writer.put("Norm", step, [[step]], layers=["fc"], statistics=["mean"])


def change(file, **facts):
    rows = [(key, json.dumps(value)) for key, value in facts.items()]
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def test_runs_of_a_folder_newest_first(tmp_path):
    make(tmp_path / "first", 5)
    make(tmp_path / "second", 3, journal="log")
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").touch()
    with Writer(tmp_path / "third", rank=1):
        make(tmp_path / "third", 2)
        infos = {info.name: info for info in list_runs(tmp_path)}
    assert list(infos) == ["third", "second", "first"]
    assert [(info.ticks, info.last_step, info.status) for info in (infos["first"], infos["second"])] == [
        (5, 4, "finished"),
        (3, 2, "finished"),
    ]
    assert infos["third"].ranks == (0, 1)
    assert infos["first"].path == tmp_path / "first"
    assert infos["first"].size == (tmp_path / "first" / "rank0.db").stat().st_size
    assert all(0 <= info.age < 60 for info in infos.values())


def test_size_of_a_run_is_that_of_its_own_files(tmp_path):
    make(tmp_path / "run")
    own = sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    (tmp_path / "run" / "checkpoint.pt").write_bytes(bytes(10_000))  # put there by the user
    (info,) = list_runs(tmp_path)
    assert info.size == own


def test_damaged_run_does_not_hide_the_others(tmp_path):
    make(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rank0.db").write_bytes(b"nonsense" * 1000)
    assert {info.name: info.status for info in list_runs(tmp_path)} == {"good": "finished", "bad": "damaged"}


def test_folder_without_runs(tmp_path):
    assert list_runs(tmp_path) == list_runs(tmp_path / "missing") == []


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"heartbeat": +1000}, "running"),
        ({"heartbeat": -1e9}, "crashed"),
        ({"heartbeat": +1000, "pid": 2**22 + 1}, "crashed"),
        ({"heartbeat": +1000, "pid": 2**22 + 1, "host": "elsewhere"}, "running"),
        ({"heartbeat": -CRASHED_SECONDS - 1, "host": "elsewhere"}, "crashed"),
    ],
    ids=["alive", "stale", "process gone", "alive elsewhere", "stale elsewhere"],
)
def test_status_is_derived_from_signs_of_life(tmp_path, facts, status):
    make(tmp_path / "run")
    facts = facts | {"heartbeat": time.time() + facts["heartbeat"]}  # when they were collected is long ago
    change(tmp_path / "run" / "rank0.db", status="running", **facts)
    with open_run(tmp_path / "run") as run:
        assert run.status == status


def test_run_whose_clock_is_ahead_is_as_young_as_can_be(tmp_path):
    make(tmp_path / "ahead")
    make(tmp_path / "now")
    change(tmp_path / "ahead" / "rank0.db", heartbeat=time.time() + 1e6, started=time.time() + 1e6)
    first, _ = list_runs(tmp_path)
    assert (first.name, first.age) == ("ahead", 0.0)


def test_run_that_goes_away_while_runs_are_listed_does_not_hide_the_others(tmp_path, monkeypatch):
    for name in ("stays", "goes"):
        make(tmp_path / name)
    found = run_list.ranks_of

    def and_remove(folder):
        ranks = found(folder)
        if folder.name == "goes":
            shutil.rmtree(folder)
        return ranks

    monkeypatch.setattr(run_list, "ranks_of", and_remove)
    assert [info.name for info in list_runs(tmp_path)] == ["stays"]


def test_run_is_opened_by_folder_rank_or_file(tmp_path):
    make(tmp_path / "run", 2, rank=2)
    make(tmp_path / "run", 4, rank=5)
    found = []
    for arguments in ([tmp_path / "run"], [str(tmp_path / "run"), 5], [tmp_path / "run" / "rank5.db"]):
        with open_run(*arguments) as run:
            found.append(run.last_step)
    assert found == [1, 3, 3]


@pytest.mark.parametrize(
    ("path", "rank", "message"),
    [
        ("rnu", None, "there is no run in .*rnu; runs beside it: other, run"),
        ("run", 7, "rank=7 is not in .*run; choose from 0"),
        ("missing/run", None, "there is no run in .*run$"),
        (".", None, "is a folder of runs: name one of them: other, run"),
    ],
)
def test_run_that_is_not_there_lists_those_that_are(tmp_path, path, rank, message):
    make(tmp_path / "run")
    make(tmp_path / "other")
    with pytest.raises(NoRunError, match=message):
        open_run(tmp_path / path, rank)
