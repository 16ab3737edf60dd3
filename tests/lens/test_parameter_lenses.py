"""Which parameters the parameter lenses watch, whatever has been done to the model."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from monitorch.errors import MonitorchWarning
from monitorch.lens import (
    ParameterCond,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)

GRADIENTS = {"ParameterGradientActivation": "Gradient Activation", "ParameterGradientGeometry": "Gradient Norm"}
SUFFIXES = {"ParameterCond": "Cond", "ParameterNorm": "Norm", "ParameterUpdateGeometry": "Update Norm", **GRADIENTS}
CLASSES = {
    cls.__name__: cls for cls in (ParameterCond, ParameterGradientActivation, ParameterGradientGeometry, ParameterNorm)
} | {"ParameterUpdateGeometry": ParameterUpdateGeometry}


@pytest.fixture(params=CLASSES)
def watched(request, watch, shown):
    """Put a lens of each kind on a model, with an optimizer."""

    def build(model, parameters=("weight", "bias"), optimizer=None):
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        first = (optimizer,) if request.param == "ParameterUpdateGeometry" else ()
        inspector = watch(model, CLASSES[request.param](*first, parameters=parameters))
        return SimpleNamespace(
            name=request.param,
            needs_gradients=request.param in GRADIENTS,
            inspector=inspector,
            optimizer=optimizer,
            layers=lambda parameter: list(shown.values(f"{parameter.title()} {SUFFIXES[request.param]}")),
        )

    return build


def step(model, optimizer, *inputs):
    """One training step; returns its loss."""
    optimizer.zero_grad()
    output = model(*inputs)
    output = output[0] if isinstance(output, tuple) else output
    loss = output.square().mean() if not output.is_complex() else output.abs().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def tick_after_step(model, found, *inputs):
    step(model, found.optimizer, *inputs)
    found.inspector.tick_epoch()
    return found


def is_matrix_only(found):
    return found.name == "ParameterCond"  # vectors have no condition number


def test_missing_bias_does_not_hide_the_weight(watched):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
    found = tick_after_step(model, watched(model), torch.randn(4, 3))
    assert found.layers("weight") == ["0", "1"]
    assert found.layers("bias") == ([] if is_matrix_only(found) else ["1"])


def test_frozen_parameter_hides_no_other_and_shows_up_when_unfrozen(watched):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.requires_grad_(False)
    found = tick_after_step(
        model, watched(model, optimizer=torch.optim.SGD(model.parameters(), 0.1)), torch.randn(4, 3)
    )
    assert found.layers("weight") == (["1"] if found.needs_gradients else ["0", "1"])
    assert is_matrix_only(found) or found.layers("bias") == ["0", "1"]
    model[0].weight.requires_grad_(True)
    assert tick_after_step(model, found, torch.randn(4, 3)).layers("weight") == ["0", "1"]
    model[0].weight.requires_grad_(False)
    assert tick_after_step(model, found, torch.randn(4, 3)).layers("weight") == (
        ["1"] if found.needs_gradients else ["0", "1"]
    )


def test_tied_weight_is_recorded_once_under_its_first_name(watched):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.body, self.head = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.body(self.embedding(ids)))

    model = Tied()
    found = tick_after_step(model, watched(model), torch.tensor([0, 1, 2]))
    assert found.layers("weight") == ["embedding", "body"]
    assert found.inspector.aliases["embedding.weight"] == ["head.weight"]


def test_shared_module_is_recorded_once_under_its_first_name(watched):
    shared = nn.Linear(3, 3)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared), nn.Linear(3, 3))
    found = tick_after_step(model, watched(model), torch.randn(4, 3))
    assert found.layers("weight") == ["0.0", "2"]


def test_lazy_layer_is_watched_from_when_it_has_a_shape(watched):
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = watched(model, optimizer=optimizer)
    found.inspector.tick_epoch()
    assert "0" not in found.layers("weight")
    assert tick_after_step(model, found, torch.randn(4, 5)).layers("weight") == ["0", "1"]


@pytest.mark.parametrize(
    "change",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        pytest.param(weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")),
    ],
    ids=["weight_norm", "spectral_norm", "orthogonal", "old spectral_norm", "pruned", "old weight_norm"],
)
def test_changed_weight_is_watched_and_training_stays_the_same(change, watched):
    model = nn.Sequential(change(nn.Linear(3, 3)), nn.Linear(3, 2))
    bare = nn.Sequential(change(nn.Linear(3, 3)), nn.Linear(3, 2))
    bare.load_state_dict(copy.deepcopy(model.state_dict()))
    batches = [torch.randn(4, 3) for _ in range(3)]
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    state = torch.get_rng_state()
    expected = [step(bare, optimizer, batch) for batch in batches]
    torch.set_rng_state(state)
    found = watched(model)
    losses = [step(model, found.optimizer, batch) for batch in batches]
    found.inspector.tick_epoch()
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert all(torch.equal(value, bare.state_dict()[name]) for name, value in model.state_dict().items())
    assert found.layers("weight") == ["0", "1"]


def test_complex_parameter(watched):
    class Rotation(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))

        def forward(self, inputs):
            return inputs @ self.weight

    model = nn.Sequential(Rotation())
    found = tick_after_step(model, watched(model), torch.randn(4, 3, dtype=torch.complex64))
    assert found.layers("weight") == ["0"]


def test_sparse_gradient_of_an_embedding(watched):
    model = nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2))
    found = tick_after_step(model, watched(model), torch.tensor([1, 4, 4]))
    assert found.layers("weight") == ["0", "1"]


def test_parameters_of_recurrent_layers_go_by_their_names(watched):
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    model = nn.Sequential(nn.LSTM(3, 4))
    found = tick_after_step(model, watched(model, names), torch.randn(5, 2, 3))
    for name in names[: 2 if is_matrix_only(found) else 4]:
        assert found.layers(name) == ["0"]


def test_attention_weights_appear_under_the_name_of_the_attention(watched):
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, tokens):
            return self.attention(tokens, tokens, tokens)

    model = Attends()
    found = tick_after_step(model, watched(model, ("in_proj_weight", "weight")), torch.randn(5, 2, 4))
    assert found.layers("in_proj_weight") == ["attention"]
    assert found.layers("weight") == ["attention.out_proj"]


def test_model_without_such_parameters_warns_once_and_names_the_option(watched):
    model = nn.Sequential(nn.Linear(3, 3))
    cure = "name some with parameters=: 'weight' or \"all\"$"
    with pytest.warns(MonitorchWarning, match=f"found no layer to watch in this model; {cure}"):
        found = watched(model, "kernel")
    assert tick_after_step(model, found, torch.randn(4, 3)).layers("kernel") == []


def test_parameter_inside_a_layer_by_dotted_name(watched):
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, inputs):
            return self.inner(inputs)

    model = nn.Sequential(Wraps())
    found = tick_after_step(model, watched(model, "inner.weight"), torch.randn(4, 3))
    assert found.layers("inner.weight") == ["0"]


class Recurs(nn.Module):
    """A layer whose parameters have names of their own, a parameter of the model itself, and a plain layer."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(2, 3))
        self.lstm, self.head = nn.LSTM(3, 3), nn.Linear(3, 2)

    def forward(self, inputs):
        return self.head(self.lstm(inputs + self.start)[0])


@pytest.mark.filterwarnings("error")
def test_all_parameters_are_shown_by_their_own_names(watched):
    model = Recurs()
    names = [name for name, parameter in model.named_parameters() if parameter.dim() > 1]
    found = tick_after_step(model, watched(model, "all"), torch.randn(4, 2, 3))
    assert [name for name in found.layers("parameter") if model.get_parameter(name).dim() > 1] == names
    assert is_matrix_only(found) or found.layers("parameter") == [name for name, _ in model.named_parameters()]


def test_all_parameters_of_a_parametrised_layer_are_those_that_train(watched):
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)))
    found = tick_after_step(model, watched(model, "all"), torch.randn(4, 3))
    matrices = [f"0.parametrizations.weight.original{index}" for index in range(2)]
    assert found.layers("parameter") == (matrices if is_matrix_only(found) else ["0.bias", *matrices])


def test_a_lens_on_all_parameters_and_one_on_named_ones_do_not_mix(watch, shown):
    model = nn.Sequential(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = [
        cls(parameters=names) for cls in (ParameterGradientGeometry, ParameterNorm) for names in ("all", "weight")
    ]
    inspector = watch(model, *lenses, optimizer=optimizer)
    step(model, optimizer, torch.randn(4, 3))
    inspector.tick_epoch()
    for what in ("Norm", "Gradient Norm"):
        assert shown.values(f"Parameter {what}").keys() == {"0.weight", "0.bias"}
        assert shown.values(f"Parameter {what}")["0.weight"] == shown.values(f"Weight {what}")["0"]
    assert inspector.gradient_moments == {"0.weight": "at_step", "0.bias": "at_step"}


def test_default_lenses_say_once_that_some_layers_name_their_parameters_otherwise(watch):
    with pytest.warns(MonitorchWarning) as told:
        watch(Recurs(), ParameterNorm(), ParameterGradientGeometry(), ParameterCond())
    (warning,) = told
    assert str(warning.message) == (
        "ParameterNorm watches only parameters named 'weight' and 'bias', but the model itself has others, such as "
        "'start': parameters=\"all\" shows every parameter"
    )


@pytest.mark.filterwarnings("error")
def test_names_that_were_chosen_are_not_questioned(watched):
    model = Recurs()
    found = tick_after_step(model, watched(model, "weight_ih_l0"), torch.randn(4, 2, 3))
    assert found.layers("weight_ih_l0") == ["lstm"]
