import argparse
import re

import numpy as np
import pytest

from monitorch.cli.reading import Choice, choose, every_tick, find_run, outline, recent
from monitorch.errors import OptionError, StoreError
from monitorch.store import Writer, open_run

ONE = {"Norm": {"Norm/mean": {"fc": [1.0, 2.0]}}}


def options(**given):
    return argparse.Namespace(**{"runs": None, "rank": None, "lens": None, "statistic": None, "layers": None, **given})


def found(name, **given):
    with find_run(options(**given), name) as run:
        return run.path


def only_choice(run):
    (choice,) = choose(run, options(), with_edges=False)
    return choice


def test_a_run_is_found_by_folder_file_and_name(write_run, tmp_path, monkeypatch):
    folder = write_run("first", ONE)
    file = folder / "rank0.db"
    monkeypatch.chdir(tmp_path)
    for name in (folder, file, "runs/first"):
        assert found(str(name)).samefile(file)
    assert found("first", runs=tmp_path / "runs").samefile(file)


def test_a_folder_here_that_is_no_run_does_not_hide_the_run_of_that_name(write_run, tmp_path, monkeypatch):
    folder = write_run("first", ONE)
    (tmp_path / "first").mkdir()
    monkeypatch.chdir(tmp_path)
    assert found("first", runs=tmp_path / "runs").parent.samefile(folder)


def test_without_a_name_it_is_the_newest_that_can_be_read(write_run, tmp_path):
    write_run("old", ONE)
    newest = write_run("new", ONE)
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "rank0.db").write_text("no database")
    assert found(None, runs=tmp_path / "runs").parent == newest


def test_rank(write_run, tmp_path):
    write_run("first", ONE)
    write_run("first", ONE, rank=3)
    assert found("first", runs=tmp_path / "runs").name == "rank0.db"
    assert found("first", runs=tmp_path / "runs", rank=3).name == "rank3.db"
    with pytest.raises(StoreError, match=r"rank=1 is not in .*; choose from 0, 3"):
        found("first", runs=tmp_path / "runs", rank=1)


def test_unknown_runs_are_errors_that_name_the_known(write_run, tmp_path):
    with pytest.raises(
        OptionError, match=r"no run in nowhere: train with monitorch.watch\(.*, name a run, or --runs DIR"
    ):
        found(None, runs="nowhere")
    with pytest.raises(OptionError, match=r"no run 'x', neither here nor in nowhere; --runs DIR says where"):
        found("x", runs="nowhere")
    write_run("first", ONE)
    with pytest.raises(OptionError, match=r"no run 'x\\x1b', neither .*; choose from first"):
        found("x\x1b", runs=tmp_path / "runs")


LINES = ("Norm/mean", "Norm/min", "Norm/max", "Norm/nonfinite")


@pytest.fixture
def run(write_run):
    layers = {"enc.fc": [1.0, 2.0], "enc.norm": [3.0, 4.0], "head": [5.0, 6.0]}
    lenses = {name: dict.fromkeys(LINES, layers) for name in ("Gradients", "Outputs")}
    whole = {"run": {"Loss/loss mean": {"run": [2.0, 1.0]}}}
    with open_run(write_run("first", lenses | whole)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {("Gradients", "Norm/mean", 3), ("Outputs", "Norm/mean", 3)}),
        ({"lens": "out"}, {("Outputs", "Norm/mean", 3)}),
        ({"lens": "out", "statistic": "m[ai][xn]$"}, {("Outputs", "Norm/min", 3), ("Outputs", "Norm/max", 3)}),
        ({"layers": "^enc", "lens": "Grad"}, {("Gradients", "Norm/mean", 2)}),
    ],
)
def test_filters(run, given, expected):
    patterns = {name: re.compile(text, re.IGNORECASE) for name, text in given.items()}
    chosen = choose(run, options(**patterns), with_edges=False)
    assert {(choice.lens.name, choice.statistic.name, len(choice.layers)) for choice in chosen} == expected


def test_edges_and_the_whole_run_are_chosen_on_demand(run):
    chosen = choose(run, options(), with_edges=True, whole_run=True)
    assert len(chosen) == 2 * len(LINES) + 1
    assert "run" in {choice.lens.name for choice in chosen}


@pytest.mark.parametrize("option", ["lens", "statistic", "layers"])
def test_a_filter_that_matches_nothing_names_what_there_is(run, option):
    known = {"lens": "Gradients, Outputs", "statistic": "Norm/mean, Norm/min", "layers": "enc.fc, enc.norm, head"}
    with pytest.raises(OptionError, match=f"--{option} xyz matches nothing; there are {known[option]}"):
        choose(run, options(**{option: re.compile("xyz")}), with_edges=False)


def test_recent_ticks_are_the_last_ones_however_they_are_spread(tmp_path):
    steps = [*range(500), *range(10_000, 10_007), *range(500_000, 500_900, 100)]
    with Writer(tmp_path / "uneven") as writer:
        for number, step in enumerate(steps):
            writer.put("L", step, [[number]], layers=["fc"], statistics=["x"])
            if number % 100 == 99:
                writer.flush()
    with open_run(tmp_path / "uneven") as opened:
        for ticks in (1, 5, 12, 100, 1000):
            numbers = recent(opened, only_choice(opened), ticks)
            assert numbers.axis.step.tolist() == steps[-ticks:]
            assert numbers.values[0].tolist() == list(range(len(steps)))[-ticks:]
        assert len(every_tick(opened, only_choice(opened), ["fc"]).axis.step) == len(steps)
        assert len(outline(opened, only_choice(opened), 50).axis.step) <= 50


def test_a_number_with_bad_samples_behind_it_is_marked(write_run):
    lens = {"Norm/mean": {"a": [1, np.nan, 3], "b": [1, 1, 1]}, "Norm/nonfinite": {"a": [0, 9, 0], "b": [0, 0, 2]}}
    with open_run(write_run("first", {"L": lens})) as opened:
        choice = only_choice(opened)
        for numbers in (recent(opened, choice, 60), every_tick(opened, choice, ["a", "b"])):
            assert numbers.nonfinite.tolist() == [[0, 9, 0], [0, 0, 2]]
            assert numbers.measured.all()
        assert outline(opened, choice, 1).nonfinite.tolist() == [[9], [2]]


def test_numbers_that_come_while_reading_do_not_matter(tmp_path):
    with Writer(tmp_path / "live") as writer:
        put = lambda step: writer.put("L", step, [[1.0]], layers=["fc"], statistics=["x"])  # noqa: E731
        put(1)
        writer.flush()
        with open_run(tmp_path / "live") as opened:
            choice = only_choice(opened)
            put(2)
            writer.flush()
            assert isinstance(choice, Choice)
            assert every_tick(opened, choice, ["fc"]).axis.step.tolist() == [1]
            assert recent(opened, only_choice(opened), 60).axis.step.tolist() == [1, 2]
