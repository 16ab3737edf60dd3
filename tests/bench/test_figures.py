"""Figures are kept: what is measured again replaces what was there, and the document follows from the file."""

import json

import pytest

from bench import figures, report


def run_of(device="cpu", date="today", **rows):
    about = {"date": date, "machine": "a machine", "versions": {"torch": "2"}, "sections": [*rows], "quick": False}
    return {**about, "device": device, **rows}


def idle(layers, seconds=9.0, problem=None):
    return {"layers": layers, "idle_us": seconds, **({} if problem is None else {"problem": problem})}


def test_rows_that_are_measured_again_replace_those_of_the_same_device():
    first, other = run_of(idle=[idle(2), idle(20)]), run_of("cuda", idle=[idle(2)])
    new = run_of(date="later", idle=[idle(2, 8.0)])
    assert figures.merged([first, other], new) == [{**first, "idle": [idle(20)]}, other, new]


def test_a_run_without_rows_of_its_own_goes():
    new = run_of(date="later", idle=[idle(2)])
    assert figures.merged([run_of(idle=[idle(2)])], new) == [new]


def test_a_row_that_has_failed_replaces_nothing():
    old, failed = run_of(idle=[idle(2)]), idle(2, problem="no memory")
    kept = figures.merged([old], run_of(date="later", idle=[failed, idle(20)]))
    assert [run["idle"] for run in kept] == [[idle(2)], [idle(20)]]
    assert figures.merged([], run_of(idle=[failed]))[0]["idle"] == [failed]  # it says why there is none


@pytest.mark.parametrize(
    ("kind", "row", "other"),
    [
        ("kernels", {"kernel": "norm", "tensor": "8"}, {"kernel": "norm", "tensor": "9"}),
        ("ticks", {"layers": 1, "parameters": True}, {"layers": 1, "parameters": False}),
        ("processes", {"processes": 2}, {"processes": 4}),
    ],
)
def test_every_kind_has_rows_of_its_own(kind, row, other):
    kept = figures.merged([run_of(**{kind: [row, other]})], run_of(**{kind: [{**row, "ms": 1.0}]}))
    assert [run[kind] for run in kept] == [[other], [{**row, "ms": 1.0}]]


def test_cases_and_users_rows_are_known_by_model_and_setting(case_row, paid):
    for kind, make in (("cases", case_row), ("user", paid)):
        old, new = run_of(**{kind: [make(), make(model="cnn")]}), run_of(**{kind: [make(ratio=2.0)]})
        kept = figures.merged([old], new)
        assert [[row["model"] for row in run[kind]] for run in kept] == [["cnn"], ["mlp"]]


def test_they_are_written_without_the_times_of_windows(paid, tmp_path):
    file = tmp_path / "figures.json"
    row = {**paid(), "watched_s": [1.0, 2.0], "bare_ms": 1.23456789012}
    figures.keep([run_of(user=[row])], file)
    (run,) = figures.keep([run_of(idle=[idle(2)])], file)[:1]
    assert run == figures.load(file)[0]
    assert "watched_s" not in run["user"][0]
    assert run["user"][0]["bare_ms"] == 1.2345679
    assert json.loads(file.read_text())[1]["idle"] == [idle(2)]


def test_the_document_is_that_of_the_figures_that_are_kept():
    assert report.RESULTS.read_text(encoding="utf-8") == report.document(figures.load()), "run python -m bench.report"
