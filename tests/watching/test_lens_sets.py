"""Which lenses a model is looked at through when nobody chooses."""

from collections import Counter

import pytest
import torch
from torch import nn

import monitorch
from monitorch import PyTorchInspector
from monitorch.engine import allocation
from monitorch.errors import OptionError
from monitorch.lens import (
    Attention,
    Distribution,
    OutputGradientGeometry,
    OutputNorm,
    ParameterUpdateGeometry,
    UpdateRatio,
)
from monitorch.watching.lens_sets import SETS, all_lenses, checked, expanded, standard_lenses

PARAMETERS = (
    "ParameterGradientGeometry ParameterUpdateGeometry UpdateRatio ParameterNorm InputStatistics ParameterFacts"
)
RATES = "OutputNorm OutputActivation ActivationHealth"
OUTPUTS = "OutputNorm ActivationHealth OutputGradientGeometry"


class Own(nn.Module):
    """A layer whose class torch does not know, such as the convolutions of other libraries."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        return x @ self.kernel


class Scale(nn.Module):
    """A root that has a parameter of its own beside a layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.act = nn.ReLU()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            nn.Sequential(nn.Linear(3, 1), nn.ReLU()),
            f"LossMetrics GradientNorm NonFinite {RATES} OutputGradientGeometry {PARAMETERS}",
        ),
        (
            nn.Sequential(nn.Linear(3, 1), nn.Dropout()),
            f"LossMetrics GradientNorm NonFinite {RATES} OutputGradientGeometry {PARAMETERS}",
        ),
        (nn.Linear(3, 1), f"LossMetrics GradientNorm NonFinite {OUTPUTS} {PARAMETERS}"),
        (
            nn.LayerNorm(3, elementwise_affine=False),
            "LossMetrics ActivationHealth OutputGradientGeometry InputStatistics",
        ),
        (Own(), f"LossMetrics GradientNorm NonFinite {OUTPUTS} {PARAMETERS}"),
        (
            nn.Sequential(Own(), nn.ReLU()),
            f"LossMetrics GradientNorm NonFinite {RATES} OutputGradientGeometry {PARAMETERS}",
        ),
        (nn.LazyLinear(3), f"LossMetrics GradientNorm NonFinite {OUTPUTS} {PARAMETERS}"),
        (nn.ReLU(), f"LossMetrics {RATES} InputStatistics"),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), f"LossMetrics {RATES} InputStatistics"),
        (nn.Sequential(nn.Flatten()), "LossMetrics ActivationHealth OutputGradientGeometry InputStatistics"),
        (nn.Sequential(), "LossMetrics ActivationHealth OutputGradientGeometry InputStatistics"),
        (nn.LSTM(3, 1), f"LossMetrics GradientNorm NonFinite {OUTPUTS} {PARAMETERS}"),
        (Scale(), f"LossMetrics GradientNorm NonFinite {RATES} {PARAMETERS}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_only_those_that_find_something(model, expected):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    lenses = standard_lenses(model, [optimizer])
    assert [type(lens).__name__ for lens in lenses] == expected.split()
    PyTorchInspector(lenses, module=model, visualizer="dummy").detach()  # a warning of no layers would be an error


def test_outputs_of_every_layer_with_parameters_are_shown_whatever_its_class():
    model = nn.Sequential(Own(), nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3, bias=False))))
    inspector = PyTorchInspector(standard_lenses(model), module=model, visualizer="dummy", on_error="raise")
    model(torch.ones(2, 3))
    inspector.tick_epoch()
    norms = {record.layer: record.value for record in inspector.records() if record.tag == "Output Norm"}
    assert norms["0"] == pytest.approx(3 * 3**0.5)
    assert norms.keys() == {"0", "1.0"}


def test_two_lenses_for_each_optimizer():
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    lenses = standard_lenses(model, optimizers)
    found = [lens.optimizer for lens in lenses if isinstance(lens, (ParameterUpdateGeometry, UpdateRatio))]
    assert found == [optimizer for optimizer in optimizers for _ in range(2)]


def test_updates_need_an_optimizer():
    names = [type(lens).__name__ for lens in standard_lenses(nn.Linear(2, 1))]
    assert not {"ParameterUpdateGeometry", "UpdateRatio"} & {*names}


@pytest.mark.parametrize(("depth", "found"), [(0, False), (1, True), (-1, True), ("all", True)])
def test_only_layers_as_deep_as_asked_count(depth, found):
    lenses = standard_lenses(nn.Sequential(nn.Linear(2, 1), nn.ReLU()), depth=depth)
    assert any(type(lens).__name__ == "OutputNorm" for lens in lenses) is found


@pytest.mark.parametrize(
    ("options", "room", "errors"),
    [({}, 0, {None, 0.011, 0.022}), ({}, 1 << 30, {None}), ({"correlation": "exact"}, 0, {None})],
)
def test_tensors_are_compared_exactly_while_there_is_room_for_copies(options, room, errors, monkeypatch):
    monkeypatch.setattr(allocation, "MOST_COPIES", room)
    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = standard_lenses(model, [optimizer], **options)
    inspector = PyTorchInspector(lenses, module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    model(torch.ones(50, 100)).sum().backward()
    optimizer.step()
    inspector.tick_epoch()
    assert {record.error for record in inspector.records()} == errors


def test_a_name_stands_for_its_lenses_and_a_lens_for_itself():
    model, own = nn.Linear(2, 1), Attention()
    names = [type(lens).__name__ for lens in expanded(checked(["standard", own]), model)]
    assert names == [*(type(lens).__name__ for lens in standard_lenses(model)), "Attention"]
    assert expanded(checked([own]), model) == [own]


class OwnRouter(nn.Linear):
    """Chooses between two experts."""


def test_all_are_the_standard_ones_and_every_other_that_needs_no_choice():
    model, loss_fn = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1), nn.ReLU(), OwnRouter(1, 2)), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {type(lens).__name__ for lens in all_lenses(model, [optimizer], loss_fn)}
    assert {type(lens).__name__ for lens in standard_lenses(model, [optimizer], loss_fn)} < names
    # one needs to be told an attribute, the next takes an SVD of each weight, the last is part of another
    left = {"AbstractLens", "Attribute", "ParameterCond", "ParameterGradientActivation"}
    assert names == {*monitorch.lens.__all__} - left


@pytest.mark.parametrize("given", ["everything", ["standard", "al"], [Attention(), "Attention"]])
def test_an_unknown_name_lists_the_known_ones(given):
    with pytest.raises(OptionError, match=r"is unknown; choose 'standard' or 'all', or a list such as"):
        checked(given)


MODELS = [nn.Linear(2, 1), nn.Sequential(), nn.ReLU(), nn.TransformerEncoderLayer(4, 1, 8)]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_a_set_says_nothing_of_lenses_that_find_nothing(name, model):
    monitorch.watch(model, lenses=name, visualizer="dummy", on_error="raise").close()


def test_a_lens_of_the_user_replaces_the_one_of_a_set_with_numbers_of_the_same_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], nn.Linear(1, 1))]
    own = [OutputNorm(normalize_by_size=True), UpdateRatio(optimizers[1]), Distribution("gradient")]
    found = expanded(["all", *own], model, optimizers)
    assert found[-3:] == own
    kinds = Counter(type(lens) for lens in found)
    assert kinds[OutputNorm] == 1
    assert kinds[UpdateRatio] == 2  # the set's for the other optimizer stays
    assert [lens.what for lens in found if isinstance(lens, Distribution)] == ["output", "parameter", "gradient"]


def test_lenses_of_two_optimizers_and_of_different_layers_are_no_twins():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    lenses = [
        *map(UpdateRatio, optimizers),
        OutputNorm(),
        OutputGradientGeometry(),
        Distribution(),
        Distribution("gradient"),
    ]
    PyTorchInspector(lenses, module=model, optimizer=optimizers, visualizer="dummy")  # no warning
