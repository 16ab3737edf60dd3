"""The bench runs from end to end on miniatures; what it measures is not asserted."""

import json
import math

import pytest

from bench import __main__ as program
from bench import cases, report, subjects, workers
from bench.cases import IDLE, Case
from bench.measure import Effort, measure
from bench.models import workload

QUICK = Effort("cpu", quick=True)


@pytest.mark.slow
def test_one_case_from_end_to_end(tmp_path, monkeypatch, capsys):
    file = tmp_path / "deep" / "figures.json"
    two = [Case("small", "mlp"), Case("small", "mlp", "upstream")]
    monkeypatch.setattr(program, "plan", lambda sections, device: two)
    program.main(["--quick", "--peers", str(tmp_path), "--json", str(file)])
    run = json.loads(file.read_text())
    ours, theirs = run["cases"]
    assert {"date", "device", "machine", "versions", "sections"} <= run.keys()
    assert ours["problem"] is None
    assert ours["ratio"] > 0
    assert ours["seen"] > 0
    assert theirs["problem"].startswith("unavailable: there is no")
    printed = capsys.readouterr().out
    assert "[  1/2] mlp, monitorch: all" in printed
    assert "watched  bare ms" in printed
    assert report.document([run]).startswith("# What watching costs")


@pytest.mark.parametrize("model", ["cnn", "gpt", "gpt2", "layers=100", "parameters=1e6"])
def test_models_train_under_a_lens(model):
    row = measure(Case("any", model, lenses="ParameterNorm"), QUICK)
    assert row["problem"] is None
    assert row["seen"] > 0


def test_ticks_are_part_of_a_block():
    row = measure(Case("scaling", "mlp", lenses="LossMetrics", tick=3), QUICK)
    assert row["problem"] is None


def test_option_that_is_not_there_is_unavailable(monkeypatch):
    monkeypatch.setitem(subjects.CORRELATION, "sketch", {"no_such_option": 1})
    row = measure(Case("any", "mlp", correlation="sketch"), QUICK)
    assert row["problem"].startswith("unavailable: ")


def test_case_that_fails_is_told():
    row = measure(Case("any", "mlp", lenses="NoSuchLens"), QUICK)
    assert row["problem"].startswith("failed: AttributeError")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "smal"], "no section is called smal"),
        (["--only", "gpt2-eager"], "gpt2 takes a GPU"),
        (["--device", "tpu"], "invalid choice"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        program.parse(arguments)
    assert message in capsys.readouterr().err


def test_scaling_is_added():
    assert program.parse(["--scaling"]).sections == ["small", "ticks", "idle", "processes", "scaling"]
    assert program.parse([]).sections == ["small", "ticks", "idle", "processes"]


def test_what_travels_does_not_depend_on_the_number_of_processes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    program.main(["--quick", "--only", "processes"])
    measured, simulated = json.loads((tmp_path / "cpu.json").read_text())["processes"]
    assert (measured["processes"], simulated["processes"]) == (2, 64)
    assert measured["sent_kb"] - simulated["sent_kb"] < 0.2  # numbers beside rows, which this tick has none of
    assert all(math.isfinite(row[figure]) for row in (measured, simulated) for figure in ("cpu_ms", "wall_ms"))
    assert "simulated" in capsys.readouterr().out


def test_idle_steps_are_measured_without_peers(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workers, "install", lambda folder: pytest.fail("nothing of others is measured"))
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    program.main(["--quick", "--only", "idle"])
    run = json.loads((tmp_path / "cpu.json").read_text())
    (row,) = run["idle"]
    assert row["layers"] == 2
    assert row["bare_us"] > 0
    assert all(math.isfinite(row[figure]) for figure in ("empty_us", "idle_us", "loss_us"))
    assert "four empty hooks" in capsys.readouterr().out


def test_every_case_is_there_once():
    found = cases.plan(program.SECTIONS["cuda"], "cuda")
    assert len(set(found)) == len(found)
    assert {"mlp", "cnn", "gpt2", "layers=1000", "parameters=1e9"} <= {case.model for case in found}


@pytest.mark.parametrize(
    ("case", "block", "label"),
    [
        (Case("", "mlp"), 1, "all"),
        (Case("", "mlp", every=10, correlation="none"), 10, "all, no correlation, every 10"),
        (Case("", "mlp", every=IDLE, correlation="sketch"), 1, "all, sketched, idle"),
        (Case("", "mlp", lenses="OutputNorm", tick=100), 100, "OutputNorm, tick 100"),
    ],
)
def test_case_knows_its_block_and_label(case, block, label):
    assert (case.block, case.label) == (block, label)


def test_unknown_model():
    with pytest.raises(ValueError, match="no model is called 'vgg'"):
        workload("vgg", "cpu")
