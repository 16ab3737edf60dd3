"""A file that is not where it was, or not ours any more: what comes next is stored in another one."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from monitorch.errors import MonitorchWarning, StoreError
from monitorch.store import Layer, Statistic, Writer, list_runs, open_run
from monitorch.store.journal import JOURNALS


def remove(folder):
    shutil.rmtree(folder)


def move(folder):
    folder.rename(folder.with_name("moved"))


def remove_the_file(folder):
    for path in folder.iterdir():
        path.unlink()


@pytest.fixture
def train(one):
    """Store the steps as numbers and, if wanted, close."""

    def run(writer, *steps, close=False):
        for step in steps:
            one(writer, step, step)
            writer.flush()
        if close:
            writer.close()

    return run


@pytest.mark.parametrize("journal", JOURNALS)
@pytest.mark.parametrize("take_away", [remove, move, remove_the_file])
def test_run_that_is_taken_away_while_it_trains_goes_on_in_a_new_file(tmp_path, train, values_of, journal, take_away):
    writer = Writer(tmp_path / "run", journal=journal, meta={"config": {"lr": 0.1}})
    writer.note(best=2)
    train(writer, 1)
    take_away(tmp_path / "run")
    text = r"rank0\.\w+ was removed or moved while it was being written\. From now on the run is stored in .*run/rank0"
    with pytest.warns(MonitorchWarning, match=text) as told:
        train(writer, 2, 3, 4, close=True)
    assert (len(told), writer.dropped) == (1, 0)
    assert values_of(tmp_path / "run") == [2.0, 3.0, 4.0]
    with open_run(tmp_path / "run") as run:
        assert (run.status, run.name, run.meta["config"], run.meta["best"]) == ("finished", "run", {"lr": 0.1}, 2)
        assert {"id", "started", "pid", "host", "versions"} <= run.meta.keys()
    if take_away is move:
        assert values_of(tmp_path / "moved") == [1.0]


@pytest.mark.parametrize("journal", JOURNALS)
def test_new_file_knows_the_layers_and_how_statistics_are_drawn(tmp_path, journal):
    layers = Layer("stem", "Conv2d", 30), Layer("head", "Linear", 8)
    with Writer(tmp_path / "run", journal=journal) as writer:
        writer.introduce_layers(layers)
        writer.introduce_statistics("Norm", [Statistic("mean", "log", (0.0, 1.0))])
        writer.flush()
        remove(tmp_path / "run")
        with pytest.warns(MonitorchWarning, match="removed or moved"):
            writer.flush()
        writer.put("Norm", 1, [[1.0, 2.0]], layers=["head", "stem"], statistics=["mean"])
    with open_run(tmp_path / "run") as run:
        assert run.layers == layers
        assert run.lenses["Norm"].statistics == (Statistic("mean", "log", (0.0, 1.0)),)


def test_run_that_was_resumed_and_taken_away_has_an_identity_again(tmp_path, train, values_of):
    train(Writer(tmp_path / "run"), 1, close=True)
    writer = Writer(tmp_path / "run", resume=True)
    remove(tmp_path / "run")
    with pytest.warns(MonitorchWarning, match="removed or moved"):
        train(writer, 2, close=True)
    assert values_of(tmp_path / "run") == [2.0]
    with open_run(tmp_path / "run") as run:
        assert (run.name, {"id", "started"} <= run.meta.keys()) == ("run", True)


def test_warning_comes_even_if_the_program_ends_right_away(tmp_path, train, values_of):
    writer = Writer(tmp_path / "run")
    train(writer, 1)
    remove(tmp_path / "run")
    writer.put("Norm", 2, [[2.0]], layers=["fc"], statistics=["mean"])
    with pytest.warns(MonitorchWarning, match="removed or moved") as told:
        writer.close("crashed", error=ValueError("late"))
    assert told[0].filename == __file__
    assert values_of(tmp_path / "run") == [2.0]
    assert [(info.status, info.why) for info in list_runs(tmp_path)] == [("crashed", "ValueError: late")]


def test_warning_comes_even_if_nobody_closes_the_writer(tmp_path, train, values_of):
    writers = [Writer(tmp_path / "run")]
    train(writers[0], 1)
    remove(tmp_path / "run")
    writers[0].put("Norm", 2, [[2.0]], layers=["fc"], statistics=["mean"])
    with pytest.warns(MonitorchWarning, match="removed or moved"):
        writers.clear()
    assert values_of(tmp_path / "run") == [2.0]


@pytest.mark.parametrize("journal", JOURNALS)
def test_run_of_somebody_else_in_the_same_place_is_left_alone(tmp_path, train, values_of, journal):
    first = Writer(tmp_path / "run", journal=journal)
    train(first, 1)
    remove(tmp_path / "run")
    second = Writer(tmp_path / "run", journal=journal)
    train(second, 10)
    with pytest.warns(MonitorchWarning, match=r"From now on the run is stored in .*run_2"):
        train(first, 2)
    train(second, 20)
    train(first, 3, close=True)
    train(second, 30, close=True)
    assert values_of(tmp_path / "run") == [10.0, 20.0, 30.0]
    assert values_of(tmp_path / "run_2") == [2.0, 3.0]
    assert first.folder == tmp_path / "run_2"
    with open_run(tmp_path / "run_2") as run:
        assert run.name == "run_2"


def test_file_that_its_file_system_gives_another_number_is_still_ours(tmp_path, train, values_of):
    with Writer(tmp_path / "run") as writer:
        train(writer, 1)
        writer._worker.backend._identity = 1, 2
        train(writer, 2)
    assert values_of(tmp_path / "run") == [1.0, 2.0]
    assert [info.name for info in list_runs(tmp_path)] == ["run"]


def test_place_that_is_gone_for_good_is_one_warning(tmp_path, train):
    writer = Writer(tmp_path / "runs" / "run")
    train(writer, 1)
    remove(tmp_path / "runs")
    (tmp_path / "runs").touch()
    with pytest.warns(MonitorchWarning, match="cannot be stored in .*Training goes on without it") as told:
        train(writer, 2, 3, 4, close=True)
    assert (len(told), writer.dropped, writer.path) == (1, 3, None)


def test_place_that_comes_into_being_is_used(tmp_path, train, values_of):
    (tmp_path / "runs").touch()
    with pytest.warns(MonitorchWarning, match="cannot be stored in"):
        writer = Writer(tmp_path / "runs" / "run", meta={"config": {"lr": 0.1}})
    assert not writer.is_storing
    train(writer, 1)
    (tmp_path / "runs").unlink()
    train(writer, 2)
    assert writer.is_storing
    writer.close()
    assert values_of(tmp_path / "runs" / "run") == [2.0]
    with open_run(tmp_path / "runs" / "run") as run:
        assert (run.meta["config"], run.meta["dropped"], run.name) == ({"lr": 0.1}, 1, "run")


# --- who owns a file ---


def test_writer_that_slept_while_another_took_its_run_over_goes_on_beside_it(tmp_path, train, values_of):
    sleeper = Writer(tmp_path / "run")
    train(sleeper, 1)
    with closing(sqlite3.connect(sleeper.path)) as connection, connection:  # nothing was heard of it for long
        connection.execute("UPDATE meta SET value = '\"crashed\"' WHERE key = 'status'")
    heir = Writer(tmp_path / "run", resume=True)
    train(heir, 2)
    with pytest.warns(MonitorchWarning, match=r"another process has taken over .*run/rank0\.db\. .*in .*run_2") as told:
        train(sleeper, 22)
    train(heir, 3, close=True)
    train(sleeper, 33, close=True)
    assert len(told) == 1
    assert values_of(tmp_path / "run") == [1.0, 2.0, 3.0]
    assert values_of(tmp_path / "run_2") == [22.0, 33.0]
    assert [info.dropped for info in list_runs(tmp_path)] == [0, 0]


def test_log_has_one_writer_even_if_the_first_seems_dead(tmp_path, train, values_of):
    with Writer(tmp_path / "run", journal="log") as writer:
        train(writer, 1)
        writer.note(status="crashed")
        writer.flush()
        with pytest.raises(StoreError, match="is being written by another process"):
            Writer(tmp_path / "run", resume=True)
        train(writer, 2)
    train(Writer(tmp_path / "run", resume=True), 3, close=True)
    assert values_of(tmp_path / "run") == [1.0, 2.0, 3.0]
