"""Disks that are full, closed or small."""

import numpy as np
import pytest

from monitorch.errors import MonitorchWarning
from monitorch.store import Writer, list_runs, open_run
from monitorch.store.journal import JOURNALS
from monitorch.store.writer import SMALLEST_SIZE


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
        fill(writer, numbers, put)
    assert writer.path.stat().st_size < 1.01 * SMALLEST_SIZE
    assert_readable(tmp_path / "run", numbers(256, 50))
    assert list_runs(tmp_path)[0].status == "finished"
