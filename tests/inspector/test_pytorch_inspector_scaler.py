"""With a GradScaler given, gradients are unscaled and skipped steps are shown."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

import monitorch
from monitorch import PyTorchInspector
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.lens import (
    LossMetrics,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterUpdateGeometry,
)

OPTIMIZERS = {
    "plain": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "fused": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, fused=True),
}


@pytest.fixture
def scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS)
def optimizer(request, model):
    return request.param(model)


def train(model, optimizer, scaler, steps=1, *, overflows=()):
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.linspace(-1, 1, 12).reshape(4, 3) * (step + 1)).square().mean()
        scaler.scale(loss).backward()
        if step in overflows:
            model[0].weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()


def inspect(model, optimizer, scaler, *lenses, **options):
    options = {"module": model, "visualizer": "dummy", "on_error": "raise", **options}
    return PyTorchInspector(lenses, optimizer=optimizer, grad_scaler=scaler, **options)


def read(inspector, statistic="mean"):
    inspector.tick_epoch()
    return {(r.tag, r.layer): r.value for r in inspector.records() if r.statistic.endswith(statistic)}


def logged(inspector, name):
    inspector.tick_epoch()
    return [record.value for record in inspector.records() if record.statistic == f"{name} mean"]


def test_skipped_steps_are_steps_and_are_counted_anew_in_each_tick(model, optimizer, scaler):
    inspector = inspect(model, optimizer, scaler)
    train(model, optimizer, scaler, steps=5, overflows=(1, 2))
    assert logged(inspector, "skipped steps") == [2]
    assert inspector.state.step == 5
    train(model, optimizer, scaler)
    assert logged(inspector, "skipped steps") == [0]


def test_a_skipped_step_has_no_gradient_and_no_update(model, optimizer, scaler):
    inspector = inspect(model, optimizer, scaler, ParameterGradientGeometry(), ParameterUpdateGeometry(optimizer))
    train(model, optimizer, scaler, overflows=(0,))
    assert {tag for tag, _ in read(inspector)} == {"Logged"}
    assert not [record for record in inspector.records() if record.nonfinite]


def test_one_of_two_optimizers_may_skip(model, scaler):
    first, second = (torch.optim.SGD(model[place].parameters(), lr=0.1) for place in (0, 2))
    inspector = inspect(model, [first, second], scaler, ParameterGradientGeometry(parameters="weight"))
    scaler.scale(model(torch.ones(4, 3)).sum()).backward()
    model[0].weight.grad[0, 0] = torch.nan
    for optimizer in (first, second):
        scaler.step(optimizer)
    scaler.update()
    shown = read(inspector)
    assert ("Weight Gradient Norm", "0") not in shown
    assert shown["Weight Gradient Norm", "2"] == pytest.approx(np.linalg.norm(model[2].weight.grad.numpy()))


def test_gradients_that_are_zero_are_told_by_their_true_size(model, optimizer, scaler):
    """Scaled ones would be larger than what counts as zero."""
    inspector = inspect(model, optimizer, scaler, ParameterGradientActivation(warning_plot=False, eps=1e-8))
    optimizer.zero_grad()
    scaler.scale(1e-9 * model(torch.ones(4, 3)).sum()).backward()
    scaler.step(optimizer)
    assert set(read(inspector, "activation_rate").values()) == {0}


def test_a_watch_ticks_after_skipped_steps_too(model, optimizer, scaler):
    with monitorch.watch(model, optimizer, grad_scaler=scaler, tick_every=2, visualizer="dummy") as watched:
        train(model, optimizer, scaler, steps=4, overflows=(0, 1, 2, 3))
        assert "ticks=2" in repr(watched)


@pytest.mark.parametrize("leave", ["detach", "drop"])
def test_the_scaler_is_left_as_it_was(model, optimizer, scaler, leave):
    inspector = inspect(model, optimizer, scaler)
    assert "step" in vars(scaler)
    if leave == "detach":
        inspector.detach()
    del inspector
    gc.collect()
    assert "step" not in vars(scaler)


def test_a_scaler_that_is_switched_off_changes_nothing(model, optimizer):
    off = torch.amp.GradScaler("cpu", enabled=False)
    inspector = inspect(model, optimizer, off, ParameterGradientGeometry(parameters="weight"))
    train(model, optimizer, off)
    expected = np.linalg.norm(model[0].weight.grad.double().numpy())
    assert read(inspector)["Weight Gradient Norm", "0"] == pytest.approx(expected)


def test_it_is_told_when_each_gradient_is_taken(model):
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    lens = ParameterGradientGeometry(parameters="weight")
    options = {"module": model, "optimizer": optimizer, "visualizer": "dummy", "module_name_prefix": "/"}
    inspector = PyTorchInspector([lens], gradient="before_clip", **options)
    assert inspector.gradient_moments == {"0/weight": "before_clip", "2/weight": "at_backward"}
    optimizer.add_param_group({"params": list(model[2].parameters())})
    model(torch.ones(1, 3))
    assert inspector.gradient_moments == {"0/weight": "before_clip", "2/weight": "before_clip"}
    inspector.detach()
    assert inspector.gradient_moments == {}


SGD = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        (
            {"grad_scaler": torch.amp.GradScaler("cpu")},
            "grad_scaler needs the optimizer that it steps: also pass optimizer=",
        ),
        ({"grad_scaler": 1024.0, "optimizer": SGD}, r"takes a torch.amp.GradScaler, not 1024.0"),
        ({"gradient": "after_clip", "optimizer": SGD}, r"choose from 'at_step', 'before_clip'"),
        ({"gradient": "before_clip"}, "needs an optimizer: also pass optimizer="),
    ],
    ids=["no optimizer", "no scaler", "unknown moment", "moment of no optimizer"],
)
def test_what_makes_no_sense_is_refused_with_the_cure(options, cure):
    with pytest.raises(OptionError, match=cure):
        PyTorchInspector([], visualizer="dummy", **options)


class Scaled:
    """A model that a scaler trains, of which its inspector was not told."""

    def __init__(self, model, *lenses, scale=2.0**12, **options):
        self.model, self.loss_fn = model, nn.MSELoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1)
        lenses = [LossMetrics(loss_fn=self.loss_fn), *lenses]
        options = {"visualizer": "dummy", "optimizer": self.optimizer, **options}
        self.inspector = PyTorchInspector(lenses, module=model, **options)

    def train(self, parts=1):
        self.optimizer.zero_grad()
        for _ in range(parts):
            loss = self.loss_fn(self.model(torch.ones(4, 3)), torch.zeros(4, 1))
            self.scaler.scale(loss / parts).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_a_scaler_that_nobody_told_of_is_noticed_once(model, parts):
    training = Scaled(model, OutputGradientGeometry(), optimizer=None)
    training.train(parts)
    with pytest.warns(MonitorchWarning, match=r"the gradient of the loss is .*, not 1, .*grad_scaler="):
        training.inspector.tick_epoch()
    training.train(parts)
    training.inspector.tick_epoch()  # a further warning would be an error


@pytest.mark.parametrize("sees_loss", [True, False])
def test_a_scaler_that_nobody_told_of_is_noticed_by_its_steps(model, sees_loss):
    training = Scaled(model, OutputGradientGeometry())
    if not sees_loss:
        training.loss_fn = nn.functional.mse_loss
    with pytest.warns(MonitorchWarning, match=r"multiplies the loss by 4096, .*grad_scaler="):
        training.train()
    training.inspector.tick_epoch()  # a further warning would be an error
    training.train()
    training.inspector.tick_epoch()


def test_the_loss_field_of_an_output_tells_of_a_scaler_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            return {"loss": self.layer(x).square().mean()}

    model, scaler = Model(), torch.amp.GradScaler("cpu")
    lenses = [LossMetrics(), ParameterGradientGeometry()]
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy")
    scaler.scale(model(torch.ones(2, 3))["loss"]).backward()
    with pytest.warns(MonitorchWarning, match="grad_scaler="):
        inspector.tick_epoch()


@pytest.mark.parametrize(
    ("lens", "options"),
    [
        (OutputGradientGeometry, {"scale": 1}),
        (ParameterGradientGeometry, {}),  # taken at the step, when it is unscaled
        (OutputNorm, {}),
    ],
)
def test_nothing_is_told_where_no_gradient_is_scaled(lens, options, model):
    training = Scaled(model, lens(), **options)
    training.train()
    training.inspector.tick_epoch()


def test_nothing_is_told_where_the_scaler_is_known(model):
    training = Scaled(model, OutputGradientGeometry())
    training.inspector.detach()
    lenses = [LossMetrics(loss_fn=training.loss_fn), OutputGradientGeometry()]
    known = inspect(model, training.optimizer, training.scaler, *lenses)
    training.train()
    known.tick_epoch()


def test_gradients_before_clipping_are_scaled_too(model):
    training = Scaled(model, ParameterGradientGeometry(), gradient="before_clip")
    with pytest.warns(MonitorchWarning, match="grad_scaler="):
        training.train()
    training.inspector.tick_epoch()


def test_after_another_model_was_attached_it_is_looked_for_again(model):
    training = Scaled(model, OutputGradientGeometry(), scale=1)
    training.train()
    training.inspector.tick_epoch()
    training.inspector.attach(model)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with pytest.warns(MonitorchWarning, match="grad_scaler="):
        training.train()
    training.inspector.tick_epoch()
