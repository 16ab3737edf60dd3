"""Every example runs as a program, ends as it says, and leaves something to look at."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from monitorch.diagnosis import findings_of, verdict
from monitorch.store import list_runs, open_run

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}

# these draw a figure; all others watch a training, and leave its run and a report
FIGURES = ("batchnorm_drift", "leaky_integrate_and_fire")
HEALTHY = sorted({*EXAMPLES} - {*FIGURES, "cnn_planted_bug"})

PROGRAM = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


@pytest.fixture
def run_example(run_program, tmp_path):
    """Run one in an empty folder; returns what it prints."""

    def run(name, *options):
        if name == "ddp":
            command = [*TORCHRUN, str(EXAMPLES[name])]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        else:
            done = run_program(PROGRAM, EXAMPLES[name], *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def findings_in(folder):
    """What was found in the only run of a folder."""
    (found,) = list_runs(folder / "monitorch_runs")
    with open_run(found.path) as run:
        assert run.status == "finished"
        return findings_of(run.meta)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_training_that_is_healthy_ends_so(name, run_example, tmp_path):
    printed = run_example(name)
    assert re.search(r"^(\w.*: )?healthy$", printed, re.MULTILINE)
    assert printed.endswith(f"\nreport: {name}.html\n")
    assert verdict(findings_in(tmp_path)) == "healthy"
    assert (tmp_path / f"{name}.html").stat().st_size > 300_000


def test_the_planted_bug_is_named(run_example, tmp_path):
    printed = run_example("cnn_planted_bug")
    assert "warning: no update in stem since step" in printed
    assert printed.endswith("report: cnn_planted_bug.html\n")
    assert (tmp_path / "cnn_planted_bug.html").exists()
    first, *others = findings_in(tmp_path)
    assert (first.symptom, first.layer, first.remedy.action) == ("no_update", "stem", "add_to_optimizer")
    assert all(one.severity == "info" for one in others)


@pytest.mark.slow
def test_the_mended_network_is_healthy_and_better(run_example, tmp_path):
    def accuracy(printed):
        return float(re.search(r"accuracy: ([\d.]+)%", printed)[1])

    mended = run_example("cnn_planted_bug", "--mended")
    assert verdict(findings_in(tmp_path)) == "healthy"
    assert accuracy(mended) > accuracy(run_example("cnn_planted_bug")) + 5


def assert_table_and_figure(printed, name, folder):
    assert len(printed.splitlines()) > 4
    assert printed.endswith(f"figure: {name}.png\n")
    assert [left.name for left in folder.iterdir()] == [f"{name}.png"]
    assert (folder / f"{name}.png").stat().st_size > 10_000


def test_statistics_drift_faster_after_the_change(run_example, tmp_path):
    printed = run_example("batchnorm_drift")
    assert_table_and_figure(printed, "batchnorm_drift", tmp_path)
    first, second, third = map(float, re.findall(r" x([\d.]+)", printed))
    assert first < 2 < min(second, third)


def test_traces_follow_the_spikes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monitors = runpy.run_path(str(EXAMPLES["leaky_integrate_and_fire"]))["main"]()
    assert_table_and_figure(capsys.readouterr().out, "leaky_integrate_and_fire", tmp_path)
    spikes, nearest, cumulative = (monitors[name].dump() for name in ("spikes", "nearest", "cumulative"))
    assert (nearest[spikes > 0] == 1).all()
    assert (cumulative >= nearest).all()
    assert monitors["silence"].latest.tolist() == [
        float(column.nonzero()[0]) if column.any() else float("inf") for column in spikes.T
    ]


@pytest.mark.slow
def test_a_policy_learns(run_example):
    first, last = map(int, re.search(r"(\d+) at first, (\d+) at the end", run_example("policy_gradient")).groups())
    assert first < 40 < 80 < last


def test_the_list_of_examples_is_complete():
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == [path.name for path in EXAMPLES.values()]


def test_torchrun_is_asked_for_where_it_is_needed(run_program):
    done = run_program(PROGRAM, EXAMPLES["ddp"])
    assert (done.returncode, done.stdout) == (1, "")
    assert f"torchrun --nproc_per_node 2 {EXAMPLES['ddp']}" in done.stderr
