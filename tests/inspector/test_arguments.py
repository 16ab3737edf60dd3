"""What trains a model: given alone, in lists, in wrappers and in containers."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

import monitorch
from monitorch import PyTorchInspector
from monitorch.errors import OptionError, UnsupportedModelError
from monitorch.inspector.arguments import trainer
from monitorch.lens import OutputGradientGeometry, ParameterGradientGeometry
from tests.engine.optimizer_wrappers import Accelerated, Lightning, of_package, zero_optimizer


class Container(Optimizer):
    """An optimizer that holds several, one for each part of a model."""

    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)
        super().__init__([p for one in optimizers for group in one.param_groups for p in group["params"]], {"lr": 0.0})

    def __iter__(self):
        return iter(self.optimizers)

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()


class Muon:
    """No optimizer of torch."""

    def step(self):
        pass


class Uninitialised(SGD):
    def __init__(self, parameters):
        pass


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


@pytest.fixture
def first():
    return SGD(nn.Linear(1, 1).parameters(), lr=0.1)


@pytest.fixture
def second():
    return SGD(nn.Linear(1, 1).parameters(), lr=0.2)


@pytest.mark.parametrize(
    "given",
    [
        lambda first, second: [first, second],
        lambda first, second: (one for one in (first, second)),
        lambda first, second: {"generator": first, "critic": second},
        lambda first, second: [Accelerated(first), Lightning(second)],
        lambda first, second: Container(second, first),  # a step is over with the last one
        lambda first, second: Accelerated(Container(second, first)),
        lambda first, second: Container(Accelerated(second), Lightning(first)),
    ],
)
def test_several_optimizers_are_found_in_lists_wrappers_and_containers(given, first, second):
    assert trainer(given(first, second), None, "at_step").optimizers == (first, second)


def test_a_given_scaler_comes_before_that_of_a_wrapper(first):
    own, wrapped = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
    assert trainer(Accelerated(first, wrapped), None, "at_step").grad_scaler is wrapped
    assert trainer(Accelerated(first, wrapped), own, "at_step").grad_scaler is own
    assert trainer(Accelerated(first, "no scaler"), None, "at_step").grad_scaler is None


def test_the_scaler_around_a_container_is_that_of_all_its_parts(first, second):
    outer, inner = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
    assert trainer(Accelerated(Container(second, first), outer), None, "at_step").grad_scaler is outer
    nested = Accelerated(Container(second, Accelerated(first, inner)), outer)
    assert trainer(nested, None, "at_step").grad_scaler is inner  # the nearer one takes its steps


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Muon(), r"takes a torch.optim.Optimizer .*Muon.* call watched.step\(\) after each of its steps"),
        ([SGD(nn.Linear(1, 1).parameters()), Muon()], r"Muon.* call watched.step\(\)"),
        (Uninitialised([]), r"Uninitialised does not call Optimizer.__init__.* call watched.step\(\)"),
        ("adam", "not 'adam'"),
        (SGD, "not <class"),
        (Accelerated(None), "Accelerated does not call"),
    ],
)
def test_foreign_optimizers_are_refused_by_name_with_the_cure(given, text):
    with pytest.raises(OptionError, match=text):
        monitorch.watch(new_model(), given, visualizer="dummy")


def test_optimizers_of_deepspeed_are_refused_when_a_model_is_watched():
    with pytest.raises(UnsupportedModelError, match="DeepSpeedZeroOptimizer cannot be observed"):
        monitorch.watch(new_model(), zero_optimizer(), visualizer="dummy")
    engine = of_package("DeepSpeedEngine", "deepspeed.runtime.engine", nn.Module)()
    with pytest.raises(UnsupportedModelError, match="DeepSpeedEngine cannot be observed"):
        PyTorchInspector([], optimizer=engine)


def train(model, optimizer, scaler, steps=2):
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2) + step).square().mean()
        scaler.scale(loss).backward()
        optimizer.step()


class ScaledAccelerated(Accelerated):
    def step(self, closure=None):
        self.scaler.step(self.optimizer)
        self.scaler.update()


def shown(wrap, scaler):
    """Gradients of outputs and parameters, as a watched model shows them."""
    model = new_model()
    optimizer = wrap(SGD(model.parameters(), lr=0.1))
    lenses = [OutputGradientGeometry(), ParameterGradientGeometry()]
    with monitorch.watch(model, optimizer, lenses=lenses, visualizer="dummy", every=1, tick_every=2) as watched:
        train(model, optimizer, scaler)
        return {(r.tag, r.layer, r.statistic): r.value for r in watched.inspector.records() if r.tag != "Logged"}


def test_a_wrapped_optimizer_shows_what_the_optimizer_would():
    expected = shown(lambda optimizer: optimizer, torch.amp.GradScaler("cpu", enabled=False))
    assert len(expected) > 10
    assert shown(Accelerated, torch.amp.GradScaler("cpu", enabled=False)) == expected
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    assert shown(lambda optimizer: ScaledAccelerated(optimizer, scaler), scaler) == pytest.approx(expected)


def test_a_container_shows_the_gradients_of_all_its_parts_in_the_step_they_were_made_in():
    model = new_model()
    parts = Container(SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.2))
    lens = ParameterGradientGeometry(compute_correlation=False)
    with monitorch.watch(model, parts, lenses=[lens], visualizer="dummy", every=1, tick_every=1) as watched:
        train(model, parts, torch.amp.GradScaler("cpu", enabled=False), steps=1)
        found = {r.layer: r.value for r in watched.inspector.records() if r.tag == "Weight Gradient Norm"}
        assert found == pytest.approx({name: model[int(name)].weight.grad.norm().item() for name in "02"})
