import gc
import multiprocessing
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing

import numpy as np
import pytest

from monitorch.errors import MonitorchWarning, OptionError
from monitorch.store import Layer, Statistic, Writer, list_runs, open_run
from monitorch.store.journal import JOURNALS
from monitorch.store.worker import QUEUE_LENGTH, Worker

# --- what is stored ---


@pytest.mark.parametrize("journal", JOURNALS)
def test_every_bit_of_every_number_survives(tmp_path, journal):
    special = np.array(
        [0x7FC00000, 0xFFC00001, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x7F7FFFFF], np.uint32
    )
    frame = special.view(np.float32)[None]
    with Writer(tmp_path / "run", journal=journal) as writer:
        for step in range(260):
            writer.put("Norm", step, frame, layers=list("abcdefgh"), statistics=["mean"])
    with open_run(tmp_path / "run") as run:
        for step in (0, 259):
            assert run.frame_at(step)["Norm"].values.view(np.uint32).tolist() == [special.tolist()]


def test_caller_may_use_the_array_again(tmp_path, values_of):
    values = np.zeros((1, 1), np.float32)
    with Writer(tmp_path / "run") as writer:
        for step in range(5):
            values[:] = step
            writer.put("Norm", step, values, layers=["fc"], statistics=["mean"])
    assert values_of(tmp_path / "run") == [0, 1, 2, 3, 4]


def test_what_float32_cannot_hold_is_infinite(tmp_path, one, values_of):
    with Writer(tmp_path / "run") as writer:
        one(writer, 0, -1e300)
    assert values_of(tmp_path / "run") == [-np.inf]


@pytest.mark.parametrize(("journal", "file"), [("wal", "rank3.db"), ("truncate", "rank3.db"), ("log", "rank3.log")])
def test_finished_run_is_one_file_with_facts(tmp_path, journal, file, one):
    with Writer(tmp_path / "run", rank=3, meta={"config": {"lr": 0.1}}, journal=journal) as writer:
        one(writer, 0)
        writer.note(best=2)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [file]
    with open_run(tmp_path / "run") as run:
        facts = run.meta
        assert (run.name, run.status, facts["rank"], facts["dropped"]) == ("run", "finished", 3, 0)
    assert facts["config"] == {"lr": 0.1}
    assert facts["best"] == 2
    assert facts["started"] <= facts["heartbeat"] <= facts["ended"] + 1
    assert {"id", "versions", "pid", "host"} <= set(facts)


def test_heart_beats_without_numbers(tmp_path):
    with Writer(tmp_path / "run") as writer, open_run(tmp_path / "run") as run:
        first, version = run.meta["heartbeat"], run.data_version()
        writer.flush()
        assert run.data_version() != version
        assert run.meta["heartbeat"] > first


def test_large_frames_are_sealed_in_shorter_blocks(tmp_path):
    values = np.random.default_rng(0).normal(size=(40, 20, 5_000)).astype(np.float32)
    layers, statistics = [*map(str, range(5_000))], [*map(str, range(20))]
    with Writer(tmp_path / "run") as writer:
        for step, frame in enumerate(values):
            while not writer.put("Norm", step, frame, layers=layers, statistics=statistics):
                writer.flush()
    with closing(sqlite3.connect(tmp_path / "run" / "rank0.db")) as connection:
        assert connection.execute("SELECT ticks FROM block").fetchall() == [(32,), (8,)]
    with open_run(tmp_path / "run") as run:
        np.testing.assert_array_equal(run.series("Norm", "7", "4999").values, values[:, 7, 4999])


# --- the end of a writer ---


@pytest.mark.parametrize(
    "call",
    [
        lambda writer: writer.put("Norm", 2, [[2.0]], layers=["fc"], statistics=["mean"]),
        lambda writer: writer.event(1, "late"),
        lambda writer: writer.note(late=True),
        lambda writer: writer.introduce_layers(["fc"]),
        lambda writer: writer.resume_from(1),
    ],
    ids=["put", "event", "note", "introduce_layers", "resume_from"],
)
def test_closed_writer_takes_nothing_and_says_so_once(tmp_path, one, values_of, call):
    writer = Writer(tmp_path / "run")
    one(writer, 1)
    writer.close()
    with pytest.warns(MonitorchWarning, match=r"run is closed and takes no more\. Training goes on") as caught:
        assert not any(call(writer) for _ in range(3))
    assert (len(caught), caught[0].filename) == (1, __file__)
    assert values_of(tmp_path / "run") == [1.0]


def test_closing_and_waiting_again_does_nothing(tmp_path):
    writer = Writer(tmp_path / "run")
    for _ in range(2):
        writer.close()
        writer.flush()
    assert [info.status for info in list_runs(tmp_path)] == ["finished"]


def test_forgotten_writer_is_closed(tmp_path, one):
    writer = Writer(tmp_path / "run")
    one(writer, 1)
    del writer
    gc.collect()
    assert [(info.status, info.last_step) for info in list_runs(tmp_path)] == [("finished", 1)]


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("ending", "status"),
    [("", "finished"), ("raise SystemExit(3)", "finished"), ("1 / 0", "crashed"), ("os._exit(1)", "crashed")],
)
def test_status_tells_how_the_program_ended(tmp_path, ending, status, values_of):
    code = f"""
import os, sys
from monitorch.store import Writer
writer = Writer(sys.argv[1])
writer.put("Norm", 1, [[2.0]], layers=["fc"], statistics=["mean"])
writer.flush()
{ending}
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "run"], stderr=subprocess.DEVNULL, timeout=60, check=False)
    assert values_of(tmp_path / "run") == [2.0]
    assert [info.status for info in list_runs(tmp_path)] == [status]


@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_forked_child_leaves_the_run_alone_and_waits_for_nothing(tmp_path, one, values_of, is_busy):
    def child(writer):
        one(writer, 10**6, 99.0)
        writer.flush()
        writer.close()

    writer = Writer(tmp_path / "run")
    one(writer, 0, 1.0)
    writer.flush()
    with closing(sqlite3.connect(writer.path, isolation_level=None)) as other, warnings.catch_warnings():
        other.execute("BEGIN IMMEDIATE" if is_busy else "BEGIN")  # the disk hangs, and what waits for it
        step = 1
        while is_busy and one(writer, step, 1.0):
            step += 1
        warnings.simplefilter("ignore")  # newer Pythons warn of forks in a process with threads
        process = multiprocessing.get_context("fork").Process(target=child, args=[writer])
        process.start()
        process.join(30)
        process.kill()
        assert process.exitcode == 0
        other.execute("ROLLBACK")
    writer.flush()
    one(writer, step, 2.0)
    writer.close()
    assert values_of(tmp_path / "run") == [*[1.0] * step, 2.0]


# --- waiting and dropping ---


def test_slow_disk_costs_frames_but_not_the_training(tmp_path, one):
    writer = Writer(tmp_path / "run")
    one(writer, 0)
    writer.flush()
    with closing(sqlite3.connect(writer.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the disk hangs
        taken = [one(writer, step) for step in range(1, 4 * QUEUE_LENGTH)]
        other.execute("ROLLBACK")
    lost = taken.count(False)
    assert QUEUE_LENGTH < lost < 3 * QUEUE_LENGTH
    assert writer.dropped == lost
    writer.flush()
    assert one(writer, 4 * QUEUE_LENGTH)
    writer.close()
    with open_run(tmp_path / "run") as run:
        assert (run.meta["dropped"], run.lenses["Norm"].ticks) == (lost, 4 * QUEUE_LENGTH + 1 - lost)
    assert list_runs(tmp_path)[0].dropped == lost


# --- wrong calls ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_size": 100}, "max_size=100 must be a number of bytes, at least 1048576"),
        ({"max_size": "2GB"}, "max_size='2GB' must be a number of bytes"),
        ({"journal": "delete"}, "journal='delete' is unknown; choose from 'wal', 'truncate', 'log'"),
        ({"resume_step": 5}, "resume_step=5 needs resume=True"),
        ({"meta": {"model": object()}}, "meta must be JSON data: Object of type object"),
        ({"meta": {3: "x"}}, "a name must be text, not 3"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        Writer(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda writer: writer.put("Norm", 1, [1.0, 2.0], layers=["a", "b"], statistics=["mean"]),
            r"values has the shape \(2,\); it takes one row for each of 1 statistics and one column for each of 2",
        ),
        (lambda writer: writer.put("Norm", 1, [[1], [2, 3]], layers=["a"], statistics=["x", "y"]), "inhomogeneous"),
        (lambda writer: writer.put("Norm", 1, [["x"]], layers=["a"], statistics=["x"]), "could not convert string"),
        (lambda writer: writer.put("Norm", 1, [[1, 2]], layers=["a", "a"], statistics=["x"]), "'a' comes twice"),
        (lambda writer: writer.put("Norm", 1, [[1]], layers=[3], statistics=["x"]), "must be text, not 3"),
        (lambda writer: writer.put(None, 1, [[1]], layers=["a"], statistics=["x"]), "must be text, not None"),
        (lambda writer: writer.put("Norm", "x", [[1]], layers=["a"], statistics=["x"]), "invalid literal"),
        (lambda writer: writer.put("Norm", 2**63, [[1]], layers=["a"], statistics=["x"]), "too large for .* 64 bits"),
        (lambda writer: writer.put("Norm", 1, [[1]], layers=["a"], statistics=["x"], epoch=2**31), "too large .* 32"),
        (lambda writer: writer.event(1, "spike", "bad"), "severity='bad' is unknown; choose from 'info', 'warning'"),
        (lambda writer: writer.event(1, "spike", body={"x": {1}}), "body must be JSON data"),
        (lambda writer: writer.event(1, "spike", colour="red"), "unexpected keyword argument 'colour'"),
        (lambda writer: writer.event(-(2**70), "spike"), "too large"),
        (lambda writer: writer.note(x=object), "facts must be JSON data"),
        (lambda writer: writer.introduce_layers([None]), "NoneType"),
        (
            lambda writer: writer.introduce_statistics("Norm", ["mean"]),
            "made with .*, it is not 'mean'",
        ),
        (lambda writer: writer.close("happy"), "status='happy' is unknown; choose from 'finished', 'crashed'"),
    ],
)
def test_wrong_call_is_one_warning_and_training_goes_on(tmp_path, one, values_of, call, message):
    with Writer(tmp_path / "run") as writer:
        one(writer, 1, 1.0)
        with pytest.warns(MonitorchWarning, match=f"{message}.*Training goes on") as caught:
            assert not any(call(writer) for _ in range(3))
        assert (len(caught), caught[0].filename) == (1, __file__)
        if not writer._closed:
            one(writer, 2, 2.0)
    assert values_of(tmp_path / "run") == [1.0, 2.0][: 1 + (message.count("happy") == 0)]


def test_circular_facts_are_refused(tmp_path):
    circular = {}
    circular["self"] = circular
    with pytest.raises(OptionError, match="meta must be JSON data"):
        Writer(tmp_path / "run", meta=circular)


ODD = [
    "",
    " ",
    "a\x00b",
    "\udcff half",
    "naïve 层 🦊",
    "x'; DROP TABLE lens; --",
    "line\nbreak",
    "\u202egnp",
    "n" * 10_000,
]


@pytest.mark.parametrize("journal", JOURNALS)
def test_any_text_is_a_name(tmp_path, journal):
    stored = [name.encode("utf-8", "backslashreplace").decode() for name in ODD]
    with Writer(tmp_path / "run", journal=journal) as writer:
        writer.introduce_layers([Layer(name, name) for name in ODD])
        for name in ODD:
            writer.introduce_statistics(name, [Statistic(name, "log")])
            writer.put(name, 1, np.eye(len(ODD)), layers=ODD, statistics=ODD)
            writer.event(1, name, layer=name, statistic=name, body={name: name})
            writer.note(**{name: name})
    with open_run(tmp_path / "run") as run:
        assert list(run.lenses) == stored
        assert [layer.name for layer in run.layers] == [layer.kind for layer in run.layers] == stored
        for name in stored:
            assert run.series(name, name, name).values.tolist() == [1.0]
        assert [event[:2] for event in run.events()] == [(1, name) for name in stored]
        assert [dict(event.body) for event in run.events()] == [{name: name} for name in ODD]
        assert all(run.meta[safe] == name for safe, name in zip(stored, ODD, strict=True))


def test_one_thing_that_no_file_takes_does_not_cost_the_others(tmp_path, one, values_of):
    def store(writer):
        for step in range(5):
            one(writer, step, step)
            writer.introduce_statistics("Norm", [Statistic("mean", scale=object())])
        writer.close()

    writer = Writer(tmp_path / "run")
    with pytest.warns(MonitorchWarning, match="something cannot be stored: .*It is left out") as caught:
        store(writer)
    assert (len(caught), writer.dropped) == (1, 0)
    assert values_of(tmp_path / "run") == [0, 1, 2, 3, 4]
    assert list_runs(tmp_path)[0].status == "finished"


def test_clock_that_goes_backwards_or_is_none_loses_nothing(tmp_path):
    clock = [1e9, 5.0, float("nan"), float("inf"), -3.0]
    with Writer(tmp_path / "run") as writer:
        for step, time in enumerate(clock):
            writer.put("Norm", step, [[step]], layers=["fc"], statistics=["mean"], time=time)
            writer.event(step, "tick", time=time)
    with open_run(tmp_path / "run") as run:
        axis, values = run.series("Norm", "mean", "fc")
        assert values.tolist() == [0, 1, 2, 3, 4]
        assert axis.time[[0, 1, 4]].tolist() == [1e9, 5.0, -3.0]
        assert np.isfinite(axis.time).all()
        assert np.isfinite([event.time for event in run.events()]).all()


def test_program_that_gets_no_thread_trains_without_a_run(tmp_path, one, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Worker, "start", refuse)
    with pytest.warns(MonitorchWarning, match="cannot be stored in .*can't start new thread") as caught:
        writer = Writer(tmp_path / "run")
    assert (len(caught), writer.is_storing) == (1, False)
    assert not one(writer, 1)
    writer.flush()
    writer.close()
    assert writer.dropped == 1
