"""Active and dead neurons: tags, and where the neurons of an output are."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from monitorch.errors import MonitorchWarning
from monitorch.lens import OutputActivation

SMALL = ("Output Activations", False, False, True, "PROBABILITY", None)
BIG = ("Warning Output Activations", False, True, True, "PROBABILITY", None)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [SMALL, BIG]),
        ({"warning_plot": False}, [SMALL]),
        ({"inplace": False, "activation_aggregation": "median", "death_aggregation": "Q3"}, [SMALL, BIG]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(OutputActivation(**options)) == tags


@pytest.fixture
def rates(watch, shown):
    """Pairs (activation, death) by layer after one pass of a model."""

    def run(model, *inputs, **options):
        inspector = watch(model, OutputActivation(**options))
        model(*inputs)
        inspector.tick_epoch()
        inspector.detach()
        return {layer: tuple(pair.values()) for layer, pair in shown.values("Output Activations").items()}

    return run


def one_dead_feature(layer):
    """Let the first of a layer's outputs be -1 whatever goes in, the others 1."""
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(1.0)
        layer.bias[0] = -1.0
    return layer


class Tokens(nn.Module):
    """A transformer-like block: attention, then two linear layers with an activation between."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)
        self.up, self.act, self.down = one_dead_feature(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 4)

    def forward(self, tokens):
        return self.down(self.act(self.up(self.norm(self.attention(tokens, tokens, tokens)[0]))))


@pytest.mark.parametrize(
    ("model", "inputs", "layer"),
    [
        (nn.Sequential(one_dead_feature(nn.Linear(3, 4)), nn.ReLU()), (5, 3), "1"),
        (nn.Sequential(one_dead_feature(nn.Linear(3, 4)), nn.ReLU()), (5, 7, 3), "1"),
        (nn.Sequential(one_dead_feature(nn.Conv2d(2, 4, 1)), nn.ReLU()), (5, 2, 3, 3), "1"),
        (nn.Sequential(one_dead_feature(nn.Conv1d(2, 4, 1)), nn.BatchNorm1d(4), nn.ReLU()), None, None),
        (Tokens(), (5, 7, 4), "act"),
    ],
)
def test_dead_feature_shows_as_death_wherever_channels_are(model, inputs, layer, rates):
    if inputs is None:  # a batch norm turns constants into zeros: everything is dead
        assert rates(model, torch.randn(5, 2, 6)) == {"2": (0.0, 1.0)}
    else:
        assert rates(model, torch.randn(inputs)) == {layer: (0.75, 0.25)}


def test_layout_asked_for_wins_over_the_judgement(rates):
    model = nn.Sequential(one_dead_feature(nn.Linear(3, 4)), nn.ReLU())
    assert rates(model, torch.randn(5, 7, 3), channel_last=True) == {"1": (0.75, 0.25)}
    assert rates(model, torch.randn(5, 7, 3), channel_last=False) == {"1": (0.75, 0.0)}


@pytest.mark.parametrize("parametrise", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_channels_after_a_parametrised_convolution_are_its_filters(parametrise, rates):
    """Without a bias such a convolution has no parameter itself: its weight is in another module."""
    conv = nn.Conv2d(2, 4, 3, bias=False)
    with torch.no_grad():
        conv.weight[1:] = -conv.weight[1:].abs()
        conv.weight[0] = conv.weight[0].abs()
    model = nn.Sequential(parametrise(conv), nn.ReLU())
    assert rates(model, torch.rand(3, 2, 8, 8)) == {"1": (0.25, 0.75)}


def test_layout_of_a_layer_is_fixed_at_its_first_pass(watch, shown):
    conv, linear, act = one_dead_feature(nn.Conv1d(4, 4, 1)), one_dead_feature(nn.Linear(4, 4)), nn.ReLU()
    model = nn.ModuleList([conv, linear, act])
    inspector = watch(model, OutputActivation())
    assert conv._forward_hooks
    assert linear._forward_hooks
    act(linear(torch.randn(3, 4, 4)))
    assert not conv._forward_hooks  # nobody needs to notice them any more
    assert not linear._forward_hooks
    act(conv(torch.randn(3, 4, 4)))
    inspector.tick_epoch()
    assert shown.values("Output Activations")["2"]["death_rate"] == pytest.approx((0.25 + 0.0) / 2)


@pytest.mark.parametrize("options", [{"activation": False}, {"exclude": nn.ReLU}, {"dropout": False}, {}])
def test_kinds_can_be_switched_off(options, rates):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(0.0))
    expected = {"1", "2"} - ({"2"} if options == {"dropout": False} else {"1"} if options else set())
    assert set(rates(model, torch.randn(3, 2), **options)) == expected


@pytest.mark.parametrize("layer", [nn.LSTM(4, 3), nn.MultiheadAttention(4, 2)])
def test_included_container_or_tuple_output_counts(layer, rates):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, tokens):
            return self.layer(tokens, tokens, tokens) if hasattr(layer, "num_heads") else self.layer(tokens)

    assert rates(Model(), torch.randn(5, 2, 4), include=type(layer)) == {"layer": (1.0, 0.0)}


def test_rates_are_means_over_the_passes_of_a_tick(watch, shown, close):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    inspector = watch(model, OutputActivation(death_aggregation="max"))
    active = [(model(torch.randn(3, 4)).detach().double().numpy() > 0).mean(0) for _ in range(4)]
    inspector.tick_epoch()
    expected = {
        "activation_rate": close(np.mean([rates.mean() for rates in active])),
        "death_rate": close(max(np.mean(rates == 0) for rates in active)),
    }
    assert shown.values("Output Activations") == {"1": expected}


def test_worst_is_the_lowest_activation_and_the_highest_death(watch, shown):
    first, second = nn.Sequential(one_dead_feature(nn.Linear(2, 4)), nn.ReLU()), nn.Sequential(nn.Sigmoid())
    inspector = watch(nn.Sequential(first, second), OutputActivation())
    second(first(torch.randn(3, 2)))
    inspector.tick_epoch()
    tag = "Warning Output Activations"
    assert shown.values(tag) == {tag: {"worst activation_rate": 0.75, "worst death_rate": 0.25}}


def test_model_without_activations_warns_once_and_shows_nothing(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.warns(MonitorchWarning, match="OutputActivation found no layer to watch .*include=") as caught:
        inspector = watch(model, OutputActivation())
    assert len(caught) == 1
    for _ in inspector.range(2):
        model(torch.randn(3, 2))
    assert all(values == {} for _, _, values, _ in shown.calls)


@pytest.mark.parametrize("case", ["unused", "in evaluation", "tick without a pass"])
def test_layer_without_training_pass_is_left_out(case, watch, shown):
    model = nn.ModuleList([nn.ReLU(), nn.ReLU()])
    inspector = watch(model, OutputActivation())
    if case == "unused":
        model[1](torch.ones(2, 2))
    elif case == "in evaluation":
        model.eval()[1](torch.ones(2, 2))
    inspector.tick_epoch()
    assert list(shown.values("Output Activations")) == (["1"] if case == "unused" else [])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_output_with_non_finite_numbers_is_not_taken_for_a_dead_one(poison, watch, shown):
    model, lens = nn.Sequential(nn.ReLU()), OutputActivation()
    inspector = watch(model, lens)
    model(torch.tensor([[1.0, poison]]))
    inspector.tick_epoch()
    assert np.isnan([*shown.values("Output Activations")["0"].values()]).all()
    assert [record.nonfinite for record in lens.records(1) if record.layer == "0"] == [1, 1]


def test_no_grad_validation_in_train_mode_is_not_recorded(watch, shown):
    model = nn.Sequential(nn.ReLU())
    inspector = watch(model, OutputActivation())
    model(torch.ones(2, 2))
    with torch.no_grad():
        model(-torch.ones(2, 2))
    inspector.tick_epoch()
    assert shown.values("Output Activations")["0"] == {"activation_rate": 1.0, "death_rate": 0.0}
