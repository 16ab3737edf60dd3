"""Norms of outputs: tags, options, and layers that return more than a tensor."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.errors import MonitorchWarning
from monitorch.lens import OutputNorm

SMALL = ("Output Norm", False, False, True, "NUMERICAL", None)


def share(tag):
    return (tag, False, True, False, "RELATIONS", None)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [SMALL, share("Mean Output Norm Comparison")]),
        ({"log_scale": True}, [("Output Norm", True, *SMALL[2:]), share("Mean Output Log Norm Comparison")]),
        ({"comparison_plot": False}, [SMALL]),
        ({"line_aggregation": ("max", "mean")}, [SMALL, share("Max Output Norm Comparison")]),
        ({"comparison_aggregation": "std"}, [SMALL, share("Std Output Norm Comparison")]),
        ({"inplace": False, "comparison_aggregation": "Q1"}, [SMALL, share("Q1 Output Norm Comparison")]),
        ({"inplace": False, "line_aggregation": "IQR"}, [SMALL, share("Iqr Output Norm Comparison")]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(OutputNorm(**options)) == tags


def norms(output):
    return np.linalg.norm(output.detach().double().numpy().reshape(len(output), -1), axis=1).mean()


@pytest.fixture
def mean_norms(watch, shown):
    """The mean norms that a lens shows after one pass of a model."""

    def run(model, inputs, depth=-1, **options):
        inspector = watch(model, OutputNorm(**options), depth=depth)
        outputs = model(inputs)
        inspector.tick_epoch()
        return outputs, {layer: lines["mean"] for layer, lines in shown.values("Output Norm").items()}

    return run


class ReadsParts(nn.Module):
    """Uses what its part returns first."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, inputs):
        return self.part(inputs, inputs, inputs) if isinstance(self.part, nn.MultiheadAttention) else self.part(inputs)


@pytest.mark.parametrize("part", [nn.LSTM(4, 3, batch_first=True), nn.GRU(4, 3), nn.MultiheadAttention(4, 2)])
@pytest.mark.parametrize("depth", [-1, 1])
def test_layer_with_tuple_output_is_measured_when_included(part, depth, mean_norms, close):
    outputs, found = mean_norms(ReadsParts(part), torch.randn(5, 6, 4), depth, include=type(part))
    assert found == {"part": close(norms(outputs[0]))}


@pytest.mark.parametrize("index", [0, 1])
def test_output_index_chooses_the_part(index, mean_norms, close):
    outputs, found = mean_norms(ReadsParts(nn.GRU(4, 3)), torch.randn(5, 6, 4), include=nn.GRU, output_index=index)
    assert found == {"part": close(norms(outputs[index]))}


def test_output_index_may_be_a_key(mean_norms, close):
    class Named(nn.Module):
        def forward(self, inputs):
            return {"hidden": inputs, "logits": 2 * inputs}

    inputs = torch.randn(5, 4)
    _, found = mean_norms(ReadsParts(Named()), inputs, include=Named, output_index="logits")
    assert found == {"part": close(2 * norms(inputs))}


def test_output_index_does_not_cut_a_single_tensor(mean_norms, close):
    outputs, found = mean_norms(nn.Sequential(nn.Linear(4, 3)), torch.randn(5, 4), include=nn.Linear, output_index=1)
    assert found == {"0": close(norms(outputs))}


def test_excluded_class_wins_over_included_and_over_kind(mean_norms):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Tanh())
    _, found = mean_norms(model, torch.randn(2, 4), include=(nn.Linear, nn.ReLU), exclude=(nn.ReLU,))
    assert list(found) == ["0", "2"]
    _, found = mean_norms(model, torch.randn(2, 4), activation=False, include=nn.Linear)
    assert list(found) == ["0"]


def test_normalized_by_size_is_root_mean_square(mean_norms, close):
    model = nn.Sequential(nn.Identity())
    outputs, found = mean_norms(model, torch.randn(3, 2, 8), include=nn.Identity, normalize_by_size=True)
    assert found == {"0": close(norms(outputs) / 4)}


def test_every_sample_is_kept_in_memory_for_quantiles(watch, shown, close):
    model = nn.Sequential(nn.Tanh())
    inspector = watch(model, OutputNorm(inplace=False, line_aggregation=("median", "Q3"), range_aggregation="Q1-Q3"))
    samples = [norms(model(torch.randn(4, 3))) for _ in range(5)]
    inspector.tick_epoch()
    q1, q2, q3 = np.quantile(samples, [0.25, 0.5, 0.75])
    assert shown.values("Output Norm") == {"0": {"median": close(q2), "Q3": close(q3)}}
    assert shown.ranges("Output Norm") == {"0": {("Q1", "Q3"): close((q1, q3))}}


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, {"train"}),
        ({"evaluation_from_grad": True}, {"train", "eval with gradients"}),
        ({"evaluation_from_grad": False}, {"train", "train without gradients"}),
        ({"record_eval": True}, {"train", "train without gradients", "eval with gradients", "eval"}),
    ],
)
def test_which_passes_are_recorded(options, passes, watch, shown):
    model = nn.Sequential(nn.Tanh())
    inspector = watch(model, OutputNorm(**options))
    kinds = {
        "train": (True, True),
        "train without gradients": (True, False),
        "eval with gradients": (False, True),
        "eval": (False, False),
    }
    recorded = set()
    for kind, (training, gradients) in kinds.items():
        with torch.set_grad_enabled(gradients):
            model.train(training)(torch.randn(2, 2))
        inspector.tick_epoch()
        recorded |= {kind} if shown.values("Output Norm") else set()
    assert recorded == passes


def test_layer_that_did_not_run_is_left_out_and_shares_are_of_the_rest(watch, shown):
    model = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Tanh()})
    inspector = watch(model, OutputNorm())
    for used in (("a", "b"), ("a",), ("b",), ()):
        for name in used:
            model[name](torch.randn(3, 3))
        inspector.tick_epoch()
        assert tuple(shown.values("Output Norm")) == used
        compared = shown.values("Mean Output Norm Comparison")
        assert sum(compared.get("Mean Output Norm Comparison", {"none": 1.0}).values()) == pytest.approx(1)


def test_transformer_block_needs_include_and_then_shows_attention(mean_norms):
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    with pytest.warns(MonitorchWarning, match="OutputNorm found no layer to watch in this model.*include="):
        _, found = mean_norms(block, torch.randn(5, 3, 8))
    assert found == {}
    _, found = mean_norms(block, torch.randn(5, 3, 8), include=(nn.MultiheadAttention, nn.Linear))
    assert list(found) == ["self_attn", "linear1", "linear2"]  # out_proj is used as weights, never called


@pytest.mark.parametrize(
    ("output", "text"),
    [(torch.zeros(0, 3), r"its output is empty, shape \(0, 3\)"), (torch.arange(3), "holds no floating tensor")],
)
def test_output_without_numbers_is_left_out_with_one_warning(output, text, watch, shown):
    class Gives(nn.Module):
        def forward(self, given):
            return given

    model = nn.Sequential(Gives())
    inspector = watch(model, OutputNorm(include=Gives))
    with pytest.warns(MonitorchWarning, match=f"OutputNorm leaves out a sample of layer '0'.*{text}"):
        model(output)
    model(output)
    model(torch.full((2, 4), 3.0))
    inspector.tick_epoch()
    assert shown.values("Output Norm") == {"0": {"mean": 6.0}}


def test_shared_layer_is_recorded_once_with_all_its_calls(watch):
    shared = nn.Tanh()
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared), shared)
    lens = OutputNorm(inplace=False)
    inspector = watch(model, lens)
    model(torch.randn(3, 2))
    assert {name: len(samples) for name, samples in lens._preprocessors[0].value.items()} == {"0.0": 3}
    assert inspector.aliases["0.0"] == ["1.0", "2"]


def test_two_lenses_of_one_kind_both_write_their_own_numbers(watch, shown, close):
    model = nn.Sequential(nn.Tanh())
    with pytest.warns(MonitorchWarning, match="two OutputNorm lenses give numbers of layer '0' the same names"):
        inspector = watch(model, OutputNorm(), OutputNorm(normalize_by_size=True))
    output = model(torch.randn(4, 9))
    inspector.tick_epoch()
    values = [values["0"]["mean"] for _, tag, values, _ in shown.calls if tag == "Output Norm"]
    assert values == close([norms(output), norms(output) / 3])
