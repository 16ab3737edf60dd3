import sqlite3
from contextlib import closing

import pytest

from monitorch.store import Writer, journal, open_run


@pytest.fixture
def refuse(monkeypatch):
    """A file system on which some journals do not work."""

    def make(*journals):
        real = journal.connect

        def connect(path, chosen):
            if chosen in journals:
                raise sqlite3.OperationalError("disk I/O error")
            return real(path, chosen)

        monkeypatch.setattr(journal, "connect", connect)

    return make


@pytest.mark.parametrize(
    ("broken", "chosen", "file"),
    [((), "wal", "rank0.db"), (("wal",), "truncate", "rank0.db"), (("wal", "truncate"), "log", "rank0.log")],
)
def test_best_journal_that_works_is_chosen_and_the_probe_leaves_nothing(tmp_path, refuse, broken, chosen, file):
    refuse(*broken)
    assert journal.probe(tmp_path) == chosen
    assert list(tmp_path.iterdir()) == []
    with Writer(tmp_path / "run") as writer:
        writer.put("Norm", 1, [[5.0]], layers=["fc"], statistics=["mean"])
        assert writer.path.name == file
    with open_run(tmp_path / "run") as run:
        assert run.series("Norm", "mean", "fc").values.tolist() == [5.0]


def test_journal_that_a_second_reader_cannot_see_through_is_not_chosen(tmp_path, monkeypatch):
    real = journal._reader

    def blind(uri):
        connection = real(uri)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            connection.close()
            raise sqlite3.OperationalError("unable to open database file")
        return connection

    monkeypatch.setattr(journal, "_reader", blind)
    assert journal.probe(tmp_path) == "truncate"


def test_log_is_continued_as_a_log(tmp_path, refuse):
    Writer(tmp_path / "run", journal="log").close()
    with Writer(tmp_path / "run", resume=True) as writer:
        assert writer.path.name == "rank0.log"


def test_readers_cannot_change_a_file(tmp_path):
    Writer(tmp_path / "run").close()
    with (
        closing(journal.connect_to_read(tmp_path / "run" / "rank0.db")) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        connection.execute("DELETE FROM meta")
