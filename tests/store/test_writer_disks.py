"""Disks that are full, closed or small."""

import subprocess

import numpy as np
import pytest

from monitorch.errors import MonitorchWarning
from monitorch.store import Layer, Statistic, Writer, list_runs, open_run
from monitorch.store.journal import JOURNALS
from monitorch.store.writer import SMALLEST_SIZE
from tests.marks import slow


def fill(writer, numbers, put, close=True):
    """Put more than there is room for."""
    for round_ in range(100):
        put(writer, numbers(256, 50), first=256 * round_)
        writer.flush()
    if close:
        writer.close()


def assert_readable(folder, values):
    with open_run(folder) as run:
        axis, found = run.series("Norm", "mean", "layer3")
        assert len(found) > 100
        np.testing.assert_array_equal(found, np.tile(values[:, 0, 3], 100)[axis.step])
        return run.meta


def test_full_disk_is_one_warning_and_what_is_stored_stays(tmp_path, numbers, put):
    writer = Writer(tmp_path / "run")
    writer.flush()
    writer._worker.backend._connection.execute("PRAGMA max_page_count = 300")
    with pytest.warns(MonitorchWarning, match="cannot be stored in .*run: .*full. Training goes on") as caught:
        fill(writer, numbers, put)
    assert len(caught) == 1
    assert writer.dropped > 0
    assert_readable(tmp_path / "run", numbers(256, 50))


def test_disk_that_has_room_again_is_used_again(tmp_path, numbers, put):
    writer = Writer(tmp_path / "run")
    writer.flush()
    writer._worker.backend._connection.execute("PRAGMA max_page_count = 300")
    with pytest.warns(MonitorchWarning):
        fill(writer, numbers, put, close=False)
    writer._worker.backend._connection.execute("PRAGMA max_page_count = 100000")
    writer.flush()  # tries again at once
    lost = writer.dropped
    put(writer, numbers(256, 50), first=256 * 100)
    writer.close()
    assert assert_readable(tmp_path / "run", np.tile(numbers(256, 50), (2, 1, 1)))["dropped"] == lost
    assert list_runs(tmp_path)[0].status == "finished"


@pytest.mark.parametrize("journal", JOURNALS)
def test_real_full_disk(mount, numbers, put, journal):
    disk = mount("size=2m")
    writer = Writer(disk / "run", journal=journal)
    with pytest.warns(MonitorchWarning, match="cannot be stored") as caught:
        fill(writer, numbers, put)
    assert len(caught) == 1
    assert_readable(disk / "run", numbers(256, 50))


def test_read_only_disk(mount, one):
    with pytest.warns(MonitorchWarning, match="cannot be stored in .*Read-only file system") as caught:
        writer = Writer(mount("ro") / "run")
    assert (len(caught), writer.path) == (1, None)
    one(writer, 1)
    writer.close()
    assert writer.dropped == 1


def test_folder_that_cannot_be_made_is_a_warning(tmp_path, one):
    (tmp_path / "file").touch()
    with pytest.warns(MonitorchWarning, match=r"cannot be stored in .*Not a directory.*Training goes on") as caught:
        writer = Writer(tmp_path / "file" / "run")
    assert caught[0].filename == __file__
    assert one(writer, 1)
    writer.flush()
    writer.close()
    assert writer.dropped == 1


@pytest.mark.parametrize("journal", JOURNALS)
def test_disk_that_is_full_from_the_beginning_is_used_once_it_has_room(mount, one, values_of, journal):
    disk = mount("size=64k")
    (disk / "ballast").write_bytes(bytes(52 * 1024))
    with pytest.warns(MonitorchWarning, match="cannot be stored in .*run: ") as caught:
        writer = fill_up(disk / "run", journal)
    assert (len(caught), writer.dropped > 0) == (1, True)
    (disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
    writer.flush()
    one(writer, 10**6, 7.0)
    writer.close()
    assert values_of(disk / "run")[-1] == 7.0
    assert [path.name for path in disk.iterdir()] == ["run"]
    with open_run(disk / "run") as run:
        assert (run.meta["config"], run.name, run.status) == (1, "run", "finished")


def fill_up(folder, journal):
    """A writer that has lost some of its numbers."""
    writer, step = Writer(folder, journal=journal, meta={"config": 1}), 0
    while not writer.dropped:
        step += 1
        writer.put("Norm", step, np.ones((1, 500)), layers=[str(n) for n in range(500)], statistics=["mean"])
        writer.flush()
    return writer


def test_what_was_said_while_the_disk_was_full_is_said_again(tmp_path, numbers, put):
    writer = Writer(tmp_path / "run")
    writer.flush()
    connection = writer._worker.backend._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.warns(MonitorchWarning, match="full"):
        describe(writer)
    connection.execute("PRAGMA max_page_count = 100000")
    put(writer, numbers(3, 3))
    writer.close()
    with open_run(tmp_path / "run") as run:
        assert [layer.kind for layer in run.layers] == ["Linear"] * 3
        assert [layer.name for layer in run.layers] == ["layer2", "layer1", "layer0"]
        assert run.lenses["Norm"].statistics[0].scale == "log"
        assert run.meta["best"] == "x" * 20_000


def describe(writer):
    writer.note(best="x" * 20_000)
    writer.introduce_layers([Layer(f"layer{number}", "Linear") for number in (2, 1, 0)])
    writer.introduce_statistics("Norm", [Statistic("mean", "log")])
    writer.flush()


# --- a bounded run ---


def test_bounded_run_keeps_averages_of_its_oldest_ticks(tmp_path, numbers, put, assert_window):
    values = numbers(6000, 64)
    with Writer(tmp_path / "run", max_size=2 * SMALLEST_SIZE) as writer:
        put(writer, values)
    (info,) = list_runs(tmp_path)
    assert info.size < 1.1 * 2 * SMALLEST_SIZE < values.nbytes
    with open_run(tmp_path / "run") as run:
        axis, found = run.series("Norm", "mean", "layer5")
        assert 0 < axis.step[0] < axis.step[-1] == 5999
        np.testing.assert_array_equal(found, values[axis.step, 0, 5])
        for resolution in (1, 20):
            assert_window(run.window("Norm", "mean", resolution=resolution), values[:, 0], 0, 5999, resolution)
        fine = run.window("Norm", "mean", resolution=6000)
        assert_window(fine, values[:, 0], 0, 5999, 6000)
        assert len(fine.axis.step) > 1000
        inside = run.window("Norm", "mean", 100, 5000, resolution=10)
        assert inside.axis.step[0] <= 100 < 5000 <= inside.last_step[-1]


def test_bounded_log_stops(tmp_path, numbers, put):
    writer = Writer(tmp_path / "run", max_size=SMALLEST_SIZE, journal="log")
    with pytest.warns(MonitorchWarning, match="has reached max_size=1048576, and a log cannot be shortened"):
        fill(writer, numbers, put, close=False)
    put(writer, numbers(256, 50), first=25600)
    writer.event(25700, "late")  # in one group with numbers
    writer.close()
    assert writer.path.stat().st_size < 1.01 * SMALLEST_SIZE
    meta = assert_readable(tmp_path / "run", numbers(256, 50))
    (info,) = list_runs(tmp_path)
    assert info.status == "finished"
    assert info.dropped == meta["dropped"] == writer.dropped > 0
    with open_run(tmp_path / "run") as run:
        assert [event.kind for event in run.events()] == ["late"]


def test_a_log_that_is_full_still_shows_that_it_is_being_written(tmp_path, numbers, put, monkeypatch):
    writer = Writer(tmp_path / "run", max_size=SMALLEST_SIZE, journal="log")
    with pytest.warns(MonitorchWarning, match="has reached max_size"):
        fill(writer, numbers, put, close=False)
    before = list_runs(tmp_path)[0].age
    for step in range(3):
        writer.put("Norm", 30000 + step, np.ones((1, 50)), layers=[str(n) for n in range(50)], statistics=["mean"])
        writer.flush()
    (info,) = list_runs(tmp_path)
    assert info.status == "running"
    assert info.age <= before + 1.0
    assert info.dropped == writer.dropped
    writer.close()


@pytest.mark.parametrize("max_size", [2 * SMALLEST_SIZE, SMALLEST_SIZE], ids=["columns of 16", "columns of 256"])
@pytest.mark.parametrize("first", [1000, slow(1024), slow(5990)])
def test_bounded_run_that_is_resumed_among_its_averages_shows_nothing_that_is_hidden(
    tmp_path, numbers, put, oracle, max_size, first
):
    old, new = numbers(6000, 64), -numbers(700, 64)
    options = {"max_size": max_size}
    with Writer(tmp_path / "run", **options) as writer:
        put(writer, old)
    with Writer(tmp_path / "run", resume=True, resume_step=first - 1, **options) as writer:
        put(writer, new, first=first)
        writer.flush()
        check_bounded(tmp_path / "run", np.concatenate([old[:first], new]), first, oracle)
    check_bounded(tmp_path / "run", np.concatenate([old[:first], new]), first, oracle)


def check_bounded(folder, expected, first, oracle):
    """Every column is that of the numbers that count; single ticks that are left are exact."""
    layer = 5
    with open_run(folder) as run:
        axis, values = run.series("Norm", "mean", f"layer{layer}")
        np.testing.assert_array_equal(values, expected[axis.step, 0, layer])
        for resolution in (1, 20, 300, 7000):
            window = run.window("Norm", "mean", resolution=resolution)
            begin, end = window.axis.step, window.last_step
            assert len(begin) <= resolution
            assert end[-1] == len(expected) - 1
            assert (begin[1:] > end[:-1]).all()
            # no more is missing than the column in which the run was resumed
            assert (begin[1:] - end[:-1] - 1).sum() < 256
            if resolution == 7000:
                assert not ((begin < first) & (end >= first)).any()
                for column, parts in enumerate(oracle(expected[:, 0], begin, end)):
                    _, low, high, nonfinite = parts
                    if begin[column] < end[column]:
                        np.testing.assert_array_equal(window.minimum[:, column], low)
                        np.testing.assert_array_equal(window.maximum[:, column], high)
                    np.testing.assert_array_equal(window.nonfinite[:, column], nonfinite)
