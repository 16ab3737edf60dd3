"""The run that watching a model leaves on disk."""

import argparse
import io
import itertools
import shutil
import signal
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import monitorch
from monitorch.cli.wording import command
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.store import DEFAULT_FOLDER, is_absent, list_runs, open_run


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


def test_what_the_store_warns_of_names_a_line_of_the_users_program(training, folder):
    (folder.parent / "file").touch()
    with pytest.warns(MonitorchWarning, match="cannot be stored") as told:
        training.watch(run="first", folder=folder.parent / "file").close()
    assert told[0].filename == __file__
    with training.watch(run="first", tick_every=1) as watched:
        training.run(0, 2)
        watched.inspector.visualizer.sync()
        shutil.rmtree(folder / "first")
        training.run(2, 3)
        with pytest.warns(MonitorchWarning, match="removed or moved") as told:
            watched.inspector.visualizer.sync()
    assert told[0].filename == __file__


def test_a_run_is_stored_and_a_line_says_where(training, folder, capsys):
    with training.watch(run="first", tick_every=5):
        training.run(0, 20)
    assert capsys.readouterr().out == f"monitorch: storing the run 'first'; to look at it: {command()} ui\n"
    steps, means = losses("first", folder)
    assert steps == [5, 10, 15, 20]
    assert means == pytest.approx(np.mean(np.reshape(training.losses, (4, 5)), axis=1), rel=1e-6)
    (info,) = list_runs(folder)
    assert (info.name, info.status, info.dropped) == ("first", "finished", 0)


@pytest.mark.parametrize("place", ["experiments", f"elsewhere/{DEFAULT_FOLDER}"])
def test_the_line_that_says_where_names_any_folder_but_the_default_one(place, training, tmp_path, capsys):
    with training.watch(run="first", folder=tmp_path / place):
        training.run(0, 2)
    assert capsys.readouterr().out.splitlines()[0].endswith(f"to look at it: {command()} ui {tmp_path / place}")


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


@pytest.fixture
def _steady_time(replace_time):
    """Whoever asks for the time, it is ten microseconds later: what observing costs depends on no other program."""
    moments = itertools.count()
    replace_time(lambda: next(moments) * 1e-5)


def steps_with(run, lens, statistic, layer):
    return run.series(lens, statistic, layer).axis.step.tolist()


@pytest.mark.usefixtures("_steady_time")
def test_by_default_a_short_run_has_numbers_of_seven_steps_of_eight_and_the_losses_of_all(
    training, folder, replace_time
):
    replace_time(partial(next, map((1e-4).__mul__, itertools.count())))  # what observing takes is the same everywhere
    training.optimizer.param_groups[0]["lr"] = 0.01
    with training.watch(run="short", tick_every=1):
        training.run(0, 80)
    observed = [step for step in range(1, 81) if step % 24 not in (8, 9, 10)]
    with open_run(folder / "short") as run:
        assert steps_with(run, "OutputNorm", "Output Norm/mean", "0") == observed
        assert steps_with(run, "ParameterGradientGeometry", "Parameter Gradient Norm/mean", "2.weight") == observed
        assert steps_with(run, "ParameterUpdateGeometry", "Parameter Update Norm/mean", "0.weight") == observed
    steps, values = losses("short", folder)
    assert steps == list(range(1, 81))
    assert values == pytest.approx(training.losses, rel=1e-6)


@pytest.mark.parametrize("every", [1, 10])
def test_every_means_every_so_many_steps_whatever_that_costs(every, training, folder):
    with training.watch(run="exact", every=every, tick_every=1):
        training.run(0, 30)
    with open_run(folder / "exact") as run:
        steps = steps_with(run, "ParameterGradientGeometry", "Parameter Gradient Norm/mean", "0.weight")
    assert steps == list(range(every, 31, every))
    assert losses("exact", folder)[0] == list(range(1, 31))


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


@pytest.mark.parametrize(
    "config",
    [{"width": 4}, argparse.Namespace(width=np.int64(4)), SimpleNamespace(width=torch.tensor(4))],
    ids=["dictionary", "arguments", "namespace"],
)
def test_settings_are_kept_in_whatever_they_come(config, training, folder):
    with training.watch(run="settings", tick_every=2, config=config):
        training.run(0, 2)
    with open_run(folder / "settings") as run:
        assert run.meta["config"] == {"width": 4}


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


class TooLarge(ValueError):
    pass


def test_the_exception_that_ends_a_block_is_kept_with_the_run(training, folder):
    def fail():
        with training.watch(run="failed", tick_every=2):
            training.run(0, 3)
            raise TooLarge("the loss is 1e30")

    with pytest.raises(TooLarge):
        fail()
    with open_run(folder / "failed") as run:
        assert run.status == "crashed"
        assert (run.error.type, run.error.message) == ("TooLarge", "the loss is 1e30")
        assert any("in fail" in line for line in run.error.traceback)
        assert run.last_step == 3


def close_in_finally(watched):
    try:
        raise TooLarge("the loss is 1e30")
    finally:
        watched.close()


def close_in_handler(watched):
    """As frameworks do, which tell their callbacks of an exception, and only then raise it again."""
    try:
        raise TooLarge("the loss is 1e30")
    except TooLarge:
        watched.close()
        raise


@pytest.mark.parametrize("fail", [close_in_finally, close_in_handler])
def test_a_watch_that_is_closed_because_of_an_exception_knows_it(fail, training, folder):
    watched = training.watch(run="failed", tick_every=2)
    training.run(0, 3)
    with pytest.raises(TooLarge):
        fail(watched)
    with open_run(folder / "failed") as run:
        assert (run.status, run.error.line, run.last_step) == ("crashed", "TooLarge: the loss is 1e30", 3)


@pytest.mark.parametrize("in_block", [True, False])
def test_a_second_attempt_after_an_exception_ends_well(in_block, training, folder):
    try:
        raise TooLarge
    except TooLarge:
        watched = training.watch(run="second", tick_every=2)
        if in_block:
            with watched:
                training.run(0, 2)
        else:
            training.run(0, 2)
            watched.close()
    with open_run(folder / "second") as run:
        assert (run.status, run.error) == ("finished", None)


@pytest.mark.parametrize(("code", "status"), [(None, "finished"), (0, "finished"), (3, "crashed"), ("bad", "crashed")])
def test_leaving_the_program_is_no_crash_unless_it_says_so(code, status, training, folder):
    def leave():
        with training.watch(run="left", tick_every=2):
            training.run(0, 2)
            sys.exit(code)

    with pytest.raises(SystemExit):
        leave()
    with open_run(folder / "left") as run:
        assert run.status == status
        assert (run.error is None) == (status == "finished")


def test_a_generator_that_is_not_used_up_is_no_crash(training, folder):
    def batches():
        watched = training.watch(run="generator", tick_every=2)
        try:
            yield 1
        finally:
            watched.close()

    used = batches()
    next(used)
    training.run(0, 2)
    used.close()
    with open_run(folder / "generator") as run:
        assert (run.status, run.error) == ("finished", None)


PROGRAM = """
import os, signal, torch, monitorch
from torch import nn
torch.manual_seed(0)
model, loss_fn = nn.Linear(3, 1), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        loss_fn(model(torch.ones(2, 3)), torch.zeros(2, 1)).backward()
        optimizer.step()
def evaluate():
    model.eval()
    with torch.no_grad():
        loss_fn(model(torch.ones(2, 3)), torch.zeros(2, 1))
    model.train()
"""


def test_the_exception_that_ends_a_program_is_kept_with_the_run(run_program, folder):
    code = (
        PROGRAM
        + """
monitorch.watch(model, optimizer, loss_fn=loss_fn, run="open", tick_every=4)
train(6)
evaluate()
raise RuntimeError("out of memory")
"""
    )
    done = run_program(code)
    assert "RuntimeError: out of memory" in done.stderr
    with open_run(folder / "open") as run:
        assert (run.status, run.error.line, run.last_step) == ("crashed", "RuntimeError: out of memory", 6)
        assert run.series("run", "Loss/val_loss mean", "run").axis.step.tolist() == [6]


def test_a_program_killed_in_the_midst_of_an_evaluation_has_the_tick_before_it(run_program, folder):
    code = (
        PROGRAM
        + """
watched = monitorch.watch(model, optimizer, loss_fn=loss_fn, run="killed", tick_every=4)
train(4)
watched.inspector.visualizer.writer.flush()
evaluate()
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    run_program(code)
    (info,) = list_runs(folder)
    assert (info.status, info.ticks, info.last_step) == ("crashed", 1, 4)


def test_an_evaluation_is_stored_at_its_step_beside_the_tick_that_was_there_already(training, folder):
    with training.watch(run="evaluated", tick_every=4) as watched:
        for epoch in range(3):
            training.run(8 * epoch, 8 * epoch + 8)
            training.model.eval()
            with torch.no_grad():
                training.loss_fn(training.model(torch.ones(2, 3)), torch.zeros(2, 1))
            training.model.train()
            watched.log(accuracy=epoch / 4)
    with open_run(folder / "evaluated") as run:
        for statistic in ("Loss/val_loss mean", "Logged/accuracy mean"):
            assert run.series("run", statistic, "run").axis.step.tolist() == [8, 16, 24]
        assert run.series("run", "Loss/train_loss mean", "run").axis.step.tolist() == [4, 8, 12, 16, 20, 24]
        steps = run.series("ParameterNorm", "Parameter Norm/mean", "0.weight").axis.step
        assert (np.diff(steps) >= 0).all()
        window = run.window("run", "Logged/accuracy mean", resolution=100)
        measured = ~is_absent(window.mean[0])
        assert window.axis.step[measured].tolist() == [8, 16, 24]
        assert window.mean[0][measured].tolist() == [0, 0.25, 0.5]


LAST_WORDS = """
watched = monitorch.watch(model, optimizer, run="strict", tick_every=2)  # no loss: a hint
train(3)
watched.log(a="x")
watched.log({"b": None}, step="soon")
watched.push_loss("y")
watched.log(fine=1, step=1)
train(2)
watched.inspector.visualizer.write_frames = None  # ticks fail from now on
train(4)
watched.tick()
watched.close()
for call in (watched.tick, watched.step, lambda: watched.log(a=1), lambda: watched.push_loss(1.0)):
    call()
watched.records()
print("done")
"""


def test_where_warnings_are_errors_training_goes_on_and_they_are_printed(run_program):
    done = run_program("import warnings; warnings.simplefilter('error')" + PROGRAM + LAST_WORDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    for text in ("a='x' is left out", "b=None is left out", "step='soon'", "loss='y' is left out"):
        assert done.stderr.count(text) == 1
    assert done.stderr.count("a tick failed: TypeError") == 1
    assert done.stderr.count("this watch is closed") == 1


def test_a_killed_process_leaves_a_crashed_run_with_all_ticks(run_program, folder):
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
    assert run_program(code).returncode == -signal.SIGKILL
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


@pytest.mark.parametrize("more", [0, 9])
def test_an_evaluation_before_a_checkpoint_is_shown_once(more, training, folder):
    with training.watch(run="one", tick_every=10) as watched:
        training.run(0, 13)
        watched.push_loss(0.5, train=False)
        watched.log(accuracy=0.7)
        saved = watched.state_dict()
        watched.log(late=1.0)
        training.run(13, 13 + more)
    again = Training()
    with again.watch(run="one", tick_every=10, resume=True) as watched:
        watched.load_state_dict(saved)
        again.run(13, 24)
    with open_run(folder / "one") as run:
        for name in ("Loss/val_loss", "Logged/accuracy", "Logged/late"):
            assert run.series("run", f"{name} mean", "run").axis.step.tolist() == [13]


def test_a_run_resumed_without_a_checkpoint_counts_on(training, folder, capsys):
    for first in (0, 8):
        with training.watch(run="more", tick_every=4, resume=first > 0):
            training.run(first, first + 8)
    assert losses("more", folder)[0] == [4, 8, 12, 16]
    told = ["monitorch: storing the run 'more'", "monitorch: continuing the run 'more', stored until step 8"]
    assert [line.partition(";")[0] for line in capsys.readouterr().out.splitlines()] == told


@pytest.mark.parametrize(
    ("options", "at_least"), [({"every": 40}, False), ({"every": 4}, True), ({"every": 1}, True)], ids=str
)
def test_what_observing_costs_is_kept_and_whether_it_is_at_least_that(options, at_least, training, folder):
    with training.watch(run="cost", tick_every=5, **options) as watched:
        training.run(0, 200)
        assert watched.inspector.overhead_is_lower_bound == at_least
    with open_run(folder / "cost") as run:
        assert 0 < run.meta["overhead"] < 1000
        assert run.meta["overhead_at_least"] is at_least


@pytest.mark.parametrize(("overhead", "is_kept"), [(15.0, False), (0.02, True)])
def test_what_the_head_start_costs_is_not_told_as_if_it_would_last(overhead, is_kept, training, folder, monkeypatch):
    monkeypatch.setattr(monitorch.PyTorchInspector, "overhead", overhead)
    with training.watch(run="short", tick_every=5) as watched:
        training.run(0, 10)
        assert ("overhead" in watched.postfix()) is is_kept
    with open_run(folder / "short") as run:
        assert ("overhead" in run.meta) is is_kept


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
        *(({"run": wrong}, "run takes the name of a run, not") for wrong in (0, False, 1.5, [])),
        ({"run": ""}, "run='' is no name: leave it out"),
        ({"folder": ""}, "folder='' must be the path of the folder that holds all runs"),
        ({"visualizer": "dummy", "run": "a"}, "drop either these or visualizer="),
        ({"visualizer": "dummy", "config": {}}, "drop either these or visualizer="),
        ({"run": "a/b"}, "a run cannot be called 'a/b'"),
        ({"run": "\ud800"}, "a run cannot be called"),
        ({"folder": None}, "folder=None must be the path of the folder that holds all runs"),
        ({"folder": "a\0b"}, r"folder='a\\x00b' must be the path"),
        ({"max_size": 3}, "max_size=3 must be"),
        ({"tick_every": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(options, message, training, folder):
    with pytest.raises(OptionError, match=message):
        training.watch(**options)
    assert not folder.exists()
    assert not training.model._forward_pre_hooks


def test_a_run_that_goes_on_with_another_model_is_warned_of(training, folder):
    with training.watch(run="first"):
        training.run(0, 3)
    with training.watch(run="first", resume=True):  # the same model, so nothing is said
        training.run(3, 5)
    larger = Training()
    larger.model.append(nn.Linear(1, 1))
    with pytest.warns(MonitorchWarning, match="of another model, Sequential with 21 .* Sequential with 23 parameters"):
        larger.watch(run="first", resume=True).close()


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


@pytest.mark.parametrize(
    ("ending", "status"), [("", "finished"), pytest.param("raise ValueError", "crashed", marks=pytest.mark.slow)]
)
def test_a_watch_that_nobody_closes_shows_its_last_steps_when_python_ends(ending, status, run_program, folder):
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
    done = run_program(code)
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


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_one_process_stores_for_all_or_each_for_itself(folder):
    (folder.parent / "ranks.py").write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ranks.py"]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=True)
    assert done.stdout.count("storing the run") == 2  # one line for each run, however many processes
    assert {info.name: info.ranks for info in list_runs(folder)} == {"joint": (0,), "apart": (0, 1)}
    assert {info.last_step for info in list_runs(folder)} == {3}


def evaluates(rank, _, *, runs):
    """The first process alone, then both, then the second alone; returns each loss by its step."""
    torch.manual_seed(0)
    model, loss_fn, losses = nn.Linear(3, 1), nn.MSELoss(), {}
    parallel, optimizer = nn.parallel.DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.01)

    def train(steps):
        for step in range(steps):
            x = torch.full((2, 3), float(rank + step))
            optimizer.zero_grad()
            loss_fn(parallel(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()

    def evaluate(step):
        parallel.eval()
        with torch.no_grad():
            losses[step] = loss_fn(model(torch.full((2, 3), float(rank))), torch.ones(2, 1)).item()
        parallel.train()

    options = {"loss_fn": loss_fn, "folder": runs, "run": "joint", "tick_every": 4}
    with monitorch.watch(parallel, optimizer, **options) as watched:
        train(4)
        if rank == 0:
            evaluate(4)
            watched.log(accuracy=0.5)
        train(3)
        evaluate(7)
        watched.log(accuracy=float(rank))
        train(5)
        if rank == 1:
            evaluate(12)
            watched.log(accuracy=0.75)
    return losses


@pytest.mark.xdist_group("processes")
def test_processes_evaluate_alone_or_together_and_nothing_is_lost_or_waits_for_ever(run_ranks, folder):
    first, second = run_ranks(evaluates, runs=str(folder))
    with open_run(folder / "joint") as run:
        losses = run.series("run", "Loss/val_loss mean", "run")
        assert losses.axis.step.tolist() == [4, 7, 12]
        assert losses.values == pytest.approx([first["4"], (first["7"] + second["7"]) / 2, second["12"]], rel=1e-6)
        accuracy = run.series("run", "Logged/accuracy mean", "run")
        assert accuracy.axis.step.tolist() == [4, 7, 12]
        assert accuracy.values.tolist() == [0.5, 0.5, 0.75]
        assert run.series("run", "Loss/train_loss mean", "run").axis.step.tolist() == [4, 8, 12]


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
    (first,) = [event for event in events if event.layer != "run" and event.kind != "flight record"]
    assert (first.step, first.layer, first.severity, first.kind) == (5, "2", "error", "not finite")
    assert "'2.weight' was the first that was not finite" in first.text


def test_a_healthy_run_has_no_events(training, folder):
    with training.watch(run="healthy", tick_every=2):
        training.run(0, 6)
    with open_run(folder / "healthy") as run:
        assert run.events() == []


def test_a_loss_that_cannot_be_seen_is_told_once(training, capsys):
    with monitorch.watch(training.model, training.optimizer, tick_every=2):
        training.run(0, 6)
    assert capsys.readouterr().out.count("no loss was seen") == 1


@pytest.mark.parametrize("tick_every", [1, 3])
def test_a_loss_that_is_pushed_after_each_step_was_seen(tick_every, training, capsys):
    with monitorch.watch(training.model, training.optimizer, tick_every=tick_every) as watched:
        for number in range(6):
            training.run(number, number + 1)
            watched.push_loss(training.losses[-1])
    assert "no loss was seen" not in capsys.readouterr().out


@pytest.mark.parametrize("steps", [0, 6])
def test_nobody_looks_for_a_loss_before_a_resumed_run_has_trained(steps, training, capsys):
    with monitorch.watch(training.model, training.optimizer, tick_every=1) as watched:
        watched.begin_at(100)
        watched.log(epoch=1.0)  # frameworks log something even if nothing is left to train
        for number in range(steps):
            training.run(number, number + 1)
            watched.push_loss(training.losses[-1])
    assert "no loss was seen" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"), [("tick_evry", "did you mean tick_every="), ("zzz", "the options are budget, capture, config")]
)
def test_a_misspelt_option_is_told_with_the_right_one(name, message, training):
    with pytest.raises(TypeError, match=message):
        training.watch(**{name: 3})
