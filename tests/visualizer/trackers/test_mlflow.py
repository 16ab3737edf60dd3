"""MLflow as a tracker: what its client finds in an SQLite database."""

import math
import os
import threading

import pytest

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before it is imported

import mlflow
import numpy as np
import torch
from mlflow import MlflowClient
from torch import nn

import monitorch
from monitorch.errors import MonitorchWarning
from monitorch.visualizer import Record
from monitorch.visualizer.trackers import MlflowTracker, TrackerVisualizer
from monitorch.visualizer.trackers.tracker import TrackedRun

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow uses it
RUN = TrackedRun("first", {"lr": 0.1, "layers": [1, 2]})


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """One for all tests: making it takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # artifacts go to a folder beside
        mlflow.set_tracking_uri("sqlite:///mlflow.db")
        yield MlflowClient()
        mlflow.set_tracking_uri(None)


def history(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def test_a_run_of_its_own_has_numbers_tags_parameters_and_the_report(database, tmp_path):
    (tmp_path / "report.html").write_text("page", encoding="utf-8")
    tracker = MlflowTracker()
    tracker.start(RUN)
    assert mlflow.active_run() is None
    run_id = tracker._run_id
    assert database.get_run(run_id).info.status == "RUNNING"

    def write():
        tracker.scalars(3, {"monitorch/loss": 0.5, "monitorch/acc@1": 1.0, "monitorch/norm_+std": 2.0})
        tracker.scalars(5, {"monitorch/loss": math.nan, "monitorch/norm": math.inf})
        tracker.alert(4, "dead units in fc1", "No unit is active.", "error")
        tracker.note({"run": "/runs/first"})
        tracker.artifact(tmp_path / "report.html")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    tracker.close("crashed")
    run = database.get_run(run_id)
    assert (run.info.run_name, run.info.status) == ("first", "FAILED")
    assert run.data.params == {"lr": "0.1", "layers": "[1, 2]"}
    assert run.data.tags["monitorch/dead units in fc1"] == "error at step 4: No unit is active."
    assert run.data.tags["monitorch/run"] == "/runs/first"
    (first, second) = history(database, run_id, "monitorch/loss")
    assert first == (3, 0.5)
    assert second[0] == 5
    assert math.isnan(second[1])
    assert history(database, run_id, "monitorch/norm")[0][1] > 1e308
    assert history(database, run_id, "monitorch/acc_1") == [(3, 1.0)]
    assert history(database, run_id, "monitorch/norm__std") == [(3, 2.0)]
    assert [file.path for file in database.list_artifacts(run_id, "monitorch")] == ["monitorch/report.html"]


def test_the_run_of_the_user_is_used_and_stays_open(database):
    with mlflow.start_run() as own:
        tracker = MlflowTracker()
        tracker.start(RUN)
        tracker.scalars(3, {"monitorch/loss": 0.5})
        tracker.close("finished")
        assert mlflow.active_run().info.run_id == own.info.run_id
        assert database.get_run(own.info.run_id).info.status == "RUNNING"
        mlflow.log_metric("mine", 1.0)
    run = database.get_run(own.info.run_id)
    assert run.data.metrics == {"monitorch/loss": 0.5, "mine": 1.0}
    assert run.data.params == {}


def test_a_run_is_found_by_its_id(database):
    with mlflow.start_run() as own:
        pass
    tracker = MlflowTracker(own.info.run_id)
    tracker.start(RUN)
    tracker.scalars(3, {"monitorch/loss": 0.5})
    tracker.close("finished")
    assert history(database, own.info.run_id, "monitorch/loss") == [(3, 0.5)]


@pytest.mark.slow
def test_more_than_mlflow_takes_at_once_is_split(database):
    tracker = MlflowTracker()
    tracker.start(TrackedRun("many", {f"option {n}": n for n in range(200)}))
    tracker.scalars(1, {f"monitorch/{n}": float(n) for n in range(1100)})
    tracker.close("finished")
    found = database.get_run(tracker._run_id).data
    assert found.metrics["monitorch/1099"] == 1099
    assert len(found.params) == 100


def test_numbers_cannot_be_written_to_a_deleted_run_and_that_is_said_once(database):
    tracker = MlflowTracker()
    visualizer = TrackerVisualizer(tracker)
    visualizer.begin(RUN)
    database.delete_run(tracker._run_id)
    for step in (1, 2):
        visualizer.write([Record(step, step, 1.0, 0, "Loss", "Loss", "Loss", "train_loss mean", 0.5)])
    with pytest.warns(MonitorchWarning, match="MlflowTracker failed: MlflowException") as told:
        visualizer.close()
    assert len(told) == 1


@pytest.mark.slow
def test_a_watched_run_has_its_losses_and_its_report(database, tmp_path):
    model, loss_fn = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), nn.MSELoss()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    with mlflow.start_run() as own:
        options = {"every": 1, "tick_every": 4, "folder": tmp_path, "run": "watched"}
        with monitorch.watch(model, optimizer, loss_fn=loss_fn, trackers="mlflow", **options):
            for _ in range(20):
                inputs = torch.randn(16, 3)
                optimizer.zero_grad()
                loss = loss_fn(model(inputs), inputs.sum(1, keepdim=True))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    exact = [(step, pytest.approx(np.mean(losses[step - 4 : step]), rel=1e-5)) for step in range(4, 21, 4)]
    assert history(database, own.info.run_id, "monitorch/loss/train_loss") == exact
    assert [file.path for file in database.list_artifacts(own.info.run_id, "monitorch")] == ["monitorch/report.html"]
    tags = database.get_run(own.info.run_id).data.tags
    assert (tags["monitorch/run"], tags["monitorch/verdict"]) == (str(tmp_path / "watched"), "healthy")
