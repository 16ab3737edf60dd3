"""What goes to a tracker, compared with what NumPy says about the same numbers."""

import math
import re

import numpy as np
import pytest

from monitorch.diagnosis.finding import Finding, Remedy
from monitorch.statistic import Statistic
from monitorch.store import Layer
from monitorch.visualizer.abstract_visualizer import TagType
from monitorch.visualizer.frame import Bins, TagFrame
from monitorch.visualizer.trackers.digest import MOST, MOST_WORST, RANK_EVERY, Digest, block_of, histograms, medians


def frame(tag, layers, lines, *, nonfinite=None, measured=None, kind=TagType.NUMERICAL, role="line"):
    statistics = tuple(Statistic.of(tag, line, role=role) for line in lines)
    values = np.array(list(lines.values()), np.float64)
    counts = None if nonfinite is None else np.array(nonfinite, np.int64)
    return TagFrame(tag, kind, tuple(layers), statistics, values, counts, measured)


def total(tag, **lines):
    statistics = tuple(Statistic.of(tag, "mean", name) for name in lines)
    return TagFrame(tag, TagType.NUMERICAL, (tag,), statistics, np.array([[value] for value in lines.values()]))


def finding(layer, severity="error", **more):
    return Finding("dead_units", severity, layer, 5, 6, "No unit is active.", Remedy("Lower the rate."), **more)


BLOCKS = [f"h.{block}.{layer}" for block in range(12) for layer in ("attn.weight", "attn.bias", "mlp.weight")]
LAYERS = ["wte.weight", *BLOCKS, "head.weight"]


def test_a_signal_is_the_smallest_median_and_largest_of_the_medians_of_blocks():
    numbers = np.random.default_rng(1).lognormal(size=len(LAYERS))
    found = Digest().of([frame("Parameter Gradient Norm", LAYERS, {"mean": numbers})])
    blocks = [[numbers[0]], *np.split(numbers[1:-1], 12), [numbers[-1]]]
    oracle = [np.median(block) for block in blocks]
    for name, number in (("min", min(oracle)), ("median", np.median(oracle)), ("max", max(oracle))):
        assert found[f"parameter_gradient_norm/{name}"] == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize("layers", [1, 12, 400])
def test_there_are_about_fifty_series_whatever_the_number_of_layers(layers):
    names = [f"h.{layer}.weight" for layer in range(layers)]
    frames = [frame(f"Signal {n}", names, {"mean": np.ones(layers)}) for n in range(30)]
    frames += [total("Loss", train_loss=1.0, val_loss=2.0)]
    digest = Digest()
    first = digest.of(frames)
    assert MOST - 6 <= len(first) <= MOST
    frames += [total("Logged", **{f"metric_{n}": 1.0 for n in range(5)})]
    later = digest.of(frames)
    assert first.keys() <= later.keys()  # a series that was begun goes on
    assert len(later) == len(first) + 5


def test_tags_that_tell_most_come_first_and_facts_not_at_all():
    names = ["a", "b"]
    frames = [frame(f"Other {n}", names, {"mean": np.ones(2)}) for n in range(30)]
    frames += [frame("Parameter Update Ratio", names, {"mean": np.ones(2)})]
    frames += [frame("Parameter Checksum", names, {"last": np.ones(2)})]
    frames += [frame("Parameter Changed", names, {"mean": np.ones(2)})]
    frames += [frame("Norm Comparison", names, {"share": np.ones(2)}, kind=TagType.RELATIONS, role="share")]
    found = Digest().of(frames)
    assert "parameter_update_ratio/max" in found
    assert not [name for name in found if "checksum" in name or "changed" in name or "comparison" in name]


def test_lines_of_a_tag_are_told_apart_and_edges_left_out():
    lines = {"activation_rate": [0.5, 0.7], "death_rate": [0.0, 0.1]}
    found = Digest().of([frame("Output Activations", ["a", "b"], lines)])
    assert found["output_activations/death_rate/max"] == 0.1
    assert found["output_activations/activation_rate/min"] == 0.5
    edges = TagFrame(
        "Output Norm", TagType.NUMERICAL, ("a",), (Statistic("Output Norm/mean"), Statistic("Output Norm/-σ")),
        np.array([[1.0], [0.5]]),
    )  # fmt: skip
    assert [name for name in Digest().of([edges]) if name.startswith("output_norm")] == [
        "output_norm/min",
        "output_norm/median",
        "output_norm/max",
    ]


def test_numbers_of_the_whole_run_are_named_by_tag_and_curve():
    found = Digest().of([total("Loss", train_loss=0.5), total("Gradient Norm", gradient_norm=2.0)])
    assert found["loss/train_loss"] == 0.5
    assert found["gradient_norm"] == 2.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives_and_is_counted(bad):
    frames = [
        total("Loss", train_loss=bad),
        frame("Non-Finite Gradients", ["a", "b"], {"max": [3.0, 4.0]}),
        frame("Output Norm", ["a", "b"], {"mean": [bad, bad]}, nonfinite=[[2, 1]]),
    ]
    found = Digest().of(frames)
    same = math.isnan if math.isnan(bad) else lambda number: number == bad
    assert same(found["loss/train_loss"])
    assert all(same(found[f"output_norm/{part}"]) for part in ("min", "median", "max"))
    assert found["non-finite/gradients"] == 7
    assert found["non-finite/samples"] == 3


def test_a_broken_layer_does_not_hide_the_others():
    found = Digest().of([frame("Output Norm", ["a", "b", "c"], {"mean": [math.nan, 1.0, 3.0]}, nonfinite=[[5, 0, 0]])])
    assert [found[f"output_norm/{part}"] for part in ("min", "median", "max")] == [1, 2, 3]


def test_what_was_not_measured_is_left_out():
    measured = np.array([[True, False]])
    found = Digest(re.compile("")).of([frame("Output Norm", ["a", "b"], {"mean": [1.0, 9.0]}, measured=measured)])
    assert found["output_norm/max"] == 1
    assert [name for name in found if name.startswith("output_norm/b")] == []


def test_a_layer_with_a_finding_is_shown_by_name_and_stays():
    digest, names = Digest(), [f"fc{n}" for n in range(40)]
    digest.describe_layers(Layer(name, "Linear") for name in names)
    calm = [frame("Output Norm", names, {"mean": np.ones(40)})]
    assert not [name for name in digest.of(calm) if name.startswith("worst")]
    digest.take_findings([finding("fc7"), finding("fc9", "info"), finding("fc8", resolved_at=9)])
    found = digest.of([frame("Output Norm", names, {"mean": np.arange(40.0)})])
    assert {name: value for name, value in found.items() if name.startswith("worst")} == {"worst/fc7/output_norm": 7.0}
    assert (found["findings/errors"], found["findings/warnings"]) == (1, 0)
    digest.take_findings([])
    assert digest.of(calm)["worst/fc7/output_norm"] == 1.0


def test_a_layer_that_jumps_is_among_the_worst_and_many_stay_few():
    digest, names = Digest(), [f"fc{n}" for n in range(40)]
    shown = set()
    for tick in range(40 * RANK_EVERY):
        numbers = np.ones(40)
        numbers[tick // RANK_EVERY] = 1000.0 if tick % RANK_EVERY == RANK_EVERY - 1 else 1.0
        shown |= {name for name in digest.of([frame("Output Norm", names, {"mean": numbers})]) if "worst" in name}
    assert "worst/fc0/output_norm" in shown
    assert len(shown) == MOST_WORST


def test_layers_that_come_and_go_are_followed():
    digest = Digest()
    digest.take_findings([finding("b")])
    digest.of([frame("Output Norm", ["a", "b"], {"mean": [1.0, 2.0]})])
    found = digest.of([frame("Output Norm", ["a", "c", "d"], {"mean": [1.0, 2.0, 6.0]})])
    assert found["output_norm/max"] == 6
    assert "worst/b/output_norm" not in found


def test_everything_that_matches_is_shown_one_by_one():
    frames = [
        frame(
            "Output Norm", ["h.0.fc", "h.1.fc"], {"mean": [1.0, math.nan], "max": [3.0, 4.0]}, nonfinite=[[0, 2]] * 2
        ),
        frame("Norm Comparison", ["h.0.fc"], {"share": [1.0]}, kind=TagType.RELATIONS, role="share"),
        total("Loss", train_loss=0.5),
        TagFrame.empty("Nothing", TagType.NUMERICAL),
    ]
    digest = Digest(re.compile(r"h\.1|comparison|^loss"))
    for _ in range(2):  # names are kept from tick to tick
        extra = {name: value for name, value in digest.of(frames).items() if name not in Digest().of(frames)}
        assert math.isnan(extra.pop("output_norm/h.1.fc/mean"))
        assert extra == {
            "output_norm/h.1.fc/max": 4.0,
            "output_norm/h.1.fc/nonfinite": 2.0,
            "norm_comparison/h.0.fc": 1.0,
            "loss/train_loss_mean": 0.5,
        }


def test_histograms_are_chosen_by_name_and_empty_ones_left_out():
    edges, counts = np.arange(4.0), np.array([[1, 2, 3], [0, 0, 0], [4, 5, 6]])
    binned = frame("Gradient Distribution", ["a", "b", "c"], {"q50": np.ones(3)})
    binned.bins = Bins(edges, counts)
    found = histograms([binned, frame("Other", ["a"], {"mean": [1.0]})], re.compile("/[bc]"))
    assert {name: one.counts.tolist() for name, one in found.items()} == {"gradient_distribution/c": [4, 5, 6]}


@pytest.mark.parametrize(
    ("layer", "block"),
    [
        ("transformer.h.3.mlp.c_fc.weight", "transformer.h.3"),
        ("0.weight", "0"),
        ("layer1.0.conv2", "layer1.0"),
        ("head", "head"),
        ("", ""),
    ],
)
def test_a_block_is_what_is_numbered(layer, block):
    assert block_of(layer) == block


def test_medians_are_those_of_numpy_without_nan():
    rows = np.random.default_rng(2).standard_normal((50, 7))
    rows[np.random.default_rng(3).random((50, 7)) < 0.4] = np.nan
    rows[0] = np.nan
    oracle = [np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else np.nan for row in rows]
    np.testing.assert_allclose(medians(rows), oracle, rtol=1e-14)
    assert math.isinf(medians(np.array([[math.inf, math.inf, 1.0]]))[0])
