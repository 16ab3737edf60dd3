"""From accumulators to what is handed over, where the numbers are awkward."""

import math
from collections import OrderedDict

import pytest
import torch

from monitorch.lens.views import ComputedLines, LayerLines, LayerRates, NamedLines, Shares, Source, TagFrame, WorstRates
from monitorch.preprocessor import GradientActivation, GradientGeometry
from monitorch.visualizer import TagType


class Kept(GradientGeometry):
    """A preprocessor whose samples are handed in as numbers."""

    def __init__(self, samples_by_layer, inplace=False):
        super().__init__(correlation=False, normalize=False, inplace=inplace)
        for layer, samples in samples_by_layer.items():
            for sample in samples:
                self._record(layer, torch.tensor(sample, dtype=torch.float64))


def norms(samples_by_layer, inplace=False):
    return Source(Kept(samples_by_layer, inplace), "norm")


class KeptRates(GradientActivation):
    def __init__(self, pairs_by_layer):
        super().__init__(death=True, inplace=True)
        for layer, pair in pairs_by_layer.items():
            self._record(layer, *torch.tensor(pair, dtype=torch.float64))


@pytest.mark.parametrize("inplace", [True, False])
def test_layers_come_in_the_order_of_the_model_and_without_strangers(inplace):
    view = LayerLines("T", norms({"b": [1.0], "x": [9.0], "a": [2.0, 4.0]}, inplace), ("mean", "max"), ("min-max",))
    frame = view.read(["a", "unused", "b"])
    assert frame.lines() == OrderedDict(a={"mean": 3.0, "max": 4.0}, b={"mean": 1.0, "max": 1.0})
    assert list(frame.lines()) == ["a", "b"]
    assert frame.bands() == {"a": {("min", "max"): (2.0, 4.0)}, "b": {("min", "max"): (1.0, 1.0)}}


def test_view_without_bands_hands_over_none():
    assert LayerLines("T", norms({"a": [1.0]}), ("mean",), None).read(["a"]).bands() is None


@pytest.mark.parametrize("bands", [None, [("low", "high")]])
def test_computed_numbers_are_lines_or_edges_of_bands(bands):
    numbers = {"b": {"low": 1.0, "middle": 2.0, "high": 3.0}, "x": {"middle": 9.0}, "a": {"low": 0.0, "middle": 5.0}}
    numbers["a"]["high"] = 6.0
    frame = ComputedLines("T", lambda: numbers, bands=bands).read(["a", "unused", "b"])
    assert list(frame.lines()) == ["a", "b"]
    if bands is None:
        assert (frame.lines()["a"], frame.bands()) == (numbers["a"], None)
        return
    assert frame.lines() == {"a": {"middle": 5.0}, "b": {"middle": 2.0}}
    assert frame.bands() == {"a": {("low", "high"): (0.0, 6.0)}, "b": {("low", "high"): (1.0, 3.0)}}
    assert [(one.role, one.band, one.side) for one in frame.statistics[1:]] == [
        ("edge", "low-high", "low"),
        ("edge", "low-high", "high"),
    ]


@pytest.mark.parametrize("bands", [None, [("low", "high")]])
def test_computed_numbers_of_no_layer_are_empty(bands):
    frame = ComputedLines("T", dict, bands=bands).read(["a"])
    assert (frame.lines(), frame.bands()) == ({}, None if bands is None else {})


@pytest.mark.parametrize("inplace", [True, False])
def test_layer_with_only_non_finite_samples_is_shown_as_not_a_number(inplace):
    frame = LayerLines("T", norms({"a": [math.nan, math.inf]}, inplace), ("mean",), ("std",)).read(["a"])
    assert math.isnan(frame.lines()["a"]["mean"])
    assert [(layer, known.text, count) for layer, known, _, count in frame.numbers()] == [
        ("a", "mean", 2),
        ("a", "-σ", 2),
        ("a", "+σ", 2),
    ]


@pytest.mark.parametrize("scale", [1e-300, 1e-7, 1.0, 1e300])
def test_shares_are_of_the_sum_at_every_scale(scale):
    frame = Shares("T", norms({"a": [scale], "b": [3 * scale]}), "mean").read(["a", "b"])
    assert frame.lines() == {"T": {"a": pytest.approx(0.25), "b": pytest.approx(0.75)}}


def test_share_of_a_non_finite_layer_does_not_spoil_the_others():
    shares = Shares("T", norms({"a": [math.nan], "b": [1.0], "c": [3.0]}), "mean").read(["a", "b", "c"]).lines()["T"]
    assert math.isnan(shares.pop("a"))
    assert shares == {"b": 0.25, "c": 0.75}


def test_share_of_nothing_is_nothing():
    assert Shares("T", norms({}), "mean").read(["a"]).lines() == {}
    assert Shares("T", norms({"a": [0.0]}), "mean").read(["a"]).lines() == {"T": {"a": 0.0}}


@pytest.mark.parametrize(
    ("pairs", "worst"),
    [
        ({"a": (0.2, 0.1), "b": (0.5, 0.4)}, (0.2, 0.4)),
        ({"a": (math.nan, math.nan), "b": (0.5, 0.4)}, (0.5, 0.4)),
        ({"a": (math.nan, math.nan)}, (math.nan, math.nan)),
    ],
)
def test_worst_rates_pass_over_what_is_not_a_number(pairs, worst):
    view = WorstRates("W", [LayerRates("T", KeptRates(pairs), "mean", "mean")])
    found = view.read(list(pairs)).lines()["W"]
    assert list(found) == ["worst activation_rate", "worst death_rate"]
    assert list(found.values()) == pytest.approx(worst, nan_ok=True)


def test_worst_of_no_layers_is_nothing():
    assert WorstRates("W", [LayerRates("T", KeptRates({}), "mean", "mean")]).read(["a"]).lines() == {}


def test_named_lines_leave_out_names_without_samples():
    view = NamedLines("T", lambda step: {"a": [1.0, 3.0], "b": [], "c": [math.nan]}, ("mean",), ("std",))
    frame = view.read(())
    assert list(frame.lines()["T"]) == ["a mean", "c mean"]
    assert list(frame.bands()["T"]) == [("a -σ", "a +σ"), ("c -σ", "c +σ")]
    assert frame.nonfinite_by_layer() == {"T": 1}


def test_statistics_of_a_view_say_what_they_are_and_how_to_draw_them():
    source = norms({"a": [1.0, 2.0]})
    view = LayerLines("T", source, ("median", "max"), ("Q1-Q3", "min-max"), logy=True, ylim=(9, 0))
    assert {known.error for known in view.read(["a"]).statistics} == {None}
    source.preprocessor.error = {"norm": 0.1}.get  # from now on they are estimates
    found = view.read(["a"]).statistics
    assert [(known.name, known.role, known.band, known.side) for known in found] == [
        ("T/median", "line", "", ""),
        ("T/max", "line", "", ""),
        ("T/Q1", "edge", "Q1-Q3", "low"),
        ("T/Q3", "edge", "Q1-Q3", "high"),
        ("T/min", "edge", "min-max", "low"),
        ("T/max", "edge", "min-max", "high"),
    ]
    assert {(known.scale, known.limits, known.error) for known in found} == {("log", (0, 9), 0.1)}
    (share,) = Shares("S", source, "mean").read(["a"]).statistics
    assert (share.name, share.role, share.limits) == ("S/share", "share", (0.0, 1.0))
    named = NamedLines("N", lambda step: {"top 1": [1.0]}, ("mean",), ("std",)).read(()).statistics
    assert [(known.curve, known.line) for known in named] == [("top 1", "mean"), ("top 1", "-σ"), ("top 1", "+σ")]


def test_layers_that_come_and_go_keep_their_numbers():
    source = norms({"a": [1.0], "b": [2.0], "c": [3.0]})
    view = LayerLines("T", source, ("mean",), None)
    for layers in (["c", "a"], ["a", "b", "c"], ["b"], [], ["c", "a"]):
        frame = view.read(layers)
        numbers = {"a": 1.0, "b": 2.0, "c": 3.0}
        assert frame.layers == tuple(layers)
        assert frame.lines() == {layer: {"mean": numbers[layer]} for layer in layers}
    source.preprocessor._record("d", torch.tensor(4.0))
    assert view.read(["d", "c"]).lines() == {"d": {"mean": 4.0}, "c": {"mean": 3.0}}
    source.preprocessor.reset()
    assert view.read(["d", "c"]).layers == ()


def test_share_of_huge_numbers_does_not_overflow():
    shares = Shares("T", norms({"a": [1.5e308], "b": [1.5e308]}), "mean").read(["a", "b"]).lines()["T"]
    assert shares == {"a": 0.5, "b": 0.5}


def test_rate_of_a_lookup_table_has_its_own_line():
    rates = KeptRates({"fc": (0.2, 0.1)})
    rates.lookups = {"table"}
    rates._record("table", *torch.tensor((0.5, 0.5), dtype=torch.float64))
    view = LayerRates("T", rates, "mean", "mean")
    assert view.read(["table", "fc"]).lines() == {
        "table": {"activation_rate": 0.5, "rows_used": 0.5},
        "fc": {"activation_rate": pytest.approx(0.2), "death_rate": pytest.approx(0.1)},
    }
    found = WorstRates("W", [view]).read(["table", "fc"]).lines()["W"]
    assert list(found.values()) == pytest.approx([0.2, 0.1])


@pytest.mark.parametrize("kind", list(TagType))
def test_each_type_is_shown_by_its_own_method(kind):
    class Named:
        def __getattr__(self, name):
            return lambda *arguments: calls.append((name, len(arguments)))

    calls = []
    TagFrame.empty("T", kind, banded=True).show(Named(), 1)
    expected = {
        TagType.NUMERICAL: ("plot_numerical_values", 4),
        TagType.PROBABILITY: ("plot_probabilities", 3),
        TagType.RELATIONS: ("plot_relations", 3),
    }
    assert calls == [expected[kind]]
