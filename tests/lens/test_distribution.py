"""The lens on distributions: what it watches, what it shows, and its records."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import OptionError
from monitorch.lens import Distribution, OutputGradientGeometry
from monitorch.preprocessor.distribution import BINS

QUANTILES = {"q01": 0.01, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "q99": 0.99}
KINDS = ("output", "gradient", "parameter")


class Scaled(nn.Module):
    """A container with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop, self.act = nn.Linear(4, 6), nn.Dropout(0.1), nn.ReLU()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, inputs):
        return self.act(self.drop(self.inner(inputs))) * self.scale


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(Scaled(), nn.Linear(6, 2))


@pytest.fixture
def inputs():
    return torch.randn(50, 4, generator=torch.Generator().manual_seed(3))


PARAMETERS = ["0.scale", "0.inner.weight", "0.inner.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("what", "layers"),
    [
        ("output", ["0", "0.inner", "0.act", "1"]),
        ("gradient", PARAMETERS),
        ("parameter", PARAMETERS),
    ],
)
def test_layers_and_tags(what, layers, model, inputs, watch, shown):
    inspector = watch(model, Distribution(what))
    model(inputs).square().mean().backward()
    inspector.tick_epoch()
    title = what.title()
    assert list(shown.tags) == [f"{title} Distribution", f"{title} Extremes", f"{title} Special Elements"]
    assert [list(values) for _, _, values, _ in shown.calls] == [layers] * 3
    assert shown.values(f"{title} Distribution")[layers[0]].keys() == {"q50"}
    bands = [("q01", "q99"), ("q05", "q95"), ("q25", "q75")]
    assert list(shown.ranges(f"{title} Distribution")[layers[0]]) == bands
    assert shown.values(f"{title} Special Elements")[layers[0]].keys() == {"zero", "infinite", "nan"}


@pytest.mark.parametrize("what", KINDS)
def test_records_have_all_numbers(what, model, inputs, watch):
    inspector = watch(model, Distribution(what))
    output = model(inputs)
    output.square().mean().backward()
    inspector.tick_epoch()
    tensor = {"output": output, "gradient": model[1].weight.grad, "parameter": model[1].weight}[what]
    numbers = tensor.detach().double().numpy().ravel()
    layer = "1" if what == "output" else "1.weight"
    found = {record.statistic: record for record in inspector.records() if record.layer == layer}
    assert found.keys() == {*QUANTILES, "min", "max", "zero", "infinite", "nan"}
    assert {record.lens for record in found.values()} == {f"Distribution of {what}s"}
    for name, share in QUANTILES.items():
        low, high = (np.quantile(numbers, share, method=method) for method in ("lower", "higher"))
        assert low - abs(low) / 4 <= found[name].value <= high + abs(high) / 4  # a bin is at most a quarter
        assert found[name].role == ("line" if name == "q50" else "edge")
    assert (found["q05"].band, found["q05"].side, found["q95"].side) == ("q05-q95", "low", "high")
    assert (found["min"].value, found["max"].value) == (numbers.min(), numbers.max())


def test_ticks_add_up_steps_and_begin_anew(model, inputs, watch, shown):
    inspector = watch(model, Distribution())
    for part in (inputs[:20], inputs[20:]):
        model(part)
    inspector.tick_epoch()
    model(inputs)
    inspector.tick_epoch()
    first, second = ([call[2:] for call in shown.calls if call[0] == number] for number in (1, 2))
    layers = ("0.inner",)  # after it comes dropout
    for whole, again in zip(first, second, strict=True):
        for one, other in zip(whole, again, strict=True):
            assert one is None or {layer: one[layer] for layer in layers} == {layer: other[layer] for layer in layers}


@pytest.mark.parametrize("what", KINDS)
def test_broken_numbers_are_counted_and_do_not_hide_the_others(what, model, inputs, watch, shown):
    inspector = watch(model, Distribution(what))
    bias = model[1].bias
    if what == "gradient":
        bias.register_hook(lambda gradient: torch.tensor([torch.nan, torch.inf]))
    else:
        bias.data[0] = torch.nan
    model(inputs).sum().backward()
    inspector.tick_epoch()
    title, layer = what.title(), "1" if what == "output" else "1.bias"
    special = shown.values(f"{title} Special Elements")[layer]
    count = 50 if what == "output" else 1
    assert special == {"zero": 0, "infinite": float(what == "gradient"), "nan": count}
    median = shown.values(f"{title} Distribution")[layer]["q50"]
    assert np.isnan(median) == (what == "gradient")  # nothing finite is left of two


def test_frozen_parameters_have_no_gradient_until_they_train(model, inputs, watch, shown):
    model[0].inner.requires_grad_(False)
    inspector = watch(model, Distribution("gradient"))
    for number in (1, 2):
        model(inputs).sum().backward()
        inspector.tick_epoch()
        assert ("0.inner.weight" in shown.values("Gradient Distribution")) == (number == 2)
        model[0].inner.requires_grad_(True)


def test_a_parameter_of_a_layer_that_is_never_called_is_found_when_it_trains(watch, shown):
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 1, batch_first=True)  # never calls its out_proj

        def forward(self, inputs):
            return self.attention(inputs, inputs, inputs)[0]

    model = Attends()
    model.attention.out_proj.weight.requires_grad_(False)
    inspector = watch(model, Distribution("gradient"))
    for number in (1, 2):
        inspector.tick_epoch()
        model(torch.randn(2, 3, 4)).sum().backward()
        inspector.tick_epoch()
        assert ("attention.out_proj.weight" in shown.values("Gradient Distribution")) == (number == 2)
        model.attention.out_proj.weight.requires_grad_(True)


def test_tied_parameters_are_shown_once(watch, shown):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    watch(model, Distribution("parameter")).tick_epoch()
    assert list(shown.values("Parameter Distribution")) == ["0.weight", "0.bias", "1.bias"]


def test_several_kinds_side_by_side(model, inputs, watch, shown):
    inspector = watch(model, *map(Distribution, KINDS))
    model(inputs).sum().backward()
    inspector.tick_epoch()
    assert len(shown.tags) == 9
    assert all(values for _, _, values, _ in shown.calls)


def test_evaluation_does_not_count(model, inputs, watch, shown):
    inspector = watch(model, Distribution())
    model.eval()(inputs)
    with torch.no_grad():
        model.train()(inputs)
    inspector.tick_epoch()
    assert shown.values("Output Distribution") == {}


@pytest.mark.parametrize("what", ["outputs", "", None, 3, ("output", "gradient"), "Output", ["output"]])
def test_a_wrong_kind_names_the_right_ones(what):
    with pytest.raises(OptionError, match="'output', 'gradient', 'parameter'"):
        Distribution(what)


@pytest.mark.parametrize(
    ("what", "reason"), [("output", "no activations and no parameters"), ("parameter", "no parameters")]
)
def test_a_model_without_layers_to_watch(what, reason):
    with pytest.warns(UserWarning, match=f"Distribution found no layer to watch .* it has {reason}"):
        PyTorchInspector([Distribution(what)], module=nn.Flatten(), visualizer="dummy")


@pytest.mark.parametrize("what", KINDS)
def test_compiled_graphs_stay_whole_and_show_the_same(what, inputs, watch, shown):
    """With steps that are observed and steps that are not."""
    found = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inspector = watch(model, Distribution(what), optimizer=optimizer, every=2)
        for part in inputs.split(10):
            called(part).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        inspector.tick_epoch()
        inspector.detach()
        found.append((shown.values(f"{what.title()} Distribution"), shown.values(f"{what.title()} Special Elements")))
        shown.calls.clear()
    eager, compiled = found
    assert eager == compiled
    assert all(eager)
    torch.compiler.reset()


@pytest.mark.parametrize("what", ["output", "gradient"])
def test_baseline_steps_are_not_counted(what):
    """They are there for lenses that compare a step with the one before."""
    model = nn.Linear(2, 3)
    lenses = [Distribution(what), OutputGradientGeometry()]
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", every=3, on_error="raise")
    for _ in range(9):
        model(torch.ones(4, 2)).sum().backward()
    (histograms,) = lenses[0]._preprocessors
    elements = {"output": 12, "gradient": 6 + 3}
    assert sum(counts[:BINS].sum() for counts in histograms.histograms().values()) == 3 * elements[what]
    inspector.detach()
