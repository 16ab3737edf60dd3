import itertools
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest

from monitorch.errors import OptionError, StoreError, UnreadableRunError
from monitorch.store import Event, Frame, Layer, Run, Statistic, Writer, is_absent, journal, list_runs, open_run
from monitorch.store.backend import TableFile
from monitorch.store.frame_log import FIRST_LINE
from monitorch.store.journal import JOURNALS
from monitorch.store.types import Meta
from tests.marks import slow

TICKS = 620  # two blocks and a part of one


STATES = [(journal, state) for journal in JOURNALS for state in ("live", "finished")]


@pytest.fixture(scope="module", params=STATES, ids="-".join)
def run(request, tmp_path_factory, numbers, put):
    """A run that is still written, with ticks in blocks and out of them, or one that is finished."""
    journal, state = request.param
    writer = Writer(tmp_path_factory.mktemp("written") / "run", journal=journal)
    put(writer, numbers(TICKS, 70))
    writer.flush() if state == "live" else writer.close()
    with open_run(writer.path.parent) as opened:
        yield opened
    writer.close()


# --- numbers ---


def test_a_run_shows_itself_in_a_notebook(tmp_path):
    with Writer(tmp_path / "shown") as writer:
        writer.put("Norm", 3, [[1.0]], layers=["fc"], statistics=["mean"])
    with open_run(tmp_path / "shown") as run:
        bundle = run._repr_mimebundle_()
    assert bundle["text/plain"] == "shown: finished at step 3, 1 layers"
    assert bundle["text/html"].startswith("<iframe sandbox=")


def test_series_are_the_numbers_that_were_put(run, numbers):
    values = numbers(TICKS, 70)
    for statistic, name in enumerate(("mean", "max")):
        for layer in (0, 63, 64, 69):
            axis, found = run.series("Norm", name, f"layer{layer}")
            np.testing.assert_array_equal(found.view(np.uint32), values[:, statistic, layer].view(np.uint32))
    assert axis.step.tolist() == list(range(TICKS))
    assert axis.epoch.tolist() == [step // 10 for step in range(TICKS)]
    assert axis.time.tolist() == [1e9 + step for step in range(TICKS)]


def test_part_of_a_series(run, numbers):
    axis, found = run.series("Norm", "max", "layer7", 250, 600)
    assert (axis.step[0], axis.step[-1], len(axis.step)) == (250, 600, 351)
    np.testing.assert_array_equal(found, numbers(TICKS, 70)[250:601, 1, 7])


@pytest.mark.parametrize(("first", "last"), [(None, None), slow(0, 255), (100, 530), slow(300, 300), slow(511, 619)])
def test_windows_are_those_of_a_loop(run, numbers, assert_window, first, last):
    ends = first or 0, TICKS - 1 if last is None else last
    for resolution in (1, 2, 5, 30, 38, 39, 200, TICKS, 5000):
        window = run.window("Norm", "max", first, last, resolution)
        assert window.layers == tuple(f"layer{number}" for number in range(70))
        assert_window(window, numbers(TICKS, 70)[:, 1], *ends, resolution)


@pytest.mark.parametrize("resolution", [10, TICKS])
def test_window_of_some_layers(run, resolution):
    whole = run.window("Norm", "mean", resolution=resolution)
    for layers in (["layer69", "layer3"], ["layer1", "layer2"], ["layer5"], []):
        window = run.window("Norm", "mean", resolution=resolution, layers=layers)
        rows = [whole.layers.index(layer) for layer in layers]
        assert window.layers == tuple(layers)
        for part, all_rows in zip(window[3:], whole[3:], strict=True):
            np.testing.assert_array_equal(part, all_rows[rows])


def test_window_without_ticks_has_no_columns(run):
    for span in ((900, 1000), (30, 20)):
        window = run.window("Norm", "mean", *span, resolution=10)
        assert window.mean.shape == window.nonfinite.shape == (70, 0)
        assert len(run.series("Norm", "mean", "layer0", *span).values) == 0


def test_frames_are_those_that_were_put(run, numbers):
    for step in (0, 300, 619):
        frame = run.frame_at(step)["Norm"]
        assert (frame.step, frame.epoch, frame.time) == (step, step // 10, 1e9 + step)
        assert (frame.statistics, len(frame.layers)) == (("mean", "max"), 70)
        np.testing.assert_array_equal(frame.values, numbers(TICKS, 70)[step])


def test_newest_frame_is_the_last_one(run, numbers):
    np.testing.assert_array_equal(run.newest()["Norm"].values, numbers(TICKS, 70)[-1])
    assert run.frame_at(10**9)["Norm"].step == run.newest()["Norm"].step == run.last_step == TICKS - 1
    assert run.frame_at(-1) == {}


def test_lens_at_a_glance(run):
    lens = run.lenses["Norm"]
    assert (lens.ticks, lens.first_step, lens.last_step) == (TICKS, 0, TICKS - 1)
    assert lens.statistics == (Statistic("mean"), Statistic("max"))


# --- names ---


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.series("Nrm", "mean", "layer0"), "lens='Nrm' is unknown; choose from 'Norm'"),
        (lambda run: run.series("Norm", "avg", "layer0"), "statistic='avg' is unknown; choose from 'mean', 'max'"),
        (lambda run: run.series("Norm", "mean", "fc"), "layer='fc' is unknown; choose from 'layer0', 'layer1'"),
        (lambda run: run.window("Norm", "mean", layers=["fc"]), "layer='fc' is unknown"),
        (lambda run: run.window("Norm", "mean", resolution=0), "resolution=0 must be a number of columns"),
    ],
)
def test_wrong_names_list_the_right_ones(stored, numbers, ask, message):
    with pytest.raises(OptionError, match=message):
        ask(stored(numbers(3, 2)))


def test_layers_are_in_the_order_of_the_model_with_what_is_known_of_them(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer.put("Norm", 1, [[3.0, 1.0]], layers=["head", "stem"], statistics=["mean"])
        writer.introduce_layers([Layer("stem", "Conv2d", 30), "body", Layer("head", "Linear")])
        writer.put("Norm", 2, [[4.0, 2.0]], layers=["extra", "body"], statistics=["mean"])
        writer.introduce_layers([Layer("head", parameters=8)])
        writer.introduce_layers(["stem", "unseen", "body", "head"])
    with open_run(tmp_path / "run") as run:
        assert run.layers == (
            Layer("stem", "Conv2d", 30), Layer("body"), Layer("head", "Linear", 8), Layer("extra"),
        )  # fmt: skip
        window = run.window("Norm", "mean")
        assert window.layers == run.lenses["Norm"].layers == ("stem", "body", "head", "extra")
        np.testing.assert_array_equal(window.mean, [[1, np.nan], [np.nan, 2], [3, np.nan], [np.nan, 4]])
        assert window.nonfinite.sum() == 0


@pytest.mark.parametrize("ticks", [40, 600], ids=["unsealed", "sealed"])
def test_layers_and_statistics_may_come_later(tmp_path, ticks):
    with Writer(tmp_path / "run") as writer:
        for step in range(ticks):
            late = step >= ticks // 2
            layers, statistics = ["a", "b"] if late else ["a"], ["max", "mean"] if late else ["mean"]
            values = [[step + 10.0 * row + column for column in range(len(layers))] for row in range(len(statistics))]
            while not writer.put("Norm", step, values, layers=layers, statistics=statistics):
                writer.flush()
        writer.flush()
        with open_run(tmp_path / "run") as run:
            check_late_comers(run, ticks)
    with open_run(tmp_path / "run") as run:
        check_late_comers(run, ticks)


def check_late_comers(run, ticks):
    half = ticks // 2
    early, late = np.arange(half), np.arange(half, ticks)
    assert run.series("Norm", "mean", "a").values.tolist() == [*early, *(late + 10)]
    axis, values = run.series("Norm", "max", "b")
    assert (axis.step.tolist(), values.tolist()) == (late.tolist(), (late + 1).tolist())
    first = run.frame_at(0)["Norm"]
    assert is_absent(first.values).tolist() == [[False, True], [True, True]]
    window = run.window("Norm", "max", resolution=2)
    assert window.nonfinite.sum() == 0
    np.testing.assert_allclose(np.nanmax(window.maximum, 1), [ticks - 1, ticks])


@pytest.mark.parametrize("journal", JOURNALS)
@pytest.mark.parametrize("old", [40, 256, 300])
def test_statistic_that_a_resumed_run_logs_for_the_first_time_has_no_older_numbers(tmp_path, one, journal, old):
    np.full((1, 4096), 123.0, np.float32)  # memory that is used again holds numbers
    with Writer(tmp_path / "run", journal=journal) as writer:
        for step in range(old):
            one(writer, step, step)
    with Writer(tmp_path / "run", resume=True, journal=journal) as writer:
        for step in range(old, old + 20):
            writer.put("Norm", step, [[7.0], [step]], layers=["fc"], statistics=["new", "mean"])
    with open_run(tmp_path / "run") as run:
        for _ in range(5):
            axis, values = run.series("Norm", "new", "fc")
            assert (axis.step.tolist(), values.tolist()) == (list(range(old, old + 20)), [7.0] * 20)
            window = run.window("Norm", "new", resolution=10**6)
            assert is_absent(window.mean[0, :old]).all()
            assert is_absent(run.frame_at(old // 2)["Norm"].values).tolist() == [[False], [True]]
        assert run.series("Norm", "mean", "fc").values.tolist() == list(range(old + 20))


def test_several_lenses_have_axes_of_their_own(tmp_path, numbers, put):
    values = numbers(40)
    with Writer(tmp_path / "run") as writer:
        put(writer, values)
        put(writer, values[:5], lens="Rare", first=3, stride=7)
    with open_run(tmp_path / "run") as run:
        assert run.lenses["Rare"].ticks == 5
        assert {name: frame.step for name, frame in run.frame_at(12).items()} == {"Norm": 12, "Rare": 10}
        np.testing.assert_array_equal(run.series("Rare", "mean", "layer1").values, values[:5, 0, 1])


# --- events, facts, news ---


def test_events_come_back_and_can_be_asked_for_since_the_last_one(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer.event(3, "spike", "warning", epoch=1, time=5.0, layer="fc", statistic="mean", body={"seen": [1, None]})
        writer.event(4, "note")
    with open_run(tmp_path / "run") as run:
        first, second = run.events()
        assert first == Event(3, "spike", "warning", 1, 5.0, "fc", "mean", {"seen": [1, None]}, first.id)
        assert (second.kind, second.severity, second.body) == ("note", "info", {})
        assert run.events(since=first.id) == [second]


@pytest.mark.parametrize("journal", JOURNALS)
def test_reader_sees_what_is_stored_while_it_looks(tmp_path, numbers, put, journal):
    values = numbers(300)
    with Writer(tmp_path / "run", journal=journal) as writer, open_run(tmp_path / "run") as run:
        assert run.lenses == {}
        for first, last in ((0, 10), (10, 255), (255, 257), (257, 300)):
            before = run.data_version()
            put(writer, values[first:last], first=first)
            writer.flush()
            assert run.data_version() != before
            np.testing.assert_array_equal(run.series("Norm", "mean", "layer0").values, values[:last, 0, 0])
        writer.note(best=0.5)
        writer.flush()
        assert run.meta["best"] == 0.5
        assert run.status == "running"


def test_nothing_new_keeps_the_version(stored, numbers):
    run = stored(numbers(3))
    assert run.data_version() == run.data_version()


def test_one_reader_serves_many_threads(stored, numbers):
    values, wrong = numbers(600), []
    run = stored(values)

    def look(layer):
        for _ in range(20):
            found = run.series("Norm", "mean", f"layer{layer}").values
            if not np.array_equal(found, values[:, 0, layer], equal_nan=True):
                wrong.append(layer)

    threads = [threading.Thread(target=look, args=[number % 3]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("journal", JOURNALS)
def test_reader_that_never_stops_looking_sees_a_beginning_without_gaps(tmp_path, journal):
    seen, done = [], threading.Event()

    def look():
        with open_run(tmp_path / "run") as run:
            while not (done.is_set() and seen[-1:] == [3000]):
                if "Norm" in run.lenses:
                    axis, values = run.series("Norm", "mean", "fc")
                    whole = run.window("Norm", "mean", resolution=5)
                    right = np.array_equal(values, axis.step) and np.array_equal(axis.step, range(len(axis.step)))
                    seen.append(len(values) if right and whole.last_step[-1] >= len(values) - 1 else -1)

    with Writer(tmp_path / "run", journal=journal) as writer:
        reader = threading.Thread(target=look)
        reader.start()
        for step in range(3000):
            while not writer.put("Norm", step, [[step]], layers=["fc"], statistics=["mean"]):
                writer.flush()
            if step % 70 == 0:
                writer.flush()
        writer.flush()
        done.set()
        reader.join(60)
    assert seen == sorted(seen)
    assert (seen[0] >= 0, seen[-1]) == (True, 3000)


def test_number_that_is_not_finite_counts_even_if_no_sample_was_counted(tmp_path):
    with Writer(tmp_path / "run") as writer:
        for step, (mean, count) in enumerate([(1.0, 0), (np.inf, 0), (np.nan, 4), (1.0, 2)]):
            writer.put("L", step, [[mean], [count]], layers=["fc"], statistics=["Norm/mean", "Norm/nonfinite"])
    with open_run(tmp_path / "run") as run:
        assert run.window("L", "Norm/mean").nonfinite.tolist() == [[0, 1, 4, 2]]


def test_counts_of_a_column_go_beyond_sixteen_bits(tmp_path):
    ticks, moment = 70_000, (0, 0.0)
    file = TableFile(tmp_path / "rank0.db", "wal", None)
    values = np.zeros((ticks, 1, 3), np.float32)
    values[:, 0, 1], values[::2, 0, 2] = np.nan, np.inf
    names = ("mean",), ("fine", "broken", "half")
    file.write([Frame("Norm", step, *moment, *names, frame) for step, frame in enumerate(values)])
    file.close()
    with open_run(tmp_path) as run:
        for resolution, columns in ((1, 1), (2, 2), (3, 3)):
            window = run.window("Norm", "mean", resolution=resolution)
            assert len(window.last_step) == columns
            assert window.nonfinite.sum(axis=1).tolist() == [0, ticks, ticks // 2]
            assert window.finite.sum(axis=1).tolist() == [ticks, 0, ticks // 2]


@pytest.mark.parametrize("journal", ["wal", "log"])
def test_samples_that_are_not_finite_are_summed_at_every_resolution(tmp_path, journal):
    chance, ticks = np.random.default_rng(0), 700
    counts = chance.integers(0, 40, (ticks, 2)) * (chance.random((ticks, 2)) < 0.1)
    means = np.where(chance.random((ticks, 2)) < 0.5, 1.0, np.where(counts > 0, np.nan, 1.0))
    with Writer(tmp_path / "run", journal=journal) as writer:
        for step in range(ticks):
            names = {"layers": ["a", "b"], "statistics": ["Norm/mean", "Norm/nonfinite", "Other/mean"]}
            while not writer.put("L", step, [means[step], counts[step], means[step]], **names):
                writer.flush()
        writer.flush()
        check_counts(tmp_path / "run", counts, means)
    check_counts(tmp_path / "run", counts, means)


def check_counts(folder, counts, means):
    with open_run(folder) as run:
        for first, last, resolution in itertools.product((0, 300), (500, 699), (1, 3, 40, 1000)):
            window = run.window("L", "Norm/mean", first, last, resolution)
            parts = zip(window.axis.step, window.last_step, strict=True)
            wanted = [counts[begin : end + 1].sum(axis=0) for begin, end in parts]
            assert window.nonfinite.T.tolist() == np.array(wanted).tolist()
            uncounted = run.window("L", "Other/mean", first, last, resolution)
            assert uncounted.nonfinite.sum() == np.isnan(means[first : last + 1]).sum()


def test_read_after_one_that_failed_in_the_middle_is_right(tmp_path, numbers, put):
    values = numbers(700)
    with Writer(tmp_path / "run") as writer, open_run(tmp_path / "run") as run:
        for last, patience in zip(range(20, 700, 20), itertools.count(1), strict=False):
            put(writer, values[last - 20 : last], first=last - 20)
            writer.flush()
            fail_once(run, patience)
            np.testing.assert_array_equal(run.series("Norm", "mean", "layer0").values, values[:last, 0, 0])
            assert run.window("Norm", "mean", resolution=1).last_step.tolist() == [last - 1]


def fail_once(run, patience):
    """Have SQLite give up in the middle of a read: later and later from call to call."""
    calls = itertools.count()
    run._source.connection.set_progress_handler(lambda: next(calls) >= patience, 10)
    try:
        with pytest.raises(StoreError, match=r"rank0\.db cannot be read: interrupted"):
            look_on(run)
    finally:
        run._source.connection.set_progress_handler(None, 0)


def look_on(run):
    while True:
        run._version = None  # as if there were news each time
        assert run.last_step is not None


def test_read_of_a_file_that_was_locked_is_right_when_it_is_not_any_more(tmp_path, numbers, put, monkeypatch):
    monkeypatch.setattr(journal, "READ_SECONDS", 0)
    values = numbers(300)
    with Writer(tmp_path / "run", journal="truncate") as writer:
        put(writer, values[:100])
        writer.flush()
        with open_run(tmp_path / "run") as run, closing(sqlite3.connect(writer.path, isolation_level=None)) as other:
            for last in (200, 300):
                put(writer, values[last - 100 : last], first=last - 100)
                writer.flush()
                other.execute("BEGIN EXCLUSIVE")
                with pytest.raises(UnreadableRunError, match="is locked by another program at the moment") as caught:
                    run.series("Norm", "mean", "layer0")
                assert caught.value.state == "locked"
                other.execute("ROLLBACK")
                np.testing.assert_array_equal(run.series("Norm", "mean", "layer0").values, values[:last, 0, 0])


# --- files that are none ---


def test_locked_file_is_not_read_past_its_lock(tmp_path, numbers, put, monkeypatch):
    monkeypatch.setattr(journal, "READ_SECONDS", 0)
    with Writer(tmp_path / "run", journal="truncate") as writer:
        put(writer, numbers(3))
    path = tmp_path / "run" / "rank0.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnreadableRunError, match="locked"):
            open_run(path)
    with open_run(path) as run:
        assert run.last_step == 2


def zeros_in_the_middle(path):
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    return bytes(data)


def newer(path):
    data = bytearray(path.read_bytes())
    data[60:64] = (99).to_bytes(4, "big")  # where SQLite keeps the version
    return bytes(data)


@pytest.mark.parametrize(
    ("spoil", "state", "message"),
    [
        (lambda path: b"hello world, this is no database" * 100, "damaged", "is damaged or not a run of monitorch"),
        (zeros_in_the_middle, "damaged", "is damaged or not a run of monitorch"),
        (lambda path: path.read_bytes()[:5000], "damaged", "is damaged or not a run of monitorch"),
        (lambda path: b"", "empty", "is empty: nothing was stored yet"),
        (newer, "newer", "was written by a newer monitorch .*version 99"),
    ],
    ids=["text", "zeros", "cut", "empty", "newer"],
)
def test_file_that_cannot_be_read_says_why(stored, numbers, spoil, state, message):
    path = stored(numbers(300)).path
    path.write_bytes(spoil(path))
    with pytest.raises(UnreadableRunError, match=rf"rank0\.db {message}") as caught:
        Run(path).series("Norm", "mean", "layer0")
    assert caught.value.state == state
    assert str(path) not in caught.value.reason
    (info,) = list_runs(path.parent.parent)
    assert (info.name, info.status, info.problem) == ("run", state, caught.value.reason)


@pytest.mark.parametrize(
    ("text", "state", "message"),
    [
        (b"", "empty", "is empty: nothing was stored yet"),
        (b"monitorch frame log 7\nwhatever", "newer", "was written by a newer monitorch .*version 7"),
        (b"2026-01-01 INFO started", "foreign", "is not a log of monitorch"),
        (FIRST_LINE + bytes(50), "damaged", "is damaged at byte 22"),
    ],
    ids=["empty", "newer", "foreign", "damaged"],
)
def test_log_that_cannot_be_read_says_why(tmp_path, text, state, message):
    path = tmp_path / "run" / "rank0.log"
    path.parent.mkdir()
    path.write_bytes(text)
    with pytest.raises(UnreadableRunError, match=rf"rank0\.log {message}") as caught:
        open_run(path)
    (info,) = list_runs(tmp_path)
    assert (info.status, info.problem) == (caught.value.state, caught.value.reason)
    assert info.status == state


def test_file_that_is_not_there_is_named(tmp_path):
    for name in ("rank0.db", "rank0.log"):
        with pytest.raises(UnreadableRunError, match=rf"{name} cannot be opened") as caught:
            Run(tmp_path / name)
        assert caught.value.state == "unreadable"


@pytest.mark.parametrize(
    "change",
    [
        "block SET ticks = 1000000000",
        "block SET times = x'00'",
        "block SET epochs = CAST(epochs || x'00000000' AS BLOB)",
        "hot SET statistics = 7",
        "meta SET value = '{'",
    ],
)
def test_rows_that_make_no_sense_are_damage(tmp_path, change):
    file = TableFile(tmp_path / "rank0.db", "wal", None)
    names = ("mean",), ("a", "b", "c", "d", "e")
    file.write([Frame("Norm", step, 0, 0.0, *names, np.ones((1, 5), np.float32)) for step in range(300)])
    file.write([Meta({"name": "x"})])
    file.abandon()
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute(f"UPDATE {change}")
    with pytest.raises(UnreadableRunError, match="is damaged or not a run of monitorch") as caught:
        read_everything(file.path)
    assert caught.value.state == "damaged"


def read_everything(path):
    """All that a reader can be asked."""
    with Run(path) as run:
        facts = run.meta, run.status, run.error, run.layers, run.events(), run.last_step, run.data_version()
        frames = run.newest(), run.frame_at(100)
        for lens in run.lenses.values():
            for statistic in lens.statistics:
                run.window(lens.name, statistic.name, resolution=7)
                for layer in lens.layers:
                    run.series(lens.name, statistic.name, layer)
        return facts, frames


@pytest.mark.parametrize("times", [100, slow(1000)])
@pytest.mark.parametrize("journal", ["wal", "log"])
def test_file_of_which_any_bits_have_changed_is_read_or_refused(tmp_path, numbers, put, journal, times):
    with Writer(tmp_path / "run", journal=journal) as writer:
        writer.introduce_layers([Layer("layer0", "Linear", 3)])
        writer.event(3, "spike", "warning", layer="layer0", body={"seen": 1})
        put(writer, numbers(300, 2))
    path = writer.path
    whole, chance, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(times):
        data = bytearray(whole)
        for place in chance.integers(0, len(data), chance.integers(1, 60)):
            data[place] ^= 1 << int(chance.integers(0, 8))
        path.write_bytes(data)
        try:
            read_everything(path)
        except UnreadableRunError:
            refused += 1
        assert len(list_runs(tmp_path)) == 1
    assert refused > times / 10
