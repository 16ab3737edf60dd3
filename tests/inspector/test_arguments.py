"""What trains a model: given alone, in lists, in wrappers and in containers."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

import monitorch
from monitorch import PyTorchInspector
from monitorch.engine.optimizers import StandIn
from monitorch.engine.parameters import ParameterBank
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
        lambda first, second: Container(first, second),
        lambda first, second: Accelerated(Container(first, second)),
        lambda first, second: Container(Accelerated(first), Lightning(second)),
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
    assert trainer(Accelerated(Container(first, second), outer), None, "at_step").grad_scaler is outer
    nested = Accelerated(Container(Accelerated(first, inner), second), outer)
    assert trainer(nested, None, "at_step").grad_scaler is inner  # the nearer one takes its steps


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("by hand", "by hand"),
        (Muon(), "Muon"),
        ([SGD(nn.Linear(1, 1).parameters()), Muon()], "SGD and Muon"),
        ({"first": Muon(), "second": Muon()}, "Muon and Muon"),
        (Uninitialised([]), "Uninitialised"),
        (Accelerated(None), "Accelerated"),
        (Accelerated(Muon()), "Accelerated"),
    ],
)
def test_one_object_stands_in_for_optimizers_whose_steps_are_not_noticed(given, kind):
    (found,) = trainer(given, None, "at_step").optimizers
    assert (type(found), found.kind) == (StandIn, kind)
    assert trainer(found, None, "at_step").optimizers == (found,)


def test_a_stand_in_has_the_groups_of_all_or_all_that_is_trained(first):
    model, foreign = new_model(), Muon()
    model[0].bias.requires_grad_(False)
    bank = ParameterBank({"scale": nn.Parameter(torch.ones(1)), "again": model[2].bias})
    for given in ([first, foreign], foreign, "by hand"):
        (found,) = trainer(given, None, "at_step").optimizers
        assert found.param_groups == [{"params": []}]
        found.trains(model, bank)
        (group,) = found.param_groups
        expected = [model[0].weight, model[2].weight, model[2].bias, bank.scale]
        assert all(one is other for one, other in zip(group["params"], expected, strict=True))
    for broken in (None, [], [{"lr": 1}], 3):
        foreign.param_groups = broken
        assert len(trainer(foreign, None, "at_step").optimizers[0].param_groups) == (0 if broken == [] else 1)
    foreign.param_groups = [{"params": [model[0].weight], "lr": 0.5}]
    (both,) = trainer([first, foreign], None, "at_step").optimizers
    assert both.param_groups == [*first.param_groups, *foreign.param_groups]
    del model, bank
    assert found.param_groups == [{"params": []}]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("adam", "not 'adam'. If there is no optimizer object, pass 'by hand' and call watched.step"),
        (["by hand"], r"not 'by hand'"),
        (SGD, "not <class"),
        (object(), "not <object"),
        ([Muon(), object()], "not <object"),
        (nn.Linear(1, 1), "not Linear"),
    ],
)
def test_what_makes_no_steps_is_refused(given, text):
    with pytest.raises(OptionError, match=text):
        monitorch.watch(new_model(), given, visualizer="dummy")


def test_a_scaler_is_for_optimizers_of_torch():
    with pytest.raises(OptionError, match="skipped steps of others cannot be detected"):
        trainer(Muon(), torch.amp.GradScaler("cpu"), "at_step")
    assert trainer(Accelerated(Muon(), torch.amp.GradScaler("cpu")), None, "at_step").grad_scaler is None


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({}, r"takes tensors by name, such as \{'scale': scale\}, not \{\}"),
        ([torch.ones(1)], "takes tensors by name"),
        (torch.ones(1), "takes tensors by name"),
        ({"": torch.ones(1)}, "a name is a string such as 'scale' or 'codes.left', not ''"),
        ({"a..b": torch.ones(1)}, "not 'a..b'"),
        ({".a": torch.ones(1)}, "not '.a'"),
        ({3: torch.ones(1)}, "not 3"),
        ({"a": 1.0}, "'a' is float"),
        ({"a": torch.ones(1, requires_grad=True) * 2}, "'a' is computed from others"),
    ],
)
def test_what_is_no_bank_of_parameters_is_refused(tensors, text):
    with pytest.raises(OptionError, match=text):
        monitorch.watch(parameters=tensors, visualizer="dummy")
    with pytest.raises(OptionError, match=text):
        PyTorchInspector([], parameters=tensors)


def test_optimizers_of_megatron_are_refused_when_a_model_is_watched():
    chained = of_package("ChainedOptimizer", "megatron.core.optimizer.optimizer")()
    with pytest.raises(UnsupportedModelError, match=r"ChainedOptimizer cannot be observed: .*main_grad"):
        monitorch.watch(new_model(), chained, visualizer="dummy")


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
