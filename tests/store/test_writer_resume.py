"""Runs that go on."""

import os
from itertools import product

import numpy as np
import pytest

from monitorch.errors import StoreError
from monitorch.store import Writer, open_run
from monitorch.store.journal import JOURNALS
from tests.marks import some_fast


def test_run_that_is_there_is_not_overwritten(tmp_path):
    Writer(tmp_path / "run").close()
    with pytest.raises(StoreError, match=r"there is a run in .*rank0\.db already: choose another name, or resume=True"):
        Writer(tmp_path / "run")


def test_run_has_one_writer_at_a_time(tmp_path, one):
    with (
        Writer(tmp_path / "run"),
        pytest.raises(StoreError, match=f"is being written by the process {os.getpid()}: a run has one writer"),
    ):
        Writer(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("journal", "first"),
    some_fast(
        product(JOURNALS, (0, 100, 255, 256, 300, 590)),
        lambda journal, first: journal == JOURNALS[0] or first in (100, 256),
    ),
)
def test_resumed_run_hides_what_it_repeats(tmp_path, numbers, put, assert_window, journal, first):
    old, new = numbers(600), -numbers(400)
    with Writer(tmp_path / "run", journal=journal) as writer:
        put(writer, old)
        writer.event(first, "hidden")
        writer.event(first - 1, "kept")
    with Writer(tmp_path / "run", resume=True, resume_step=first - 1, journal=journal) as writer:
        assert writer.resumed_step == 599
        put(writer, new, first=first)
        writer.flush()
        check_resumed(tmp_path / "run", np.concatenate([old[:first], new]), assert_window)
    check_resumed(tmp_path / "run", np.concatenate([old[:first], new]), assert_window)


def check_resumed(folder, expected, assert_window):
    last = len(expected) - 1
    with open_run(folder) as run:
        axis, values = run.series("Norm", "mean", "layer1")
        assert axis.step.tolist() == list(range(last + 1))
        np.testing.assert_array_equal(values, expected[:, 0, 1])
        for resolution in (1, 30, 60, 2000):
            assert_window(run.window("Norm", "mean", resolution=resolution), expected[:, 0], 0, last, resolution)
        np.testing.assert_array_equal(run.frame_at(last // 2)["Norm"].values, expected[last // 2])
        assert [event.kind for event in run.events()] == ["kept"]


def test_a_database_goes_on_as_one_also_where_a_new_run_would_be_a_log(tmp_path, one, monkeypatch):
    with Writer(tmp_path / "run") as writer:
        one(writer, 5)
    monkeypatch.setattr("monitorch.store.backend.probe", lambda _: "log")
    with Writer(tmp_path / "run", resume=True) as writer:
        one(writer, 6)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["rank0.db"]
    with open_run(tmp_path / "run") as run:
        (lens,) = run.lenses.values()
        assert (lens.ticks, lens.first_step, lens.last_step) == (2, 5, 6)


def test_resuming_without_a_step_hides_nothing_and_keeps_the_identity(tmp_path, one):
    with Writer(tmp_path / "run", meta={"config": 1}) as writer:
        one(writer, 5)
    with open_run(tmp_path / "run") as run:
        before = run.meta
    with Writer(tmp_path / "run", resume=True) as writer:
        assert writer.resumed_step == 5
        one(writer, 6)
    with open_run(tmp_path / "run") as run:
        assert run.series("Norm", "mean", "fc").axis.step.tolist() == [5, 6]
        assert all(run.meta[fact] == before[fact] for fact in ("id", "started", "config"))


def test_several_resumptions_hide_each_other(tmp_path, one, values_of):
    for resume_step, steps in ((None, range(10)), (6, range(7, 12)), (2, range(3, 5)), (3, range(4, 6))):
        with Writer(tmp_path / "run", resume=True, resume_step=resume_step) as writer:
            for step in steps:
                one(writer, step, 100 * (resume_step or 0) + step)
    assert values_of(tmp_path / "run") == [0, 1, 2, 203, 304, 305]


def test_step_that_goes_back_begins_anew_from_there(tmp_path, one):
    with Writer(tmp_path / "run") as writer:
        for step in (1, 2, 3, 4, 2, 3, 3):
            one(writer, step, step)
        writer.put("Other", 1, [[7.0]], layers=["fc"], statistics=["mean"])
    with open_run(tmp_path / "run") as run:
        assert run.series("Norm", "mean", "fc").axis.step.tolist() == [1, 2, 3, 3]
        assert run.series("Other", "mean", "fc").values.tolist() == [7.0]


def test_resume_makes_a_run_that_is_not_there(tmp_path, one, values_of):
    with Writer(tmp_path / "run", resume=True) as writer:
        assert writer.resumed_step is None
        one(writer, 1)
    assert values_of(tmp_path / "run") == [1.0]


def test_resume_goes_on_from_a_file_that_nothing_was_stored_in(tmp_path, one, values_of):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0.db").touch()
    with Writer(tmp_path / "run", resume=True) as writer:
        one(writer, 1)
    assert values_of(tmp_path / "run") == [1.0]
