"""Trackers of a watched run: beside the store, to the end, and in one process of several."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import monitorch
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.store import list_runs, open_run
from monitorch.visualizer.store_visualizer import StoreVisualizer
from monitorch.watching.tracking import REPORT
from tests.unchanged import everything
from tests.visualizer.trackers.kept import KeptTracker

ROOT = Path(__file__).parents[2]


class Training:
    """A small model in training, watched with every step and two steps per tick."""

    def __init__(self, folder, activation=nn.ReLU):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss_fn = nn.MSELoss()
        self.losses, self.norms, self.folder = [], [], folder

    def watch(self, *trackers, **options):
        common = {"loss_fn": self.loss_fn, "every": 1, "tick_every": 2}
        if "visualizer" not in options:
            common["folder"] = self.folder
        return monitorch.watch(self.model, self.optimizer, trackers=trackers, **common | options)

    def run(self, steps):
        for _ in range(steps):
            x = torch.randn(16, 3)
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.model(x), x.sum(1, keepdim=True))
            loss.backward()
            self.losses.append(loss.item())
            squares = [np.square(p.grad.double().numpy()).sum() for p in self.model.parameters()]
            self.norms.append(np.sqrt(sum(squares)))
            self.optimizer.step()


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def by_tick(samples):
    return [(step, np.mean(samples[step - 2 : step])) for step in range(2, len(samples) + 1, 2)]


def test_a_tracker_has_the_numbers_of_training_at_its_steps(training):
    tracker = KeptTracker()
    with training.watch(tracker, run="mine", config={"lr": 0.01}):
        training.run(10)
    for name, samples in (("loss/train_loss", training.losses), ("gradient_norm", training.norms)):
        assert [step for step, _ in tracker.series(name)] == [2, 4, 6, 8, 10]
        assert tracker.series(name) == [pytest.approx(pair, rel=1e-4) for pair in by_tick(samples)]
    weights = [p.detach().double().norm().item() for p in training.model.parameters()]
    assert tracker.series("parameter_norm/max")[-1][1] <= max(weights) * (1 + 1e-6)
    assert {"parameter_update_ratio/median", "non-finite/gradients", "findings/errors"} <= tracker.names()
    [(run,)] = tracker.of("start")
    assert (run.name, run.config) == ("mine", {"lr": 0.01})


def test_the_run_is_stored_too_and_its_report_added_at_the_end(training):
    tracker, another = KeptTracker(), KeptTracker(report=False, every_ticks=2)
    with training.watch(tracker, another, run="mine") as watched:
        training.run(6)
    folder = training.folder / "mine"
    with open_run(folder) as run:
        assert (run.last_step, run.status) == (6, "finished")
    [(path, page)] = tracker.of("artifact")
    assert path == folder / REPORT
    assert page.startswith("<!doctype html>")
    facts = {name: text for (told,) in tracker.of("note") for name, text in told.items()}
    assert facts["run"] == str(folder)
    assert facts["look at it with"].endswith(f"ui {training.folder}")
    assert facts["verdict"] == "healthy"
    assert facts["report"] == str(path)
    assert another.of("artifact") == []
    assert [step for step, _ in another.series("loss/train_loss")] == [2, 6]
    assert [type(part).__name__ for part in watched.visualizer] == [
        "StoreVisualizer",
        "TrackerVisualizer",
        "TrackerVisualizer",
    ]
    assert [run.name for run in list_runs(training.folder)] == ["mine"]


def test_training_is_the_same_with_and_without_and_with_one_that_fails(tmp_path):
    found = []
    for trackers in ([], [KeptTracker(include="")], [KeptTracker(fails=["scalars", "alert", "note", "close"])]):
        training = Training(tmp_path)
        if trackers and trackers[0].fails:
            with pytest.warns(MonitorchWarning, match="KeptTracker (failed|cannot be finished): OSError") as told:
                watched_training(training, trackers)
            assert len(told) == 1
        else:
            watched_training(training, trackers)
        found.append([p.detach().numpy().tobytes() for p in training.model.parameters()])
    assert found[0] == found[1] == found[2]


def watched_training(training, trackers):
    with training.watch(*trackers):
        training.run(12)


def test_a_watch_with_trackers_leaves_nothing_behind(training):
    training.run(1)
    before = everything(training.model, training.optimizer)
    with training.watch(KeptTracker()):
        pass
    assert everything(training.model, training.optimizer) == before


def test_a_finding_is_an_alert_and_its_layer_among_the_worst(tmp_path):
    training, tracker = Training(tmp_path), KeptTracker()
    with torch.no_grad():
        training.model[2].bias.fill_(-100.0)
    with training.watch(tracker) as watched:
        training.run(60)
    open_ones = [one for one in watched.findings if one.is_open and one.severity == "warning"]
    assert "dead units" in [one.title for one in open_ones]
    alerts = {title: severity for _, title, _, severity in tracker.of("alert")}
    assert alerts["dead units in 3"] in ("warning", "error")  # when it was told; it may have become less since
    assert tracker.series("findings/warnings")[-1] == (60, len(open_ones))
    shown = {name.split("/")[1] for name in tracker.names() if name.startswith("worst/")}
    assert shown
    assert shown <= {"2", "3", "4", "2.weight", "2.bias", "4.weight", "4.bias"}  # where something was found
    [told] = [facts["findings"] for (facts,) in tracker.of("note") if "findings" in facts]
    assert all(one.explanation in told and one.remedy.text in told for one in open_ones)


def test_an_exception_and_a_number_that_is_not_finite_arrive(training):
    tracker = KeptTracker()

    def train():
        with training.watch(tracker):
            training.run(4)
            with torch.no_grad():
                training.model[0].weight[0, 0] = float("nan")
            training.run(2)
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        train()
    assert tracker.of("close") == [("crashed",)]
    assert np.isnan(tracker.series("loss/train_loss")[-1][1])
    assert tracker.series("non-finite/parameters")[-1][1] > 0
    assert [title for _, title, _, severity in tracker.of("alert") if "not finite" in title and severity == "error"]


def test_beside_another_visualizer_there_is_no_report(training):
    tracker = KeptTracker()
    with training.watch(tracker, visualizer="dummy"):
        training.run(4)
    assert [step for step, _ in tracker.series("loss/train_loss")] == [2, 4]
    assert tracker.of("artifact") == []
    assert list(training.folder.iterdir()) == []


def test_the_visualizer_of_the_user_stays_open(training, tmp_path):
    with (
        StoreVisualizer(tmp_path, "own") as store,
        training.watch(KeptTracker(), visualizer=store),
    ):
        training.run(4)
    with open_run(tmp_path / "own") as run:
        assert run.status == "finished"
    tracker = KeptTracker()
    with StoreVisualizer(tmp_path, "other") as store:
        with training.watch(tracker, visualizer=[store, "dummy"]) as watched:
            training.run(2)
        assert store.writer.is_storing
    assert [type(part).__name__ for part in watched.visualizer] == [
        "StoreVisualizer",
        "DummyVisualizer",
        "TrackerVisualizer",
    ]
    [(path, page)] = tracker.of("artifact")
    assert (path.parent.name, page[:9]) == ("other", "<!doctype")
    assert tracker.of("start")[0][0].name == "other"


def test_a_logged_number_and_a_validation_loss_come_at_their_steps(training):
    tracker = KeptTracker(every_ticks=3)
    with training.watch(tracker) as watched:
        for epoch in range(3):
            training.run(4)
            watched.push_loss(0.5 + epoch, train=False)
            watched.log(accuracy=0.1 * epoch)
    assert tracker.series("logged/accuracy")[-1] == (12, pytest.approx(0.2))
    validation = tracker.series("loss/val_loss")
    assert validation[-1] == (12, 2.5)
    assert set(validation) <= {(4, 0.5), (8, 1.5), (12, 2.5)}


def test_a_tracker_may_be_used_again(training):
    tracker = KeptTracker()
    for _ in range(2):
        with training.watch(tracker):
            training.run(2)
    assert [method for method, *_ in tracker.calls if method in ("start", "close")] == ["start", "close"] * 2


def test_switched_off_nothing_is_started(training, monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    tracker = KeptTracker()
    with training.watch(tracker):
        training.run(4)
    assert tracker.calls == []


@pytest.mark.parametrize("given", ["wandbb", ["tensorboard", 3]])
def test_an_unknown_tracker_is_refused_before_anything_is_stored(training, given):
    with pytest.raises(OptionError, match=r"'tensorboard'"):
        monitorch.watch(training.model, training.optimizer, folder=training.folder, trackers=given)
    assert list(training.folder.iterdir()) == []


@pytest.mark.parametrize("with_state", [True, False])
def test_a_continued_run_counts_on(training, with_state):
    with training.watch(KeptTracker(), run="mine") as watched:
        training.run(4)
        state = watched.state_dict()
    tracker = KeptTracker()
    watched = training.watch(tracker, run="mine", resume=True)
    if with_state:
        watched.load_state_dict(state)
    training.run(4)
    watched.close()
    assert [step for step, _ in tracker.series("loss/train_loss")] == [6, 8]


def test_time_of_the_thread_is_part_of_the_cost(training):
    class Busy(KeptTracker):
        def scalars(self, step, numbers):
            super().scalars(step, numbers)
            np.linalg.eigvals(np.random.default_rng(0).standard_normal((200, 200)))

    with training.watch(Busy()) as watched:
        training.run(10)
    assert watched.visualizer.busy_seconds >= sum(part.busy_seconds for part in list(watched.visualizer)[1:]) > 0


AT_EXIT = """
import sys
import torch
from torch import nn
import monitorch
from monitorch.visualizer.trackers import TensorBoardTracker

model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
monitorch.watch(model, optimizer, loss_fn=loss_fn, tick_every=5, trackers="tensorboard", run="mine")
for step in range(12):
    optimizer.zero_grad()
    loss_fn(model(torch.randn(8, 3)), torch.zeros(8, 1)).backward()
    optimizer.step()
if "raise" in sys.argv:
    raise ZeroDivisionError
"""


@pytest.mark.parametrize("how", ["", pytest.param("raise", marks=pytest.mark.slow)])
def test_a_program_that_ends_without_a_word_loses_nothing(tmp_path, run_program, how):
    done = run_program(AT_EXIT, how)
    assert ("ZeroDivisionError" in done.stderr) == bool(how)
    assert "Warning" not in done.stderr
    found = EventAccumulator(str(tmp_path / "runs" / "mine")).Reload()
    assert [event.step for event in found.Scalars("monitorch/loss/train_loss")] == [5, 10, 12]
    report = found.Tensors("monitorch/report")[0].tensor_proto.string_val[0].decode()
    assert Path(report).exists()


RANKS = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import monitorch
from monitorch.visualizer.trackers import TensorBoardTracker

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
options = {"per_rank": True} if "each" in sys.argv else {}
tracker = TensorBoardTracker(f"events/{dist.get_rank()}")
with monitorch.watch(model, optimizer, loss_fn=loss_fn, tick_every=4, every=1, trackers=tracker, **options):
    for step in range(8):
        optimizer.zero_grad()
        loss_fn(model(torch.randn(8, 3)), torch.zeros(8, 1)).backward()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("which", ["together", "each"])
def test_of_two_processes_the_main_one_writes(tmp_path, which):
    (tmp_path / "script.py").write_text(RANKS, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [*launch, "script.py", which]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"MonitorchWarning", done.stderr) == []
    assert [folder.name for folder in (tmp_path / "events").iterdir()] == ["0"]
    found = EventAccumulator(str(tmp_path / "events" / "0")).Reload()
    assert [event.step for event in found.Scalars("monitorch/loss/train_loss")] == [4, 8]
