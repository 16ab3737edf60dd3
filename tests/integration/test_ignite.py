"""The handler for Ignite: its numbers are those of the engines, and these do what they do without it."""

import copy
import json
import logging
import subprocess
import sys
from itertools import groupby

import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, MeanSquaredError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from monitorch.errors import MonitorchWarning, OptionError
from monitorch.integration.ignite import MonitorchHandler
from monitorch.store import list_runs, open_run

logging.getLogger("ignite.engine.engine.Engine").setLevel(logging.CRITICAL)

EVERY_STEP = {"every": 1, "tick_every": 1}


def batches(samples=24, size=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), size)


class Training:
    """A model, what trains it in an engine, and what the engine itself knows of each step."""

    def __init__(self, micro=1, scaler=None, clip=1e9):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.micro, self.scaler, self.clip = micro, scaler, clip
        self.steps, self.losses, self.norms = 0, [], []
        self.trainer = Engine(self.train_batch)
        loss = nn.functional.mse_loss
        self.evaluators = {
            name: create_supervised_evaluator(self.model, {"loss": Loss(loss), "mse": MeanSquaredError()})
            for name in ("val", "train")
        }
        self.evaluations = []
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.evaluate)

    def train_batch(self, engine, batch):
        self.model.train()
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        scaled = loss / self.micro if self.scaler is None else self.scaler.scale(loss / self.micro)
        scaled.backward()
        self.losses.append((self.steps + 1, loss.item()))
        if engine.state.iteration % self.micro == 0:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            self.norms.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip).item())
            step = self.optimizer.step if self.scaler is None else lambda: self.scaler.step(self.optimizer)
            step()
            if self.scaler is not None:
                self.scaler.update()
            self.optimizer.zero_grad()
            self.steps += 1
            self.scheduler.step()
        return loss.item()

    def evaluate(self):
        for number, (name, evaluator) in enumerate(self.evaluators.items()):
            found = evaluator.run(batches(8, seed=number + 2)).metrics
            self.evaluations.append((self.steps, name, found["loss"], found["mse"]))

    def handler(self, folder, **options):
        scaler = {} if self.scaler is None else {"grad_scaler": self.scaler}
        made = MonitorchHandler(self.model, self.optimizer, folder=folder, **{**EVERY_STEP, **scaler, **options})
        made.attach(self.trainer, self.evaluators["val"], train=self.evaluators["train"])
        return made

    def run(self, epochs=2, samples=24, seed=3):
        torch.manual_seed(seed)
        return self.trainer.run(batches(samples), max_epochs=epochs)

    def weights(self):
        return [own.detach().numpy().tobytes() for own in self.model.parameters()], torch.get_rng_state().tolist()


def line(run, statistic):
    """Step and number of each tick that has it."""
    found = run.series("run", statistic, "run")
    return list(zip(found.axis.step.tolist(), found.values.tolist(), strict=True))


def per_step(numbers):
    """The mean of the numbers of each step."""
    steps = groupby(numbers, key=lambda one: one[0])
    return [(step, float(np.mean([number for _, number in own]))) for step, own in steps]


def same(found, expected, rel=1e-5):
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [number for _, number in found] == pytest.approx([number for _, number in expected], rel=rel)


def evaluated(training, name, place):
    return [(one[0], one[place]) for one in training.evaluations if one[1] == name]


CASES = {
    "plain": {},
    "clipping": {"clip": 0.5},
    "accumulation": {"micro": 3},
    "a step over two epochs": {"micro": 4},
    "scaler": {"scaler": lambda: torch.amp.GradScaler("cpu", init_scale=1024.0)},
    "all together": {"scaler": lambda: torch.amp.GradScaler("cpu", init_scale=64.0), "micro": 2, "clip": 0.5},
}


def made(case):
    return Training(**{name: value() if callable(value) else value for name, value in CASES[case].items()})


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.slow] * (name != "plain")) for name in CASES])
def test_numbers_are_those_of_the_engines(case, tmp_path):
    training = made(case)
    handler = training.handler(tmp_path, gradient="before_clip")
    training.run()
    with open_run(handler.watched.visualizer.path) as run:
        assert (run.status, run.last_step) == ("finished", training.steps)
        same(line(run, "Loss/train_loss mean"), per_step(training.losses))
        same(line(run, "Gradient Norm/gradient_norm mean"), list(enumerate(training.norms, 1)), rel=1e-4)
        rates = [(step, 0.01 * 0.9 ** (step - 1)) for step in range(1, training.steps + 1)]
        same(line(run, "Logged/learning rate mean"), rates)
        same(line(run, "Loss/val_loss mean"), evaluated(training, "val", 2))
        for name in ("val", "train"):
            same(line(run, f"Logged/{name}.loss mean"), evaluated(training, name, 2))
            same(line(run, f"Logged/{name}.mse mean"), evaluated(training, name, 3))


@pytest.mark.parametrize("case", [pytest.param("plain"), pytest.param("all together", marks=pytest.mark.slow)])
def test_training_is_the_same_with_and_without(case, tmp_path):
    ends = []
    for is_watched in (False, True):
        training = made(case)
        if is_watched:
            training.handler(tmp_path)
        training.run()
        ends.append((training.weights(), training.losses))
    assert ends[0] == ends[1]


def test_gradients_are_read_as_the_optimizer_uses_them(tmp_path):
    training = Training(clip=4.0)
    handler = training.handler(tmp_path)
    training.run(1)
    used = [(step, min(norm, 4.0)) for step, norm in enumerate(training.norms, 1)]
    assert len({norm for _, norm in used}) > 1
    with open_run(handler.watched.visualizer.path) as run:
        same(line(run, "Gradient Norm/gradient_norm mean"), used, rel=1e-4)


def test_a_trainer_that_goes_on_from_a_checkpoint_goes_on_with_the_run(tmp_path):
    first = Training()
    handler = first.handler(tmp_path / "runs", run="one")
    kept = {"trainer": first.trainer, "model": first.model, "optimizer": first.optimizer, "monitorch": handler}
    saver = DiskSaver(str(tmp_path / "checkpoints"), create_dir=True, require_empty=False)
    first.trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(kept, saver, n_saved=1))
    first.run(1)
    (file,) = (tmp_path / "checkpoints").iterdir()
    second = Training()
    second.steps = 6
    again = second.handler(tmp_path / "runs", run="other")
    kept = {"trainer": second.trainer, "model": second.model, "optimizer": second.optimizer, "monitorch": again}
    Checkpoint.load_objects(kept, torch.load(file))
    second.run(2)
    (known,) = list_runs(tmp_path / "runs")
    with open_run(tmp_path / "runs" / known.name) as run:
        assert (run.name, run.status, run.last_step) == ("one", "finished", 12)
        same(line(run, "Loss/train_loss mean"), per_step([*first.losses, *second.losses]))
        same(line(run, "Loss/val_loss mean"), [*evaluated(first, "val", 2), *evaluated(second, "val", 2)])


def test_a_trainer_that_runs_again_goes_on_or_begins_a_new_run(tmp_path):
    training = Training()
    training.handler(tmp_path)
    training.run(1)
    training.run(2)
    (known,) = list_runs(tmp_path)
    with open_run(tmp_path / known.name) as run:
        assert run.last_step == 12
    training.trainer.state.max_epochs = None  # it begins again
    training.run(1)
    assert sorted(one.last_step for one in list_runs(tmp_path)) == [6, 12]


@pytest.mark.parametrize("is_new", [False, True])
def test_what_waits_for_its_tick_when_the_position_is_saved_is_shown_once(is_new, tmp_path):
    first = Training()
    handler, kept = first.handler(tmp_path, run="one", tick_every=4), []
    first.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: kept.append(copy.deepcopy(handler.state_dict())))
    first.run(1)
    second = first
    if is_new:
        second = Training()
        second.steps = 6
        second.trainer.load_state_dict(first.trainer.state_dict())
        second.handler(tmp_path, run="other", tick_every=4).load_state_dict(kept[0])
    second.run(2)
    evaluations = dict.fromkeys([*evaluated(first, "val", 2), *evaluated(second, "val", 2)])
    with open_run(tmp_path / "one") as run:
        assert [step for step, _ in line(run, "Loss/train_loss mean")] == [4, 6, 10, 12]
        same(line(run, "Loss/val_loss mean"), list(evaluations))


def test_without_a_saved_position_steps_are_counted_on_from_the_iterations(tmp_path):
    training = Training()
    handler = training.handler(tmp_path)
    training.trainer.load_state_dict({"epoch_length": 6, "max_epochs": 3, "iteration": 12})
    training.trainer.run(batches())
    with open_run(handler.watched.visualizer.path) as run:
        assert run.last_step == 18


def test_models_that_cannot_be_watched_are_trained_all_the_same(tmp_path):
    training = Training()
    handler = training.handler(tmp_path)
    training.model[0].weight.ds_id = 0  # as DeepSpeed marks them
    with pytest.warns(MonitorchWarning, match="the model is trained, but not watched: .*DeepSpeed"):
        training.run()
    assert (handler.watched, training.steps) == (None, 12)


class Broken(Exception):
    pass


def fails_at(training, iteration, error):
    @training.trainer.on(Events.ITERATION_STARTED(once=iteration))
    def fail():
        raise error


@pytest.mark.parametrize("error", [Broken("no more data"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_error_is_stored_and_raised_as_without_the_handler(error, tmp_path):
    training = Training()
    handler = training.handler(tmp_path)
    fails_at(training, 5, error)
    with pytest.raises(type(error)):
        training.run()
    with open_run(handler.watched.visualizer.path) as run:
        assert (run.status, run.error.type, run.last_step) == ("crashed", type(error).__name__, 4)
    assert not training.model[0]._forward_hooks


@pytest.mark.parametrize("comes_first", [True, False])
def test_other_handlers_of_errors_decide_whether_to_raise_them(comes_first, tmp_path):
    training, seen = Training(), []

    def swallow(engine, error):
        seen.append(type(error))
        engine.terminate()

    if comes_first:
        training.trainer.add_event_handler(Events.EXCEPTION_RAISED, swallow)
    handler = training.handler(tmp_path)
    if not comes_first:
        training.trainer.add_event_handler(Events.EXCEPTION_RAISED, swallow)
    fails_at(training, 5, Broken())
    training.run()
    assert seen == [Broken]
    with open_run(handler.watched.visualizer.path) as run:
        assert (run.status, run.error.type, run.last_step) == ("crashed", "Broken", 4)


@pytest.mark.parametrize("skips", [False, True])
def test_training_that_is_ended_early_is_finished(skips, tmp_path):
    training = Training()
    handler = training.handler(tmp_path)
    if skips:
        stop = training.trainer.terminate

        @training.trainer.on(Events.ITERATION_COMPLETED(once=8))
        def end():
            stop(skip_completed=True)

    else:
        rule = EarlyStopping(1, lambda engine: -training.trainer.state.epoch, training.trainer)
        training.evaluators["val"].add_event_handler(Events.COMPLETED, rule)
    training.run(9)
    assert training.steps in (8, 12)
    with open_run(handler.watched.visualizer.path) as run:
        assert (run.status, run.last_step) == ("finished", training.steps)


def test_an_evaluation_at_the_very_end_is_recorded_and_one_after_it_is_not(tmp_path):
    training = Training()
    handler = training.handler(tmp_path)
    training.evaluations.clear()
    training.trainer.add_event_handler(Events.COMPLETED, training.evaluate)  # after ours was attached
    training.run(1, samples=20)
    training.evaluators["val"].run(batches(8))
    with open_run(handler.watched.visualizer.path) as run:
        assert run.last_step == 5
        ((step, loss),) = line(run, "Loss/val_loss mean")
    assert (step, loss) == (5, pytest.approx(np.mean([one[2] for one in training.evaluations if one[1] == "val"])))


@pytest.mark.parametrize(
    ("output", "transform", "is_found"),
    [
        (lambda loss: {"loss": loss.detach(), "n": 4}, None, True),
        (lambda loss: (loss.item(), 4), lambda output: output[0], True),
        (lambda loss: (loss.item(), 4), None, False),
        (lambda loss: "done", None, False),
    ],
)
def test_the_loss_is_found_in_the_output(output, transform, is_found, tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_supervised_trainer(
        model, optimizer, nn.functional.mse_loss, output_transform=lambda x, y, y_pred, loss: output(loss)
    )
    options = {"output_transform": transform, **EVERY_STEP}
    MonitorchHandler(model, optimizer, run="one", folder=tmp_path, **options).attach(trainer)
    trainer.run(batches(8))
    with open_run(tmp_path / "one") as run:
        assert run.last_step == 2
        assert (len(line(run, "Loss/train_loss mean")) if is_found else 2) == 2
        assert any(name.startswith("Loss/") for name in (s.name for s in run.lenses["run"].statistics)) == is_found


def test_a_module_that_computes_the_loss_comes_before_the_output(tmp_path):
    model, loss_fn, losses = nn.Linear(4, 1), nn.MSELoss(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_batch(_, batch):
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return -1.0

    trainer = Engine(train_batch)
    MonitorchHandler(model, optimizer, loss_fn=loss_fn, run="one", folder=tmp_path, **EVERY_STEP).attach(trainer)
    trainer.run(batches(12))
    with open_run(tmp_path / "one") as run:
        same(line(run, "Loss/train_loss mean"), list(enumerate(losses, 1)))


def test_an_output_that_cannot_be_read_is_told_once_and_training_goes_on(tmp_path):
    training = Training()
    training.handler(tmp_path, output_transform=lambda output: output["loss"])
    with pytest.warns(MonitorchWarning, match="finding the loss in the output of the trainer failed") as told:
        training.run(1)
    assert (len(told), training.steps) == (1, 6)


def test_a_position_that_cannot_be_read_ends_neither_training_nor_the_run(tmp_path):
    training = Training()
    handler = training.handler(tmp_path)

    @training.trainer.on(Events.ITERATION_COMPLETED(once=5))
    def break_it():
        handler.watched.state_dict = dict.fromkeys  # needs an argument

    with pytest.warns(MonitorchWarning, match="saving the position of the run failed: TypeError"):
        training.run(1)
    with open_run(handler.watched.visualizer.path) as run:
        assert (run.status, training.steps, handler.state_dict()) == ("finished", 6, {})


def test_metrics_that_are_no_numbers_are_left_out(tmp_path):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.randn(8, 4), torch.arange(8) % 2), 4)
    trainer = create_supervised_trainer(model, optimizer, nn.functional.cross_entropy)
    evaluator = create_supervised_evaluator(
        model,
        {"acc": Accuracy(), "table": ConfusionMatrix(2), "nll": Loss(nn.functional.cross_entropy)},
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(data))
    handler = MonitorchHandler(
        model, optimizer, validation_loss="nll", run="one", folder=tmp_path, **EVERY_STEP
    ).attach(trainer, test=evaluator)
    trainer.run(data)
    with open_run(tmp_path / "one") as run:
        names = {s.name for s in run.lenses["run"].statistics}
        assert {name for name in names if "test" in name and name.endswith("mean")} == {
            "Logged/test.acc mean",
            "Logged/test.nll mean",
        }
        same(line(run, "Loss/val_loss mean"), [(2, evaluator.state.metrics["nll"])])
    assert repr(handler) == f"MonitorchHandler(Linear, run='one', folder={tmp_path!r}, every=1, tick_every=1)"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda model: MonitorchHandler(model, None, evry=2), TypeError, r"no option 'evry'; did you mean every=\?"),
        (lambda model: MonitorchHandler(model, None, output_transform=3), OptionError, "takes a function"),
        (lambda model: MonitorchHandler(model, None).attach(model), OptionError, "takes an ignite Engine, not Linear"),
        (
            lambda model: MonitorchHandler(model, None).attach(Engine(print), 3),
            OptionError,
            "takes ignite Engines, but val is 3",
        ),
        (
            lambda model: MonitorchHandler(model, None).attach(Engine(print), Engine(print), val=Engine(print)),
            OptionError,
            "called 'val' as well",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once(make, error, text):
    with pytest.raises(error, match=text):
        make(nn.Linear(1, 1))


RANK = """
import json, sys, torch, torch.distributed as dist
from ignite.engine import Engine
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from monitorch.integration.ignite import MonitorchHandler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer, known = torch.optim.SGD(model.parameters(), lr=0.1), []

def train_batch(engine, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
    optimizer.step()
    both = loss.detach().clone()
    dist.all_reduce(both)
    known.append((both.item() / 2, norm))
    return loss.item()

trainer = Engine(train_batch)
MonitorchHandler(model, optimizer, run="one", folder=sys.argv[1], every=1, tick_every=1).attach(trainer)
trainer.run([torch.randn(4, 4, generator=torch.Generator().manual_seed(2 * step + rank)) for step in range(4)])
if rank == 0:
    print(json.dumps(known))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_two_processes_store_the_numbers_of_both(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    known = json.loads(next(text for text in ended.stdout.splitlines() if text.startswith("[[")))
    with open_run(tmp_path / "one") as run:
        assert (run.status, run.last_step) == ("finished", 4)
        same(line(run, "Loss/train_loss mean"), [(step, loss) for step, (loss, _) in enumerate(known, 1)])
        norms = [(step, norm) for step, (_, norm) in enumerate(known, 1)]
        same(line(run, "Gradient Norm/gradient_norm mean"), norms, rel=1e-4)
