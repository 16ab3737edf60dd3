"""The run that watching a model leaves on disk."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import monitorch
from monitorch.cli.wording import command
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.store import list_runs, open_run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "monitorch_runs"


class Training:
    """A small model with what trains it."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loss_fn = nn.MSELoss()
        self.losses = []

    def watch(self, **options):
        return monitorch.watch(self.model, self.optimizer, loss_fn=self.loss_fn, **options)

    def run(self, first, last):
        for number in range(first, last):
            x = torch.randn(8, 3, generator=torch.Generator().manual_seed(number))
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.model(x), x.sum(1, keepdim=True))
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())


@pytest.fixture
def training():
    return Training()


def losses(name, folder):
    with open_run(folder / name) as run:
        series = run.series("run", "Loss/train_loss mean", "run")
        return series.axis.step.tolist(), series.values


def test_a_run_is_stored_and_a_line_says_where(training, folder, capsys):
    with training.watch(run="first", tick_every=5):
        training.run(0, 20)
    assert capsys.readouterr().out == f"monitorch: storing the run 'first'; to look at it: {command()} ui\n"
    steps, means = losses("first", folder)
    assert steps == [5, 10, 15, 20]
    assert means == pytest.approx(np.mean(np.reshape(training.losses, (4, 5)), axis=1), rel=1e-6)
    (info,) = list_runs(folder)
    assert (info.name, info.status, info.dropped) == ("first", "finished", 0)


def test_a_folder_that_cannot_be_written_is_said_at_once_and_nothing_else_is_claimed(training, tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.warns(MonitorchWarning, match="the run cannot be stored in .*file/first: .*Not a directory") as told:
        watched = training.watch(run="first", folder=tmp_path / "file", tick_every=2)
    assert len(told) == 1
    training.run(0, 6)  # no further warning
    watched.close()
    assert "storing" not in capsys.readouterr().out
    assert training.losses[-1] < training.losses[0]


def test_a_run_is_there_before_the_first_step_and_none_where_nothing_is_watched(training, folder, monkeypatch):
    with training.watch(run="early"):
        assert [(info.name, info.status, info.last_step) for info in list_runs(folder)] == [("early", "running", None)]
    monkeypatch.setenv("MONITORCH", "off")
    with training.watch(run="off"):
        training.run(0, 3)
    assert [info.name for info in list_runs(folder)] == ["early"]


def test_ticks_are_frequent_at_first_and_rare_later(training, folder):
    with training.watch(run="long"):
        training.run(0, 1300)
    steps, _ = losses("long", folder)
    assert steps[:12] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 121]
    assert steps[-2] - steps[-3] == 100


def test_a_name_that_is_taken_gets_a_number(training, folder):
    for _ in range(3):
        with training.watch(run="same", tick_every=2):
            training.run(0, 2)
    assert {info.name for info in list_runs(folder)} == {"same", "same_2", "same_3"}


def test_facts_are_kept_beside_the_numbers(training, folder):
    with training.watch(run="facts", tick_every=2, config={"width": 4}):
        training.run(0, 2)
    with open_run(folder / "facts") as run:
        assert run.meta["config"] == {"width": 4}
        assert run.meta["model"] == {"kind": "Sequential", "parameters": 21, "trained parameters": 21}
        assert run.meta["optimizers"][0]["lr"] == 0.1
        assert run.meta["versions"]["torch"] == torch.__version__
        described = [tuple(layer) for layer in run.layers if layer.name and layer.kind]
        assert described == [("0", "Linear", 16), ("1", "ReLU", 0), ("2", "Linear", 5)]


def test_facts_can_be_left_out(training, folder):
    with training.watch(run="bare", tick_every=2, capture=False):
        training.run(0, 2)
    with open_run(folder / "bare") as run:
        assert run.meta["host"] is None
        assert run.meta["versions"] is None
        assert not {"git", "model", "machine", "script"} & set(run.meta)


def test_a_block_that_fails_leaves_a_crashed_run(training, folder):
    def fail():
        with training.watch(run="failed", tick_every=2):
            training.run(0, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (info,) = list_runs(folder)
    assert (info.status, info.last_step) == ("crashed", 3)


def test_a_killed_process_leaves_a_crashed_run_with_all_ticks(folder):
    code = """
import os, signal, torch, monitorch
from torch import nn
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = monitorch.watch(model, optimizer, run="killed", tick_every=2)
for step in range(10):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
watched.inspector.visualizer.writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, cwd=folder.parent)
    (info,) = list_runs(folder)
    assert (info.status, info.ticks, info.last_step) == ("crashed", 5, 10)


def test_a_resumed_run_goes_on_where_its_checkpoint_was(training, folder):
    whole = Training()
    with whole.watch(run="whole", tick_every=4):
        whole.run(0, 24)
    with training.watch(run="parted", tick_every=4) as watched:
        training.run(0, 10)
        file = io.BytesIO()
        parts = {"watch": watched, "model": training.model, "optimizer": training.optimizer}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
        training.run(10, 17)  # steps that are lost: the checkpoint is older
    file.seek(0)
    again = Training()
    with again.watch(run="parted", tick_every=4, resume=True) as watched:
        parts = {"watch": watched, "model": again.model, "optimizer": again.optimizer}
        for name, state in torch.load(file).items():
            parts[name].load_state_dict(state)
        again.run(10, 24)
    steps, means = losses("parted", folder)
    expected_steps, expected = losses("whole", folder)
    assert steps == expected_steps
    assert means == pytest.approx(expected, rel=1e-6)


def test_a_run_resumed_without_a_checkpoint_counts_on(training, folder):
    for first in (0, 8):
        with training.watch(run="more", tick_every=4, resume=first > 0):
            training.run(first, first + 8)
    assert losses("more", folder)[0] == [4, 8, 12, 16]


def test_what_observing_costs_is_kept(training, folder):
    with training.watch(run="cost", tick_every=5):
        training.run(0, 20)
    with open_run(folder / "cost") as run:
        assert 0 < run.meta["overhead"] < 100


def test_monitoring_that_is_switched_off_leaves_nothing(training, folder, monkeypatch, capsys):
    monkeypatch.setenv("MONITORCH", "off")
    with training.watch(tick_every=2):
        training.run(0, 4)
    assert not folder.exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": True}, "needs the name of the run"),
        ({"visualizer": "dummy", "run": "a"}, "no visualizer then"),
        ({"visualizer": "dummy", "config": {}}, "no visualizer then"),
        ({"run": "a/b"}, "name of a folder"),
        ({"run": "a", "config": {"x": object()}}, "JSON"),
        ({"max_size": 3}, "max_size=3 must be"),
        ({"tick_every": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(options, message, training, folder):
    with pytest.raises(OptionError, match=message):
        training.watch(**options)
    assert not folder.exists()
    assert not training.model._forward_pre_hooks


def test_a_job_that_always_resumes_may_start_so(training, folder):
    with training.watch(run="new", tick_every=2, resume=True):
        training.run(0, 4)
    assert losses("new", folder)[0] == [2, 4]


def test_a_watch_and_its_inspector_show_the_run_in_a_notebook(training):
    with training.watch(run="shown", tick_every=2) as watched:
        assert set(watched._repr_mimebundle_()) == {"text/plain"}  # there is nothing yet
        training.run(0, 4)
        for shown in (watched, watched.inspector):
            bundle = shown._repr_mimebundle_()
            assert "shown: running at step 4" in bundle["text/plain"]
            assert bundle["text/html"].startswith("<iframe sandbox=")
    assert "shown: finished at step 4" in watched._repr_mimebundle_()["text/plain"]


def test_without_a_run_a_notebook_shows_text(training):
    with training.watch(visualizer="dummy", tick_every=2) as watched:
        assert watched._repr_mimebundle_() == {"text/plain": "Watch(Sequential, tick_every=2, ticks=0)"}


@pytest.mark.parametrize(("ending", "status"), [("", "finished"), ("raise ValueError", "crashed")])
def test_a_watch_that_nobody_closes_shows_its_last_steps_when_python_ends(ending, status, folder):
    code = f"""
import torch, monitorch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitorch.watch(model, optimizer, run="open", tick_every=4)
for step in range(6):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
{ending}
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=folder.parent, capture_output=True, text=True)
    assert ("ValueError" in done.stderr) == bool(ending)
    (info,) = list_runs(folder)
    assert (info.status, info.last_step) == (status, 6)


RANKS = """
import sys
import torch, torch.distributed as dist, monitorch
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model, loss_fn = nn.Linear(3, 1), nn.MSELoss()
parallel, optimizer = nn.parallel.DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)
for name, per_rank in (("joint", False), ("apart", True)):
    with monitorch.watch(parallel, optimizer, loss_fn=loss_fn, run=name, tick_every=2, per_rank=per_rank):
        for step in range(3):
            x = torch.full((2, 3), float(dist.get_rank() + step))
            optimizer.zero_grad()
            loss_fn(parallel(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.xdist_group("processes")
def test_one_process_stores_for_all_or_each_for_itself(folder):
    (folder.parent / "ranks.py").write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ranks.py"]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=True)
    assert done.stdout.count("storing the run") == 2  # one line for each run, however many processes
    assert {info.name: info.ranks for info in list_runs(folder)} == {"joint": (0,), "apart": (0, 1)}
    assert {info.last_step for info in list_runs(folder)} == {3}


@pytest.mark.parametrize("options", [{"every": 5, "tick_every": 6}, {"every": 10}, {"budget": 0.02, "tick_every": 7}])
def test_parameters_are_shown_at_every_tick_however_rarely_steps_are_observed(options, training, folder):
    with training.watch(run="rare", **options):
        training.run(0, 60)
    with open_run(folder / "rare") as run:
        ticks = len(run.series("run", "Loss/train_loss mean", "run").values)
        assert len(run.series("ParameterNorm", "Parameter Norm/mean", "0.weight").values) == ticks


def test_where_and_when_numbers_were_not_finite_first_is_an_event(training, folder):
    with training.watch(run="broken", tick_every=1):
        training.run(0, 5)
        with torch.no_grad():
            training.model[2].weight[0, 0] = torch.nan
        training.run(5, 8)
    with open_run(folder / "broken") as run:
        events = run.events()
    assert {event.step for event in events if event.layer == "2"} == {6}
    assert min(event.step for event in events) == 6
    assert {event.severity for event in events} == {"error"}
    assert any(event.layer == "2.weight" for event in events)


def test_a_healthy_run_has_no_events(training, folder):
    with training.watch(run="healthy", tick_every=2):
        training.run(0, 6)
    with open_run(folder / "healthy") as run:
        assert run.events() == []


def test_a_loss_that_cannot_be_seen_is_told_once(training, capsys):
    with monitorch.watch(training.model, training.optimizer, tick_every=2):
        training.run(0, 6)
    assert capsys.readouterr().out.count("no loss was seen") == 1


@pytest.mark.parametrize(
    ("name", "message"), [("tick_evry", "did you mean tick_every="), ("zzz", "there are budget, capture, config")]
)
def test_a_misspelt_option_is_told_with_the_right_one(name, message, training):
    with pytest.raises(TypeError, match=message):
        training.watch(**{name: 3})
