"""Weights & Biases as a tracker: what is in the file of an offline run."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb
from torch import nn

import monitorch
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.lens import Distribution
from monitorch.visualizer import Record
from monitorch.visualizer.trackers import TrackerVisualizer, WandbTracker
from monitorch.visualizer.trackers.tracker import Histogram, TrackedRun
from tests.visualizer.trackers import wandb_file

RUN = TrackedRun("first", {"lr": 0.1})


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No network, no login, and nothing printed."""
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path), "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    wandb.teardown()  # what was set before may come from another test
    yield
    wandb.teardown()


def ours(folder, name):
    return [(row["monitorch/step"], row[name]) for row in wandb_file.rows(folder) if name in row]


def test_a_run_of_its_own_has_rows_alerts_facts_histograms_and_the_report(tmp_path):
    (tmp_path / "report.html").write_text("page", encoding="utf-8")
    tracker = WandbTracker(project="gpt")
    tracker.start(RUN)
    tracker.scalars(10, {"monitorch/loss": 0.5, "monitorch/norm": 2.0})
    tracker.scalars(20, {"monitorch/loss": math.nan, "monitorch/norm": math.inf})
    tracker.histograms(20, {"monitorch/gradient/fc": Histogram(np.arange(4.0), np.array([0, 3, 5]))})
    tracker.alert(15, "dead units in " + 100 * "x", "No unit is active.", "error")
    tracker.note({"run": "/runs/first"})
    tracker.artifact(tmp_path / "report.html")
    tracker.close("finished")
    assert wandb.run is None
    [run] = wandb_file.of_kind(tmp_path, "run")[:1]
    assert (run.project, run.display_name) == ("gpt", "first")
    assert ours(tmp_path, "monitorch/norm") == [(10, 2.0), (20, math.inf)]
    (first, (step, number)) = ours(tmp_path, "monitorch/loss")
    assert (first, step) == ((10, 0.5), 20)
    assert math.isnan(number)
    [(_, bins)] = ours(tmp_path, "monitorch/gradient/fc/bins")
    [(_, counts)] = ours(tmp_path, "monitorch/gradient/fc/values")
    assert (bins[0], bins[-1], sum(counts)) == (1, 3, 8)
    [alert] = wandb_file.of_kind(tmp_path, "alert")
    assert (alert.level, alert.text) == ("ERROR", "step 15: No unit is active.")
    assert len(alert.title) < 64
    assert wandb_file.summary(tmp_path)["monitorch/run"] == "/runs/first"
    metrics = {metric.glob_name or metric.name: metric for metric in wandb_file.of_kind(tmp_path, "metric")}
    assert metrics["monitorch/*"].step_metric == "monitorch/step"
    [artifact] = wandb_file.of_kind(tmp_path, "artifact")
    assert [entry.path for entry in artifact.manifest.contents] == ["report.html"]


def train(tracker, steps, every, log):
    for step in range(1, steps + 1):
        log(step)
        if step % every == 0:
            tracker.scalars(step, {"monitorch/norm": float(step)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "log",
    [
        pytest.param(lambda step: wandb.log({"loss": step}, step=step), id="steps"),
        pytest.param(lambda step: wandb.log({"loss": step}, step=step - 1), id="steps from 0"),
        pytest.param(lambda step: wandb.log({"loss": step}), id="no steps"),
        pytest.param(lambda step: step % 7 == 0 and wandb.log({"loss": step}, step=step), id="some steps"),
        pytest.param(lambda step: None, id="nothing"),
    ],
)
def test_the_run_of_the_user_is_used_loses_nothing_and_stays_open(tmp_path, log):
    with wandb.init() as run:
        tracker = WandbTracker()
        tracker.start(RUN)
        train(tracker, 40, 10, log)
        tracker.close("finished")
        assert wandb.run is run
        run.log({"after": 1})
    assert ours(tmp_path, "monitorch/norm") == [(10, 10), (20, 20), (30, 30), (40, 40)]
    kept = [row["loss"] for row in wandb_file.rows(tmp_path) if "loss" in row]
    assert kept in ([], list(range(1, 41)), list(range(7, 41, 7)))
    assert [row["after"] for row in wandb_file.rows(tmp_path) if "after" in row] == [1]


@pytest.mark.slow
def test_without_rows_of_our_own_epochs_as_steps_are_kept(tmp_path):
    with wandb.init():
        tracker = WandbTracker(commit=False)
        tracker.start(RUN)
        train(tracker, 60, 10, lambda step: step % 20 == 0 and wandb.log({"loss": step}, step=step // 20))
    assert [row["loss"] for row in wandb_file.rows(tmp_path) if "loss" in row] == [20, 40, 60]
    assert ours(tmp_path, "monitorch/norm")[-1] == (60, 60)


@pytest.mark.slow
def test_the_axis_may_be_that_of_a_framework(tmp_path):
    with wandb.init() as run:
        tracker = WandbTracker(run, step_metric="trainer/global_step")
        tracker.start(RUN)
        tracker.scalars(10, {"monitorch/norm": 1.0})
    assert wandb_file.rows(tmp_path)[0]["trainer/global_step"] == 10
    metrics = {metric.glob_name or metric.name: metric for metric in wandb_file.of_kind(tmp_path, "metric")}
    assert metrics["monitorch/*"].step_metric == "trainer/global_step"


@pytest.mark.slow
def test_a_run_that_the_user_has_closed_is_told_of_once():
    run = wandb.init()
    visualizer = TrackerVisualizer(WandbTracker())
    visualizer.begin(RUN)
    run.finish()
    for step in (1, 2):
        visualizer.write([Record(step, step, 1.0, 0, "Loss", "Loss", "Loss", "train_loss mean", 0.5)])
    with pytest.warns(MonitorchWarning, match="WandbTracker failed: UsageError.*is finished") as told:
        visualizer.close()
    assert len(told) == 1


def test_options_that_wandb_does_not_have_are_refused():
    with pytest.raises(OptionError, match="projekt"):
        WandbTracker(projekt="gpt")


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 100])
def test_a_watched_run_has_its_losses_a_finding_and_histograms(tmp_path, every):
    model, loss_fn = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), nn.MSELoss()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    options = {"lenses": ["standard", Distribution("gradient")], "every": 1, "tick_every": 4, "folder": tmp_path / "m"}
    with (
        wandb.init(),
        monitorch.watch(model, optimizer, loss_fn=loss_fn, trackers="wandb", **options) as watched,
    ):
        for step in range(40):
            inputs = torch.randn(16, 3)
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), inputs.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % every == 0:
                wandb.log({"mine": losses[-1]}, step=step)
    found = dict(ours(tmp_path, "monitorch/loss/train_loss"))
    exact = {step: np.mean(losses[step - 4 : step]) for step in range(4, 41, 4)}
    if every == 1:  # ours are in these rows, and some ticks may have none to themselves
        assert 40 in found
        exact = {step: exact[step] for step in found}
    assert found == pytest.approx(exact, rel=1e-5)
    assert [row["mine"] for row in wandb_file.rows(tmp_path) if "mine" in row] == losses[::every]
    counts = ours(tmp_path, "monitorch/gradient_distribution/2.bias/values")
    assert sum(counts[0][1]) == 4  # one element in each of four steps
    titles = {alert.title for alert in wandb_file.of_kind(tmp_path, "alert")}
    problems = [one for one in watched.findings if one.severity != "info"]
    assert titles == {one.title if one.layer is None else f"{one.title} in {one.layer}" for one in problems}
    assert "dead units in 1" in titles
    [artifact] = wandb_file.of_kind(tmp_path, "artifact")
    assert [entry.path for entry in artifact.manifest.contents] == ["report.html"]


AT_EXIT = """
import torch
from torch import nn
import monitorch

model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
monitorch.watch(model, optimizer, loss_fn=loss_fn, tick_every=5, trackers="wandb")
for step in range(12):
    optimizer.zero_grad()
    loss_fn(model(torch.randn(8, 3)), torch.zeros(8, 1)).backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_program_that_ends_without_a_word_finishes_its_run(tmp_path):
    source = {"PYTHONPATH": str(Path(monitorch.__file__).parents[1])}
    command = [sys.executable, "-c", AT_EXIT]
    settings = os.environ | source
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [step for step, _ in ours(tmp_path, "monitorch/loss/train_loss")] == [5, 10, 12]
    assert [ended.exit_code for ended in wandb_file.of_kind(tmp_path, "exit")] == [0]
