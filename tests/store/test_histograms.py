import sqlite3
import struct
import zlib
from contextlib import closing

import numpy as np
import pytest

from monitorch.errors import MonitorchWarning, OptionError, UnreadableRunError
from monitorch.store import Writer, histograms, open_run
from monitorch.store.histograms import MOST_KEPT, pack, stride, unpack

EDGES = [-2.0, -1.0, 0.5, 3.0]
LAYERS = ["fc.weight", "fc.bias"]


@pytest.fixture(params=["wal", "log"])
def journal(request):
    """Both kinds of files."""
    return request.param


def counts_at(step):
    return [[step, 0, 5], [0, 0, step + 2**40]]


def put(writer, steps, tag="Shape", layers=LAYERS):
    for step in steps:
        writer.put("Lens", step, [[step] * len(layers)], layers=layers, statistics=["Shape/q50"])
        assert writer.put_histograms("Lens", tag, step, counts_at(step), layers=layers, edges=EDGES)


def steps_of(run, tag="Shape"):
    """The steps that have histograms, found as a reader finds them."""
    found, step = [], None
    while (frame := run.histograms("Lens", tag, step)) is not None:
        found.append(frame.step)
        step = frame.step - 1
    return found[::-1]


@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((3, 5), np.int64),
        np.zeros((0, 5), np.int64),
        np.arange(12).reshape(2, 6) % 3 * 2**50,
        np.full((1, 600), 255),
        np.random.default_rng(0).poisson(0.2, (200, 513)),
    ],
)
def test_what_is_packed_comes_out_again(counts):
    layers = [f"layer {place} é" for place in range(len(counts))]
    names, found = unpack(pack(layers, counts), counts.shape[1])
    assert list(names) == layers
    np.testing.assert_array_equal(found, counts)


def test_a_histogram_of_65536_elements_takes_about_200_bytes():
    marks = np.unique(np.ldexp(1 + np.arange(4) / 4, np.arange(-43, 21)[:, None]))
    numbers = np.random.default_rng(0).normal(size=(50, 2**16))
    counts = np.array([np.histogram(row, np.concatenate([-marks[::-1], marks]))[0] for row in numbers])
    assert len(pack([f"layers.{place}.weight" for place in range(50)], counts)) < 50 * 250


def test_a_histogram_is_that_of_its_step_or_the_last_before_it(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, (10, 20, 30))
        writer.flush()
        check_three(tmp_path / "run")
    check_three(tmp_path / "run")


def check_three(folder):
    with open_run(folder) as run:
        assert run.lenses["Lens"].histograms == ("Shape",)
        assert run.histograms("Lens", "Shape", 9) is None
        for asked, step in ((10, 10), (19, 10), (20, 20), (99, 30), (None, 30)):
            frame = run.histograms("Lens", "Shape", asked)
            assert (frame.lens, frame.tag, frame.step, frame.layers) == ("Lens", "Shape", step, tuple(LAYERS))
            np.testing.assert_array_equal(frame.counts, counts_at(step))
            np.testing.assert_array_equal(frame.edges, EDGES)


def test_layers_come_as_they_are_asked_for(tmp_path):
    with Writer(tmp_path / "run") as writer:
        put(writer, (1,))
    with open_run(tmp_path / "run") as run:
        frame = run.histograms("Lens", "Shape", layers=["fc.bias", "another", "fc.weight"])
        assert frame.layers == ("fc.bias", "fc.weight")
        np.testing.assert_array_equal(frame.counts, counts_at(1)[::-1])
        with pytest.raises(OptionError, match="tag='Depth' is unknown"):
            run.histograms("Lens", "Depth")
        with pytest.raises(OptionError, match="Other"):
            run.histograms("Other", "Shape")


def test_other_edges_are_kept_apart(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, (1,))
        writer.put_histograms("Lens", "Shape", 2, [[7]], layers=["fc"], edges=[0, 1])
        writer.put_histograms("Lens", "Wide", 2, [[1, 2, 3]], layers=["fc"], edges=EDGES)
    with open_run(tmp_path / "run") as run:
        assert run.lenses["Lens"].histograms == ("Shape", "Wide")
        assert run.histograms("Lens", "Shape", 1).edges.tolist() == EDGES
        assert run.histograms("Lens", "Shape", 2).edges.tolist() == [0, 1]
        assert run.histograms("Lens", "Wide").edges.tolist() == EDGES


def test_of_a_long_run_evenly_spread_ones_and_the_newest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(histograms, "MOST_KEPT", 8)
    folder, seen = tmp_path / "run", []
    for start in range(0, 45, 15):  # closed and continued: what is kept depends only on how many there were
        with Writer(folder, resume=start > 0) as writer:
            put(writer, range(start, start + 15))
        with open_run(folder) as run:
            seen.append(steps_of(run))
    assert seen == [list(range(0, 15, 2)), [*range(0, 29, 4), 29], [*range(0, 41, 8), 44]]


def test_never_more_than_the_most_are_kept():
    for number in (0, 1, MOST_KEPT - 1, MOST_KEPT, 3 * MOST_KEPT, 10**6):
        kept = len(range(0, number, stride(number)))
        assert min(number, MOST_KEPT // 2) <= kept <= MOST_KEPT


def test_a_full_file_drops_the_oldest_histograms_first(tmp_path):
    many, random = [f"layer{place}" for place in range(400)], np.random.default_rng(0)
    with Writer(tmp_path / "run", max_size=2**20) as writer:
        for step in range(40):
            counts = random.integers(0, 2**30, (len(many), 30))
            writer.put("Lens", step, [[step] * len(many)], layers=many, statistics=["Shape/q50"])
            writer.put_histograms("Lens", "Shape", step, counts, layers=many, edges=range(31))
            writer.flush()
        assert (tmp_path / "run" / "rank0.db").stat().st_size < 2 * 2**20
    with open_run(tmp_path / "run") as run:
        kept = steps_of(run)
        assert kept == list(range(kept[0], 40))
        assert 0 < kept[0] < 39
        assert run.series("Lens", "Shape/q50", "layer7").values.tolist() == list(range(40))
        np.testing.assert_array_equal(run.histograms("Lens", "Shape").counts, counts)


def test_what_comes_after_a_resumed_step_is_hidden(tmp_path, journal):
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, range(10))
    with Writer(tmp_path / "run", journal=journal, resume=True, resume_step=4) as writer:
        put(writer, (7, 8))
    with open_run(tmp_path / "run") as run:
        assert steps_of(run) == [0, 1, 2, 3, 4, 7, 8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": [[1, 2, 3]]}, "one row for each of 2 layers and one column for each of 3 bins"),
        ({"counts": [[1, 2], [3, 4]]}, r"the shape \(2, 2\)"),
        ({"counts": [[1, -2, 3], [0, 0, 0]]}, "none below 0"),
        ({"counts": [[1.5, 2, 3], [0, 0, 0]]}, "whole numbers"),
        ({"counts": [[None, 2, 3], [0, 0, 0]]}, "whole numbers"),
        ({"edges": [0, 1, 1, 2]}, "each larger than the one before"),
        ({"edges": [0, 1, 2, float("inf")]}, "finite numbers"),
        ({"edges": [0, 1, 2, float("nan")]}, "finite numbers"),
        ({"edges": 3.0}, "edges must be"),
        ({"layers": ["fc", "fc"]}, "'fc' comes twice"),
        ({"layers": ["fc", 3]}, "a name must be text"),
        ({"tag": None}, "a name must be text"),
        ({"step": 2**63}, "too large"),
    ],
)
def test_wrong_histograms_are_a_warning_and_training_goes_on(tmp_path, changes, message):
    right = {"tag": "Shape", "step": 3, "counts": counts_at(3), "layers": LAYERS, "edges": EDGES}
    with Writer(tmp_path / "run") as writer:
        with pytest.warns(MonitorchWarning, match=f"put_histograms did not store its arguments: .*{message}"):
            assert not writer.put_histograms("Lens", **{**right, **changes})
        assert writer.dropped == 1
        assert writer.put_histograms("Lens", **right)
    with open_run(tmp_path / "run") as run:
        assert steps_of(run) == [3]


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"no zlib",
        zlib.compress(b""),
        zlib.compress(struct.pack("<II", 2, 10**9) + b"[]"),
        zlib.compress(struct.pack("<II", 1, 0) + b"["),
        zlib.compress(struct.pack("<II", 4, 1) + b'["a"' + b"]" + struct.pack("<IQ", 10**6, 1)),
        zlib.compress(struct.pack("<II", 5, 1) + b'["a"]' + struct.pack("<IQ", 10**6, 1)),
    ],
)
def test_a_damaged_histogram_says_so(tmp_path, blob):
    with Writer(tmp_path / "run") as writer:
        put(writer, (1,))
    with closing(sqlite3.connect(tmp_path / "run" / "rank0.db")) as connection, connection:
        connection.execute("UPDATE histogram SET data = ?", [blob])
    with open_run(tmp_path / "run") as run:
        with pytest.raises(UnreadableRunError, match=r"rank0\.db is damaged"):
            run.histograms("Lens", "Shape")
        assert run.series("Lens", "Shape/q50", "fc.bias").values.tolist() == [1.0]
