"""Accelerate with ``watch`` after ``prepare``, and with the tracker: the real package, on a CPU."""

import gc
import importlib
import json
import math
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

import monitorch
from monitorch.errors import MissingExtraError, MonitorchWarning, OptionError
from monitorch.integration.accelerate import MonitorchTracker, watch
from monitorch.store import list_runs, open_run

LOSS, NORM = "Loss/train_loss mean", "Gradient Norm/gradient_norm mean"
STEPS = 6


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield
    for shared in (AcceleratorState, GradientState, PartialState):
        shared._reset_state()


def prepared(accelerator, accumulate=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    generator = torch.Generator().manual_seed(1)
    data = [(x := torch.randn(3, generator=generator), x.sum().reshape(1)) for _ in range(STEPS * 4 * accumulate)]
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    return accelerator.prepare(model, optimizer, loader, schedule)


class Loop:
    """The loop that Accelerate's documentation shows; keeps what it computes."""

    def __init__(self, accelerator, model, optimizer, loader, schedule, clip=None):
        self.accelerator, self.model, self.optimizer, self.loader = accelerator, model, optimizer, loader
        self.schedule, self.clip = schedule, clip
        self.loss_fn = nn.MSELoss()
        self.losses, self.norms, self.rates = [], [], []

    def train(self, batches=None):
        parts = []
        for number, (x, y) in enumerate(self.loader):
            if batches is not None and number not in batches:
                continue
            with self.accelerator.accumulate(self.model):
                loss = self.loss_fn(self.model(x), y)
                parts.append(loss.item())
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    limit = math.inf if self.clip is None else self.clip
                    self.norms.append(float(self.accelerator.clip_grad_norm_(self.model.parameters(), limit)))
                    self.losses.append(np.mean(parts))
                    self.rates.append(self.schedule.get_last_lr()[0])
                    parts = []
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients:
                self.accelerator.log({"doubled": 2 * self.losses[-1], "text": "left out"}, step=number)


def stored(name, statistic):
    with open_run(Path("runs", name)) as run:
        series = run.series("run", statistic, "run")
        return dict(zip(series.axis.step.tolist(), series.values.tolist(), strict=True))


def assert_series(found, expected, tolerance=1e-5, first=1):
    assert list(found) == list(range(first, first + len(expected)))
    np.testing.assert_allclose(list(found.values()), expected, rtol=tolerance)


OPTIONS = {"run": "mine", "folder": "runs", "every": 1, "tick_every": 1}

CASES = {"plain": {}, "accumulation": {"gradient_accumulation_steps": 3}, "bf16": {"mixed_precision": "bf16"}}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_numbers_are_those_of_the_loop_and_training_is_the_same(case):
    weights = []
    for watches in (True, False):
        tracker = [MonitorchTracker("mine", "runs")] if watches else None
        accelerator = Accelerator(cpu=True, log_with=tracker, **case)
        accelerator.init_trackers("project", config={"width": 8})
        parts = prepared(accelerator, case.get("gradient_accumulation_steps", 1))
        loop = Loop(accelerator, *parts)
        if watches:
            watched = watch(accelerator, *parts[:2], loss_fn=loop.loss_fn, every=1, tick_every=1)
            assert tracker[0].tracker is watched
        loop.train()
        accelerator.end_training()
        weights.append([parameter.detach().clone() for parameter in accelerator.unwrap_model(parts[0]).parameters()])
        if watches:
            assert_series(stored("mine", LOSS), loop.losses)
            assert_series(stored("mine", NORM), loop.norms, 1e-4)
            assert_series(stored("mine", "Logged/doubled mean"), 2 * np.array(loop.losses))
            assert_series(stored("mine", "Logged/learning rate mean"), loop.rates)
    assert all(map(torch.equal, *weights))
    with open_run(Path("runs", "mine")) as run:
        assert (run.status, run.meta["config"]) == ("finished", {"width": 8})


def test_clipped_gradients_are_shown_as_the_optimizer_gets_them():
    accelerator = Accelerator(cpu=True)
    parts = prepared(accelerator)
    loop = Loop(accelerator, *parts, clip=0.1)
    with watch(accelerator, *parts[:2], loss_fn=loop.loss_fn, **OPTIONS):
        loop.train()
    assert min(loop.norms) > 0.1
    assert_series(stored("mine", NORM), [0.1] * STEPS, 1e-4)


def test_the_scaler_of_the_accelerator_is_known():
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)  # it makes one by itself on GPUs only
    parts = prepared(accelerator)
    loop = Loop(accelerator, *parts)
    with watch(accelerator, *parts[:2], loss_fn=loop.loss_fn, **OPTIONS):
        loop.train()
    assert_series(stored("mine", LOSS), loop.losses)
    assert_series(stored("mine", NORM), np.array(loop.norms) / 2.0**12, 1e-4)


def test_the_same_run_goes_on_from_a_saved_state():
    def new():
        accelerator = Accelerator(cpu=True)
        parts = prepared(accelerator)
        loop = Loop(accelerator, *parts)
        return accelerator, loop, watch(accelerator, *parts[:2], loss_fn=loop.loss_fn, resume=True, **OPTIONS)

    accelerator, first, watched = new()
    with watched:
        first.train(range(3))
        accelerator.save_state("saved")
        first.train(range(3, 5))
    accelerator, second, watched = new()
    with watched:
        accelerator.load_state("saved")
        second.train(range(3, STEPS))
    assert_series(stored("mine", LOSS), [*first.losses[:3], *second.losses])
    assert len(list_runs("runs")) == 1


def test_two_watches_of_an_accelerator_go_on_each_with_its_own_run():
    def new():
        accelerator = Accelerator(cpu=True)
        loops = [Loop(accelerator, *prepared(accelerator)) for _ in range(2)]
        given = zip(loops, ("generator", "critic"), strict=True)
        options = {"resume": True, **OPTIONS}
        watches = [
            watch(accelerator, loop.model, loop.optimizer, loss_fn=loop.loss_fn, **options | {"run": name})
            for loop, name in given
        ]
        return accelerator, loops, watches

    accelerator, (first, second), watches = new()
    first.train(range(3))
    second.train(range(2))
    accelerator.save_state("saved")
    for watched in watches:
        watched.close()
    accelerator, _, watches = new()
    accelerator.load_state("saved")
    assert [watched.inspector.state.step for watched in watches] == [3, 2]
    for watched in watches:
        watched.close()


def test_a_closed_watch_is_not_kept_by_its_accelerator():
    accelerator = Accelerator(cpu=True)
    model, optimizer, *_ = prepared(accelerator)
    closed = []
    for _ in range(3):
        with watch(accelerator, model, optimizer, visualizer="dummy") as watched:
            accelerator.save_state("state")
        closed.append(weakref.ref(watched))
    del watched
    gc.collect()
    assert [known() is None for known in closed] == [True, True, False]  # the last one until another comes


def test_a_state_that_was_saved_without_a_watch_loads_all_the_same():
    accelerator = Accelerator(cpu=True)
    parts = prepared(accelerator)
    accelerator.save_state("saved")
    with watch(accelerator, *parts[:2], visualizer="dummy"):
        accelerator.load_state("saved")


@pytest.mark.parametrize("saved", [b"nothing", {"run": "mine", "watch": {}}], ids=["broken", "of something else"])
def test_a_state_that_cannot_be_used_is_told_of(saved):
    accelerator = Accelerator(cpu=True)
    parts = prepared(accelerator)
    with watch(accelerator, *parts[:2], visualizer="dummy"):
        accelerator.save_state("saved")
        file = Path("saved", "monitorch.pt")
        file.write_bytes(saved) if isinstance(saved, bytes) else torch.save(saved, file)
        with pytest.warns(MonitorchWarning, match="cannot be resumed from|only the step of the checkpoint is used"):
            accelerator.load_state("saved")


def test_the_tracker_goes_by_its_name_too():
    accelerator = Accelerator(cpu=True, log_with="monitorch")
    accelerator.init_trackers("project", config={"width": 8}, init_kwargs={"monitorch": {"folder": "runs"}})
    parts = prepared(accelerator)
    loop = Loop(accelerator, *parts)
    watch(accelerator, *parts[:2], loss_fn=loop.loss_fn)
    loop.train()
    accelerator.end_training()
    (run,) = list_runs("runs")
    assert (run.name, run.status) == ("project", "finished")


def test_settings_may_come_after_the_watch():
    accelerator = Accelerator(cpu=True, log_with=MonitorchTracker("mine", "runs"))
    parts = prepared(accelerator)
    watch(accelerator, *parts[:2])
    accelerator.init_trackers("project", config={"width": 8})
    accelerator.end_training()
    with open_run(Path("runs", "mine")) as run:
        assert run.meta["config"] == {"width": 8}


def test_what_is_logged_before_there_is_a_watch_is_told_of_once():
    accelerator = Accelerator(cpu=True, log_with=MonitorchTracker())
    accelerator.init_trackers("project")
    with pytest.warns(MonitorchWarning, match="nothing is logged before"):
        accelerator.log({"loss": 1.0})
    accelerator.log({"loss": 1.0})
    accelerator.end_training()


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_a_plain_watch_before_prepare_records_the_same_numbers(with_optimizer):
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(3, 1)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    with monitorch.watch(model, optimizer if with_optimizer else None, loss_fn=loss_fn, **OPTIONS):
        model, optimizer = accelerator.prepare(model, optimizer)
        losses, norms = [], []
        for _ in range(STEPS):
            loss = loss_fn(model(torch.randn(4, 3)), torch.ones(4, 1))
            accelerator.backward(loss)
            losses.append(loss.item())
            norms.append(float(accelerator.clip_grad_norm_(model.parameters(), math.inf)))
            optimizer.step()
            optimizer.zero_grad()
    assert_series(stored("mine", LOSS), losses)
    assert_series(stored("mine", NORM), norms, 1e-4)


def test_without_the_package_the_error_holds_the_pip_line(monkeypatch):
    monkeypatch.delitem(sys.modules, "monitorch.integration.accelerate")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package 'accelerate': pip install 'monitorch\[accelerate\]'"
    ):
        importlib.import_module("monitorch.integration.accelerate")


def test_what_was_not_prepared_is_refused():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for bad in (optimizer, None, [], [optimizer]):
        with pytest.raises(OptionError, match=r"call watch\(\) after accelerator.prepare\(\)"):
            watch(accelerator, model, bad)
    with pytest.raises(OptionError, match=r"takes an accelerate\.Accelerator"):
        watch(model, model, optimizer)
    _, optimizer = accelerator.prepare(model, optimizer)
    with pytest.raises(TypeError, match="did you mean tick_every="):
        watch(accelerator, model, optimizer, tick_evry=1)


SCRIPT = """
import json, math, sys
import torch
from torch import nn
from accelerate import Accelerator
from monitorch.integration.accelerate import MonitorchTracker, watch

log_with = MonitorchTracker("both", "runs") if sys.argv[1] == "object" else "monitorch"
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=log_with)
accelerator.init_trackers("both", init_kwargs={"monitorch": {"folder": "runs"}})
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
data = [(x, x.sum().reshape(1)) for x in torch.randn(32, 3)]
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=2))
watch(accelerator, model, optimizer, loss_fn=loss_fn, every=1, tick_every=1)
norms, losses, parts = [], [], []
for x, y in loader:
    with accelerator.accumulate(model):
        loss = loss_fn(model(x), y)
        parts.append(accelerator.reduce(loss.detach(), reduction="mean").item())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            norms.append(float(accelerator.clip_grad_norm_(model.parameters(), math.inf)))
            losses.append(sum(parts) / len(parts))
            parts = []
        optimizer.step()
        optimizer.zero_grad()
    accelerator.log({"twice": 2.0 * len(losses)})
accelerator.end_training()
if accelerator.is_main_process:
    json.dump([norms, losses], open("numbers.json", "w"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["object", "name"])
def test_two_processes_show_the_numbers_of_both(tmp_path, way):
    Path("script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "script.py", way]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(launch, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "MonitorchWarning" not in done.stderr
    norms, losses = json.loads(Path("numbers.json").read_text())
    assert_series(stored("both", LOSS), losses)
    assert_series(stored("both", NORM), norms, 1e-4)
    (run,) = list_runs("runs")
    assert run.status == "finished"
