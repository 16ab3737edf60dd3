import sqlite3
import subprocess
from contextlib import closing

import numpy as np
import pytest

from monitorch.errors import StoreError
from monitorch.store import open_run
from monitorch.store.backend import TableFile
from monitorch.store.types import Frame

LAYERS = tuple(map(str, range(500)))


@pytest.fixture
def file(tmp_path):
    return TableFile(tmp_path / "rank0.db", "wal", None)


def write(file, first, count=50):
    for step in range(first, first + count):
        file.write([Frame("Norm", step, 0, 0.0, ("mean",), LAYERS, np.full((1, 500), step, np.float32))])


def test_log_that_a_slow_reader_made_grow_is_cut_once_it_is_gone(file, tmp_path):
    write(file, 0)
    wal = tmp_path / "rank0.db-wal"
    with closing(sqlite3.connect(file.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM hot").fetchone()
        write(file, 50, 300)
        file.maintain()
        assert wal.stat().st_size > 1_000_000
    file.maintain()
    assert wal.stat().st_size == 0
    with open_run(tmp_path) as run:
        assert run.series("Norm", "mean", "3").values.tolist() == list(range(350))
    file.close()


def test_reader_at_the_moment_of_closing_does_not_prevent_it(file, tmp_path):
    write(file, 0)
    with open_run(tmp_path) as run:
        file.close()
        assert run.lenses["Norm"].ticks == 50
    alone = tmp_path / "copy" / "rank0.db"
    alone.parent.mkdir()
    alone.write_bytes(file.path.read_bytes())
    with open_run(alone) as run:
        assert run.lenses["Norm"].ticks == 50


def test_file_of_a_folder_that_nobody_may_write_to_is_read(file, tmp_path, mount):
    write(file, 0)
    disk = mount("size=4m")
    with open_run(tmp_path):
        file.close()  # leaves the file as one that wants side files
    (disk / "whole.db").write_bytes(file.path.read_bytes())
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with open_run(disk / "whole.db") as run:
        assert run.lenses["Norm"].ticks == 50


def test_file_of_a_killed_writer_in_such_a_folder_has_to_be_copied(file, tmp_path, mount):
    write(file, 0)
    disk = mount("size=4m")
    for name in ("rank0.db", "rank0.db-wal"):
        (disk / name).write_bytes((tmp_path / name).read_bytes())
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(StoreError, match=r"rank0\.db cannot be opened: .*; copy it to a folder that you can write to"):
        open_run(disk)
    file.close()


def test_very_small_file_keeps_columns_of_256_ticks_of_the_whole_run(tmp_path):
    file = TableFile(tmp_path / "rank0.db", "wal", 100_000)
    write(file, 0, 1000)
    file.close()
    with open_run(tmp_path) as run:
        assert len(run.series("Norm", "mean", "3").values) == 0
        window = run.window("Norm", "mean", resolution=1000, layers=["3", "400"])
        assert list(zip(window.axis.step, window.last_step, strict=True)) == [
            (0, 255), (256, 511), (512, 767), (768, 999),
        ]  # fmt: skip
        assert window.mean.tolist() == [[127.5, 383.5, 639.5, 883.5]] * 2
        assert window.maximum.tolist() == [[255, 511, 767, 999]] * 2


def test_ticks_of_all_lenses_go_in_the_order_of_their_age(tmp_path):
    file = TableFile(tmp_path / "rank0.db", "wal", 3_000_000)
    for step in range(2000):
        lens = "Old" if step < 1000 else "New"
        file.write([Frame(lens, step, 0, float(step), ("mean",), LAYERS, np.full((1, 500), step, np.float32))])
    file.close()
    with open_run(tmp_path) as run:
        assert len(run.series("Old", "mean", "3").values) == 0
        new = run.series("New", "mean", "3")
        assert len(new.values) > 200
        assert (new.values.tolist(), new.axis.step[-1]) == (new.axis.step.tolist(), 1999)
