import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from monitorch.errors import StoreError
from monitorch.store import Statistic, Writer, open_run
from monitorch.store.frame_log import FIRST_LINE
from monitorch.store.schema import APPLICATION_ID, MIGRATIONS, VERSION
from monitorch.store.tiles import Columns

# as files were when epochs were not stored
VERSION_0 = """
CREATE TABLE meta (key PRIMARY KEY, value) WITHOUT ROWID; CREATE TABLE segment (id INTEGER PRIMARY KEY, after, time);
CREATE TABLE layer (id INTEGER PRIMARY KEY, name UNIQUE, place, kind, parameters);
CREATE TABLE lens (id INTEGER PRIMARY KEY, name UNIQUE, raw_from DEFAULT 0, fine_from DEFAULT 0);
CREATE TABLE statistic (lens, place, name, scale DEFAULT 'linear', low, high, PRIMARY KEY (lens, place)) WITHOUT ROWID;
CREATE TABLE lens_layer (lens, place, layer, PRIMARY KEY (lens, place)) WITHOUT ROWID;
CREATE TABLE hot (lens, seq, segment, step, time, statistics, data, PRIMARY KEY (lens, seq));
CREATE TABLE block (lens, id, segment, seq, ticks, statistics, layers, steps, times, PRIMARY KEY (lens, id));
CREATE TABLE tile (lens, level, statistic, layers, block, data);
CREATE UNIQUE INDEX tile_key ON tile (lens, level, statistic, layers, block);
CREATE TABLE event (id INTEGER PRIMARY KEY, segment, step, time, severity, kind, layer, statistic, body);
PRAGMA application_id = 0x4D4F4E49;
INSERT INTO meta VALUES ('name', '"old"'), ('status', '"finished"');
INSERT INTO layer (id, name, place) VALUES (1, 'fc', 0);
INSERT INTO lens (id, name) VALUES (1, 'Norm');
INSERT INTO statistic (lens, place, name) VALUES (1, 0, 'mean');
INSERT INTO lens_layer VALUES (1, 0, 1);
INSERT INTO event (segment, step, time, severity, kind, body) VALUES (0, 2, 5.0, 'info', 'note', '{}');
"""


@pytest.fixture
def old_file(tmp_path):
    """A file of version 0: a sealed block with the steps 0 and 1, and step 2 unsealed."""
    path = tmp_path / "old" / "rank0.db"
    path.parent.mkdir()
    values = np.array([[10.0, np.nan]], np.float32)
    summary = Columns(np.array([[[10.0]]] * 3, np.float32), np.array([[[1]], [[1]]], np.uint16)).to_bytes()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(VERSION_0)
        axis = np.array([0, 1], np.int64).tobytes(), np.array([3.0, 4.0]).tobytes()
        connection.execute("INSERT INTO block VALUES (1, 0, 0, 0, 2, 1, 1, ?, ?)", axis)
        for level, data in enumerate((values.tobytes(), summary, summary)):
            connection.execute("INSERT INTO tile VALUES (1, ?, 0, 0, 0, ?)", (level, data))
        connection.execute("INSERT INTO hot VALUES (1, 2, 0, 2, 5.0, 1, ?)", [np.float32(12).tobytes()])
    return path


def check(run, values):
    axis, found = run.series("Norm", "mean", "fc")
    np.testing.assert_array_equal(found, np.float32(values))
    assert axis.step.tolist() == list(range(len(values)))
    assert axis.epoch.tolist() == [0, 0, 0, 7, 7][: len(values)]
    assert axis.time.tolist()[:3] == [3.0, 4.0, 5.0]
    assert run.window("Norm", "mean", resolution=1).nonfinite.tolist() == [[1]]
    assert [(event.kind, event.epoch) for event in run.events()] == [("note", 0)]


def version_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_older_file_is_read_without_being_changed(old_file):
    before = old_file.read_bytes()
    with open_run(old_file.parent) as run:
        check(run, [10, np.nan, 12])
    assert old_file.read_bytes() == before


def test_older_file_is_brought_up_to_date_when_it_is_resumed(old_file):
    with Writer(old_file.parent, resume=True) as writer:
        assert writer.resumed_step == 2
        for step in (3, 4):
            writer.put("Norm", step, [[step]], layers=["fc"], statistics=["mean"], epoch=7)
    assert version_of(old_file) == VERSION
    with open_run(old_file.parent) as run:
        check(run, [10, np.nan, 12, 3, 4])


def test_new_file_has_the_newest_version(tmp_path):
    Writer(tmp_path / "run").close()
    assert version_of(tmp_path / "run" / "rank0.db") == VERSION == len(MIGRATIONS) - 1
    with closing(sqlite3.connect(tmp_path / "run" / "rank0.db")) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        facts = dict(connection.execute("SELECT * FROM meta"))
    assert json.loads(facts["status"]) == "finished"


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("PRAGMA user_version = 99", "was written by a newer monitorch .*: upgrade monitorch to read it"),
        ("PRAGMA application_id = 7", "is a database of another program, not a run of monitorch"),
        ("PRAGMA application_id = 0", "is a database of another program, not a run of monitorch"),
    ],
)
@pytest.mark.parametrize("open_", [open_run, lambda folder: Writer(folder, resume=True)], ids=["reader", "writer"])
def test_foreign_and_newer_files_are_refused_and_left_alone(old_file, statements, message, open_):
    with closing(sqlite3.connect(old_file)) as connection:
        connection.executescript(statements)
    before = old_file.read_bytes()
    with pytest.raises(StoreError, match=rf"rank0\.db {message}"):
        open_(old_file.parent)
    assert old_file.read_bytes() == before


# --- files of the time when a statistic was only a name, as a training run left them ---

OLD_RUNS = Path(__file__).parent / "old_runs"
OF_OUTPUT_NORM = [
    ("mean", "line", "", ""),
    ("median", "line", "", ""),
    ("-σ", "edge", "std", "low"),
    ("+σ", "edge", "std", "high"),
    ("Q1", "edge", "Q1-Q3", "low"),
    ("Q3", "edge", "Q1-Q3", "high"),
    ("min", "edge", "min-max", "low"),
    ("max", "edge", "min-max", "high"),
]


@pytest.fixture(params=["db", "log"])
def trained_before(request, tmp_path):
    """The folder of a run with losses, a metric, bands of all kinds and comparisons."""
    folder = tmp_path / "old"
    folder.mkdir()
    if request.param == "log":
        shutil.copy(OLD_RUNS / "version_1.log", folder / "rank0.log")
    else:
        with closing(sqlite3.connect(folder / "rank0.db")) as connection:
            connection.executescript((OLD_RUNS / "version_1.sql").read_text(encoding="utf-8"))
    return folder


def check_parts(run):
    norms = [known for known in run.lenses["OutputNorm"].statistics if known.tag == "Output Norm"]
    found = [(known.line, known.role, known.band, known.side) for known in norms]
    assert found == [*OF_OUTPUT_NORM, ("nonfinite", "count", "", "")]
    (share,) = [known for known in run.lenses["OutputNorm"].statistics if known.role == "share"]
    assert (share.tag, share.curve, share.limits) == ("Mean Output Norm Comparison", "", (0.0, 1.0))
    assert {known.scale for known in run.lenses["ParameterNorm"].statistics if known.role == "line"} == {"log"}
    whole = {known.name: (known.tag, known.curve, known.line) for known in run.lenses["run"].statistics}
    assert whole["Loss/train_loss -σ"] == ("Loss", "train_loss", "-σ")
    assert whole["Metrics/top 1 mean"] == ("Metrics", "top 1", "mean")
    assert whole["Logged/learning rate nonfinite"] == ("Logged", "learning rate", "nonfinite")
    assert run.window("run", "Metrics/top 1 mean", resolution=1).nonfinite.tolist() == [[1]]
    assert (
        run.series("OutputNorm", "Output Norm/Q1", "1").values[0]
        <= run.series("OutputNorm", "Output Norm/median", "1").values[0]
    )


def test_file_that_knows_only_names_is_read_with_the_parts_of_its_statistics(trained_before):
    (file,) = trained_before.iterdir()
    before = file.read_bytes()
    with open_run(trained_before) as run:
        check_parts(run)
    assert file.read_bytes() == before


def test_file_that_knows_only_names_is_continued_with_their_parts(trained_before):
    own = Statistic.of("Output Norm", "p95", role="edge", band="tails", side="high", error=0.5)
    with Writer(trained_before, resume=True) as writer:
        writer.introduce_statistics("OutputNorm", [own])
        writer.put("OutputNorm", 9, [[1.0], [2.0]], layers=["1"], statistics=["Output Norm/mean", own.name])
    with open_run(trained_before) as run:
        assert run.lenses["OutputNorm"].statistics[-1] == own
        assert run.series("OutputNorm", own.name, "1").values.tolist() == [2.0]
        assert len(run.series("OutputNorm", "Output Norm/mean", "1").values) == 3
    if (trained_before / "rank0.log").exists():
        assert (trained_before / "rank0.log").read_bytes().startswith(FIRST_LINE)


def test_log_of_a_newer_version_is_refused(tmp_path):
    log = tmp_path / "rank0.log"
    log.write_bytes((OLD_RUNS / "version_1.log").read_bytes().replace(b"log 1\n", b"log 9\n", 1))
    with pytest.raises(StoreError, match=r"a newer monitorch \(version 9 of the log, this one reads up to \d"):
        open_run(tmp_path)
