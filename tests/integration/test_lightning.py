"""The callback for Lightning: its numbers are those of the Trainer, and the Trainer does what it does without it."""

import json
import logging
import os
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import monitorch
from monitorch.errors import MonitorchWarning, OptionError, TrainingStopped
from monitorch.integration.lightning import MonitorchCallback
from monitorch.store import list_runs, open_run

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

EVERY_STEP = {"every": 1, "tick_every": 1}


def batches(samples, size=4, seed=1):
    made = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 4, generator=made)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), size)


class Regression(pl.LightningModule):
    """Learns a sum; notes itself what a run should hold."""

    def __init__(self, width=8, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))
        self.losses, self.norms, self.rates, self.validated = [], [], [], []

    def forward(self, inputs):
        return self.net(inputs)

    def loss(self, batch):
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses.append((self.trainer.global_step + 1, float(loss.detach())))
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("half", loss.detach() / 2, prog_bar=True)
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms = grad_norm(self, 2)
        self.norms.append(float(norms["grad_2.0_norm_total"]))
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.log("norm", norms["grad_2.0_norm_total"])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def on_validation_end(self):
        loss = self.trainer.callback_metrics.get("val_loss")
        if loss is not None and not self.trainer.sanity_checking:
            self.validated.append((self.trainer.global_step, float(loss)))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class CallsItself(Regression):
    """Calls the module itself, as many do, and returns a dictionary."""

    def loss(self, batch):
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets)

    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx), "more": 1}


class Manual(Regression):
    """Takes its steps itself."""

    def __init__(self, **options):
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss, optimizer = super().training_step(batch, batch_idx), self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()


class Rows(Logger):
    """Keeps what the Trainer logs, with its steps, which begin at 0."""

    name, version = "rows", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_hyperparams(self, *_, **__):
        pass

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))

    def line(self, name):
        return [(step + 1, metrics[name]) for step, metrics in self.rows if name in metrics]


def fit(model, folder, *callbacks, epochs=2, train=18, validate=10, seed=0, ckpt_path=None, **options):
    """Train it; the Trainer keeps what it logs."""
    options = {"enable_checkpointing": False, "log_every_n_steps": 1, "accelerator": "cpu", **options}
    trainer = pl.Trainer(
        max_epochs=epochs,
        logger=Rows(),
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    torch.manual_seed(seed)
    trainer.fit(model, batches(train), batches(validate, seed=2) if validate else None, ckpt_path=ckpt_path)
    return trainer


def line(run, statistic, layer="run", lens="run"):
    """Step and number of each tick."""
    found = run.series(lens, statistic, layer)
    return list(zip(found.axis.step.tolist(), found.values.tolist(), strict=True))


def logged(run, name):
    """What was logged under a name; of two ticks at a step one has it."""
    return line(run, f"Logged/{name} mean")


def per_step(numbers):
    """The mean of the numbers of each step."""
    steps = groupby(numbers, key=lambda one: one[0])
    return [(step, float(np.mean([number for _, number in own]))) for step, own in steps]


def same(found, expected, rtol=1e-5):
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [number for _, number in found] == pytest.approx([number for _, number in expected], rel=rtol)


def scaler(**options):
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", **options))


CASES = {
    "plain": (Regression, {}),
    "the module is called": (CallsItself, {}),
    "accumulation": (Regression, {"accumulate_grad_batches": 3}),
    "evaluation between micro-batches": (Regression, {"accumulate_grad_batches": 4, "val_check_interval": 2}),
    "clipping": (Regression, {"gradient_clip_val": 0.5}),
    "bfloat16": (Regression, {"precision": "bf16-mixed"}),
    "scaler": (Regression, {"plugins": lambda: scaler(init_scale=1024.0)}),
    "all together": (
        CallsItself,
        {"plugins": lambda: scaler(init_scale=256.0), "accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
    ),
    "manual": (Manual, {}),
}


def made(case):
    """The model of a case and the options of the Trainer."""
    kind, options = CASES[case]
    torch.manual_seed(0)
    return kind(), {name: value() if callable(value) else value for name, value in options.items()}


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.slow] * (name != "plain")) for name in CASES])
def test_numbers_are_those_of_the_trainer(case, tmp_path):
    model, options = made(case)
    callback = MonitorchCallback(folder=tmp_path / "runs", gradient="before_clip", **EVERY_STEP)
    trainer = fit(model, tmp_path, callback, **options)
    rows = trainer.logger
    with open_run(callback.watched.visualizer.path) as run:
        steps = range(1, trainer.global_step + 1)
        assert (run.status, run.last_step) == ("finished", trainer.global_step)
        same(line(run, "Gradient Norm/gradient_norm mean"), list(zip(steps, model.norms, strict=True)), 1e-4)
        same(line(run, "Loss/train_loss mean"), per_step(model.losses), 1e-4)
        same(sorted(set(logged(run, "learning rate"))), list(zip(steps, model.rates, strict=True)))
        for name in ("train_loss_step", "train_loss_epoch", "half", "norm"):
            same(logged(run, name), rows.line(name))
        assert [number for _, number in model.validated] == [number for _, number in rows.line("val_loss")]
        # between micro-batches a logger gets the number of the next step
        same(logged(run, "val_loss"), model.validated)
        same(line(run, "Loss/val_loss mean"), model.validated)
        assert run.meta["config"] == {"width": 8, "lr": 0.01}


def kept(trainer, model):
    """All that training leaves, bit by bit."""
    state = {**model.state_dict(), **{str(key): value for key, value in optimizer_state(trainer).items()}}
    return {name: value.numpy().tobytes() for name, value in state.items()}, torch.get_rng_state().tolist()


def optimizer_state(trainer):
    states = trainer.optimizers[0].state.values()
    return {(place, name): own for place, state in enumerate(states) for name, own in state.items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_to_the_last_bit(case, tmp_path):
    found = []
    for callbacks in ([], [MonitorchCallback(folder=tmp_path / "runs", lenses="all")]):
        model, options = made(case)
        trainer = fit(model, tmp_path, *callbacks, **options)
        found.append((kept(trainer, model), trainer.logger.rows))
    assert found[0] == found[1]


@pytest.mark.slow
def test_with_default_options_no_loss_is_lost(tmp_path):
    model = Regression(lr=1e-3)
    callback = MonitorchCallback(folder=tmp_path)
    trainer = fit(model, tmp_path, callback, epochs=3, train=480)
    with open_run(callback.watched.visualizer.path) as run:
        assert run.last_step == trainer.global_step == 360
        ((names, samples),) = run.samples()["loss"]
        own = samples.select(samples.places == names.index("training"))
        same(sorted(zip(own.steps.tolist(), own.values.tolist(), strict=True)), model.losses)


class LogsNothing(Regression):
    """Compiles as a whole: Lightning cannot log inside a graph."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def on_before_optimizer_step(self, optimizer):
        self.norms.append(float(torch.cat([own.grad.flatten() for own in self.parameters()]).norm()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append((self.trainer.global_step, float(outputs["loss"])))

    def validation_step(self, batch, batch_idx):
        return self.loss(batch)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_has_the_same_numbers_at_the_same_steps(whole, tmp_path):
    model, callback = LogsNothing() if whole else Regression(), MonitorchCallback(folder=tmp_path, **EVERY_STEP)
    if whole:
        compiled = torch.compile(model, backend="aot_eager")
    else:
        compiled, model.net = model, torch.compile(model.net, backend="aot_eager")
    trainer = fit(compiled, tmp_path, callback, train=16, validate=8, num_sanity_val_steps=0)
    with open_run(callback.watched.visualizer.path) as run:
        steps = range(1, 9)
        assert run.last_step == trainer.global_step == 8
        same(line(run, "Gradient Norm/gradient_norm mean"), list(zip(steps, model.norms, strict=True)), 1e-4)
        same(line(run, "Loss/train_loss mean"), model.losses)
        assert [step for step, _ in line(run, "Loss/val_loss mean")] == [4, 8]
        assert [step for step, _ in line(run, "Output Norm/mean", "net.0", "OutputNorm")] == [*steps]
        if not whole:
            same(logged(run, "half"), trainer.logger.line("half"))


class TakesTurns(pl.LightningModule):
    """Two networks with an optimizer each, stepped in the given order."""

    def __init__(self, order):
        super().__init__()
        self.automatic_optimization = False
        self.order, self.parts, self.noted = order, nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]), {0: [], 1: []}

    def training_step(self, batch, batch_idx):
        for place in self.order:
            part, optimizer = self.parts[place], self.optimizers()[place]
            loss = (part(batch[0]) - batch[1]).pow(2).mean()
            self.zero_grad()
            self.manual_backward(loss)
            norm = torch.cat([own.grad.flatten() for own in part.parameters()]).norm()
            self.noted[place].append((float(loss.detach()), float(norm)))
            optimizer.step()
            self.log(f"loss {place}", loss)

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.01 * (1 + place)) for place, part in enumerate(self.parts)]


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 1, 0)])
def test_two_optimizers_make_one_step_per_batch(order, tmp_path):
    model, callback = TakesTurns(order), MonitorchCallback(folder=tmp_path, **EVERY_STEP)
    trainer = fit(model, tmp_path, callback, validate=0)
    batches_trained = trainer.global_step // len(order)
    per_batch = {place: np.array(noted).reshape(batches_trained, -1, 2) for place, noted in model.noted.items()}
    with open_run(callback.watched.visualizer.path) as run:
        assert run.last_step == batches_trained == 10
        steps, losses = range(1, 11), np.concatenate([noted[:, :, 0] for noted in per_batch.values()], axis=1)
        same(line(run, "Loss/train_loss mean"), list(zip(steps, losses.mean(1), strict=True)))
        for place, noted in per_batch.items():
            same(logged(run, f"loss {place}"), list(zip(steps, noted[:, -1, 0], strict=True)))
            assert logged(run, f"learning rate (parts.{place})")[0][1] == pytest.approx(0.01 * (1 + place))
        if len(order) == 2:
            norms = np.hypot(*(noted[:, 0, 1] for noted in per_batch.values()))
            same(line(run, "Gradient Norm/gradient_norm mean"), list(zip(steps, norms, strict=True)), 1e-4)


@pytest.mark.slow
def test_the_sanity_check_is_not_recorded_and_evaluation_is(tmp_path):
    seen = []

    class Counts(Regression):
        def validation_step(self, batch, batch_idx):
            seen.append(self.trainer.sanity_checking)
            return super().validation_step(batch, batch_idx)

    callback = MonitorchCallback(folder=tmp_path, **EVERY_STEP)
    trainer = fit(Counts(), tmp_path, callback, num_sanity_val_steps=2)
    assert seen.count(True) == 2
    with open_run(callback.watched.visualizer.path) as run:
        assert run.frame_at(0) == {}
        assert [step for step, _ in line(run, "Loss/val_loss mean")] == [5, 10]
    trainer.validate(
        trainer.lightning_module, batches(10), verbose=False
    )  # the run is over, and a closed watch says nothing about it


class Returns(Regression):
    """Logs nothing in validation, but returns the loss."""

    def __init__(self):
        super().__init__()
        self.returned = []

    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        if not self.trainer.sanity_checking:
            self.returned.append(float(loss))
        return loss


class ReturnsMore(Returns):
    """The same in a dictionary."""

    def validation_step(self, batch, batch_idx):
        return {"loss": super().validation_step(batch, batch_idx), "more": None}


class CountsRight(Regression):
    """Logs nothing in validation, but returns how many samples were right."""

    def validation_step(self, batch, batch_idx):
        return (self.loss(batch) < 1).sum()


class LogsSeveral(Regression):
    """Several numbers of a validation have "loss" in their names."""

    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log_dict({"val/kl_loss": loss / 2, "val/loss": loss, "val/accuracy": loss * 0})


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Returns, ReturnsMore])
def test_without_a_logged_one_the_validation_loss_is_what_was_returned(kind, tmp_path):
    model, callback = kind(), MonitorchCallback(folder=tmp_path, **EVERY_STEP)
    fit(model, tmp_path, callback, epochs=1)
    with open_run(callback.watched.visualizer.path) as run:
        same(line(run, "Loss/val_loss mean"), [(5, np.mean(model.returned))])


@pytest.mark.slow
def test_a_count_that_validation_returns_is_no_loss(tmp_path):
    callback = MonitorchCallback(folder=tmp_path, **EVERY_STEP)
    trainer = fit(CountsRight(), tmp_path, callback, epochs=1)
    with open_run(callback.watched.visualizer.path) as run:
        assert not any("Loss/val_loss" in statistic.name for statistic in run.lenses["run"].statistics)
        assert (run.status, trainer.global_step) == ("finished", 5)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "taken"), [(None, "val/loss"), ("val/kl_loss", "val/kl_loss"), ("nonsense", None)])
def test_the_validation_loss_can_be_named(given, taken, tmp_path):
    callback = MonitorchCallback(folder=tmp_path, validation_loss=given, **EVERY_STEP)
    trainer = fit(LogsSeveral(), tmp_path, callback, epochs=1)
    with open_run(callback.watched.visualizer.path) as run:
        if taken is None:
            assert not any("Loss/val_loss" in statistic.name for statistic in run.lenses["run"].statistics)
        else:
            same(line(run, "Loss/val_loss mean"), trainer.logger.line(taken))


@pytest.mark.slow
def test_early_stop_ends_the_run_as_finished(tmp_path):
    callback = MonitorchCallback(folder=tmp_path, **EVERY_STEP)
    trainer = fit(Regression(), tmp_path, callback, EarlyStopping("val_loss", stopping_threshold=1e9), epochs=5)
    with open_run(callback.watched.visualizer.path) as run:
        assert (run.status, run.last_step) == ("finished", 5)
        assert trainer.global_step == 5


class Fails(Regression):
    """Ends in the middle of a step."""

    at, fail = 0, None

    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == self.at:
            self.fail()
        return super().training_step(batch, batch_idx)


def failing(at, fail):
    model = Fails()  # what its constructor gets would be in checkpoints
    model.at, model.fail = at, fail
    return model


def raise_error():
    raise ArithmeticError("on purpose")


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)  # the Trainer has switched it off


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("fail", "raised", "stored"),
    [(raise_error, ArithmeticError, "ArithmeticError: on purpose"), (interrupt, SystemExit, "KeyboardInterrupt")],
)
def test_what_ended_a_run_is_stored(fail, raised, stored, tmp_path):
    model, callback = failing(7, fail), MonitorchCallback(folder=tmp_path, every=1, tick_every=3)
    with pytest.raises(raised):
        fit(model, tmp_path, callback)
    with open_run(callback.watched.visualizer.path) as run:
        assert (run.status, run.error.line, run.last_step) == ("crashed", stored, 7)
        assert line(run, "Loss/train_loss mean")[-1] == (7, pytest.approx(model.losses[-1][1]))


class Overflows(Regression):
    """Has a loss that is no number from its fourth step on."""

    def loss(self, batch):
        return super().loss(batch) * (float("nan") if self.trainer.global_step == 3 else 1.0)


@pytest.mark.slow
def test_training_stops_where_that_was_asked_for(tmp_path):
    model, callback = Overflows(), MonitorchCallback(folder=tmp_path, stop_on="error", **EVERY_STEP)
    with pytest.raises(TrainingStopped, match="not finite"):
        fit(model, tmp_path, callback)
    with open_run(callback.watched.visualizer.path) as run:
        assert (run.status, run.error.type) == ("crashed", "TrainingStopped")
        # step 4 was at fault: however late its tick is shown, the next one waits for it, when step 6 begins
        assert run.last_step == model.losses[-1][0] in (4, 5, 6)
        assert run.meta["findings"][0]["symptom"] == "nonfinite"


def checkpoints(folder):
    return ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["ended", "crashed"])
def test_a_run_goes_on_from_a_checkpoint(fails, tmp_path):
    whole = Regression()
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    fit(whole, tmp_path, epochs=4)
    parts, options = (
        [failing(8, raise_error), failing(1000, raise_error)] if fails else [Regression(), Regression()],
        EVERY_STEP | {"folder": tmp_path / "runs"},
    )
    for place, model in enumerate(parts):
        model.load_state_dict(start)
        callbacks = [MonitorchCallback(run="mine", **options), checkpoints(tmp_path / "saved")]
        try:
            path = tmp_path / "saved" / "step=5.ckpt" if place else None
            ended = fit(
                model, tmp_path, *callbacks, epochs=4 if place else 2, ckpt_path=path, enable_checkpointing=True
            )
        except ArithmeticError:
            continue
    (found,) = list_runs(tmp_path / "runs")
    with open_run(found.path) as run:
        assert (run.name, run.status, run.last_step) == ("mine", "finished", 20)
        steps = [*range(1, 6), *range(6, 21)]
        losses = [*parts[0].losses[:5], *parts[1].losses]
        assert [step for step, _ in losses] == steps
        same(line(run, "Loss/train_loss mean"), losses)
        same(logged(run, "train_loss_step"), losses)
        norms = [*parts[0].norms[:5], *parts[1].norms]
        same(line(run, "Gradient Norm/gradient_norm mean"), list(zip(steps, norms, strict=True)), 1e-4)
        same(sorted(set(logged(run, "learning rate"))), list(zip(steps, whole.rates, strict=True)))
    assert ended.global_step == 20


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"resume": False}, {"lenses": ["standard", monitorch.lens.SpectralNorm()]}])
def test_a_checkpoint_that_does_not_fit_still_tells_the_step(asked, tmp_path):
    options = {"folder": tmp_path / "runs", **EVERY_STEP}
    before = [MonitorchCallback(run="mine", **options), checkpoints(tmp_path / "saved")]
    fit(Regression(), tmp_path, *before, epochs=1, enable_checkpointing=True)
    after, saved = MonitorchCallback(run="mine", **options, **asked), checkpoints(tmp_path / "saved")
    path = tmp_path / "saved" / "step=5.ckpt"
    if "lenses" in asked:
        with pytest.warns(MonitorchWarning, match="only the step of the checkpoint is used, which is 5"):
            fit(Regression(), tmp_path, after, saved, epochs=2, ckpt_path=path, enable_checkpointing=True)
    else:
        fit(Regression(), tmp_path, after, saved, epochs=2, ckpt_path=path, enable_checkpointing=True)
    with open_run(after.watched.visualizer.path) as run:
        assert run.name == ("mine" if "lenses" in asked else "mine_2")
        assert [step for step, _ in line(run, "Loss/train_loss mean")][-5:] == [6, 7, 8, 9, 10]


@pytest.mark.slow
def test_without_a_saved_state_steps_are_those_of_the_trainer(tmp_path):
    fit(Regression(), tmp_path, checkpoints(tmp_path), epochs=1, enable_checkpointing=True)
    callback = MonitorchCallback(folder=tmp_path / "runs", **EVERY_STEP)
    fit(
        Regression(),
        tmp_path,
        callback,
        checkpoints(tmp_path),
        epochs=2,
        ckpt_path=tmp_path / "step=5.ckpt",
        enable_checkpointing=True,
    )
    with open_run(callback.watched.visualizer.path) as run:
        assert [step for step, _ in line(run, "Loss/train_loss mean")] == [6, 7, 8, 9, 10]


@pytest.mark.slow
def test_a_second_fit_goes_on_with_the_run(tmp_path):
    model, callback = Regression(), MonitorchCallback(folder=tmp_path / "runs", **EVERY_STEP)
    trainer = fit(model, tmp_path, callback, epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, batches(18), batches(10, seed=2))
    (found,) = list_runs(tmp_path / "runs")
    with open_run(found.path) as run:
        same(line(run, "Loss/train_loss mean"), model.losses)
        assert run.last_step == 10


class Dead(Regression):
    """Its hidden units never fire."""

    def __init__(self):
        super().__init__(width=16)
        nn.init.constant_(self.net[0].bias, -20.0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), [(Dead, "dead_units"), (Regression, None)])
def test_a_fault_is_found(kind, first, tmp_path):
    callback = MonitorchCallback(folder=tmp_path, every=1)
    fit(kind(), tmp_path, callback, epochs=3, train=160)
    found = [one.symptom for one in callback.watched.findings if one.severity != "info"]
    assert found[:1] == ([] if first is None else [first])


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before fit", "configure_optimizers", "on_fit_start"])
def test_a_plain_watch_says_what_to_use_instead(where, tmp_path, capsys):
    class Watched(Regression):
        watched = None

        def configure_optimizers(self):
            found = super().configure_optimizers()
            self.start("configure_optimizers", found[0])
            return found

        def on_fit_start(self):
            self.start("on_fit_start", self.optimizers())

        def start(self, here, optimizer):
            if here == where:
                self.watched = monitorch.watch(self, optimizer, folder=tmp_path / "runs", **EVERY_STEP)

    def train(model):
        model.start("before fit", None)
        fit(model, tmp_path)

    model = Watched()
    with pytest.warns(MonitorchWarning, match="monitorch.integration.lightning, and do not call watch") as said:
        train(model)
    model.watched.close()
    own = [one for one in said if isinstance(one.message, MonitorchWarning)]
    assert [one.filename for one in own] == [__file__]
    assert "no loss" not in capsys.readouterr().out


def test_models_that_cannot_be_watched_are_trained_all_the_same(tmp_path):
    model, callback = Regression(), MonitorchCallback(folder=tmp_path / "runs")
    next(model.parameters()).ds_id = 0  # as DeepSpeed marks them
    with pytest.warns(MonitorchWarning, match="the model is trained, but not watched: .*DeepSpeed"):
        trainer = fit(model, tmp_path, callback, epochs=1)
    assert trainer.global_step == 5
    assert callback.watched is None


@pytest.mark.slow
def test_switched_off_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    fit(Regression(), tmp_path, MonitorchCallback(folder=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_numbers_can_be_shown_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = MonitorchCallback(visualizer="dummy", every=1)
    fit(Regression(), tmp_path, callback)
    assert callback.watched.run is callback.state_dict()["run"] is None
    assert "train_loss" in {record.statistic.split()[0] for record in callback.watched.records()}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"model": nn.Linear(1, 1)}, OptionError, "gets model from the Trainer"),
        ({"optimizer": None}, OptionError, "gets optimizer from the Trainer"),
        ({"grad_scaler": None}, OptionError, "gets grad_scaler from the Trainer"),
        ({"evry": 2}, TypeError, "did you mean every="),
    ],
)
def test_options_that_are_wrong(options, error, text):
    with pytest.raises(error, match=text):
        MonitorchCallback(**options)


@pytest.mark.slow
def test_a_wrong_value_is_told_before_the_first_step(tmp_path):
    model = Regression()
    with pytest.raises(OptionError, match="lenses='nonsense' is unknown"):
        fit(model, tmp_path, MonitorchCallback(lenses="nonsense"))
    assert not model.losses


def run_program(*arguments, cwd, **environment):
    """Run Python with the tests importable; returns what it prints."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **environment}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_processes_make_one_run(tmp_path):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    run_program(*launch, Path(__file__).parent / "lightning_rank.py", tmp_path, cwd=tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    (found,) = list_runs(tmp_path / "runs")
    with open_run(found.path) as run:
        assert (run.status, run.last_step) == ("finished", ranks[0]["steps"])
        steps = range(1, run.last_step + 1)
        assert ranks[0]["norms"] == ranks[1]["norms"]  # gradients are averaged
        same(line(run, "Gradient Norm/gradient_norm mean"), list(zip(steps, ranks[0]["norms"], strict=True)), 1e-4)
        same(line(run, "Loss/train_loss mean"), per_step(sorted(ranks[0]["losses"] + ranks[1]["losses"])))
        for name in ("mean", "norm", "val_loss"):
            same(logged(run, name), ranks[0][name])
        same(line(run, "Loss/val_loss mean"), ranks[0]["val_loss"])


OTHER_PACKAGE = """
import sys
import pytorch_lightning
from monitorch.integration.lightning import MonitorchCallback
assert issubclass(MonitorchCallback, pytorch_lightning.Callback)
assert "lightning.pytorch" not in sys.modules
import torch
from torch import nn
class Model(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
callback, options = MonitorchCallback(folder="runs"), {"logger": False, "enable_checkpointing": False}
trainer = pytorch_lightning.Trainer(max_epochs=1, callbacks=[callback], accelerator="cpu", **options)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 2), 2))
print(callback.watched.inspector.visualizer.name, trainer.global_step)
"""


@pytest.mark.slow
def test_the_other_package_of_lightning_works_as_well(tmp_path):
    printed = run_program("-W", "ignore", "-c", OTHER_PACKAGE, cwd=tmp_path)
    (found,) = list_runs(tmp_path / "runs")
    assert printed.splitlines()[-1] == f"{found.name} 4"
    with open_run(found.path) as run:
        assert run.last_step == 4


MISSING = """
import sys
sys.modules["lightning"] = sys.modules["lightning.pytorch"] = sys.modules["pytorch_lightning"] = None
try:
    import monitorch.integration.lightning
except ImportError as error:
    print(error)
"""


def test_without_the_package_the_error_holds_the_pip_line(tmp_path):
    printed = run_program("-c", MISSING, cwd=tmp_path)
    assert printed == "MonitorchCallback needs the package 'lightning': pip install 'monitorch[lightning]'\n"
