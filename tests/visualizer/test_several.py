"""A list of visualizers: each shows what it would show alone."""

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import OptionError
from monitorch.lens import LossMetrics, OutputNorm, ParameterNorm
from monitorch.visualizer.abstract_visualizer import AbstractVisualizer
from monitorch.visualizer.record_sink import RecordSink


class Calls(AbstractVisualizer):
    """Writes down every call of the protocol, and of what is optional."""

    def __init__(self):
        self.calls = []

    def register_tags(self, *args):
        self.calls.append(("tag", args[0]))

    def plot_numerical_values(self, *args):
        self.calls.append(("numbers", *args))

    def plot_probabilities(self, *args):
        self.calls.append(("probabilities", *args))

    def plot_relations(self, *args):
        self.calls.append(("relations", *args))

    def introduce_layers(self, names):
        self.calls.append(("layers", list(names)))

    def reset_fig(self):
        self.calls.append(("reset",))


class Sink(RecordSink):
    """Keeps the records and what it was told of layers."""

    def __init__(self):
        self.records, self.flushed, self.layers = [], 0, None

    def write(self, records):
        self.records += [(r.epoch, r.lens, r.tag, r.layer, r.statistic, r.value) for r in records]

    def flush(self):
        self.flushed += 1

    def describe_layers(self, layers):
        self.layers = layers


def train(visualizer):
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.MSELoss()
    lenses = [LossMetrics(loss_fn=loss_fn), OutputNorm(), ParameterNorm()]
    inspector = PyTorchInspector(lenses, module=model, visualizer=visualizer)
    for _ in inspector.range(2):
        loss_fn(model(torch.ones(2, 3)), torch.zeros(2, 4)).backward()
    inspector.detach()
    return inspector


def test_each_shows_what_it_would_show_alone():
    alone, together = (Calls(), Sink()), (Calls(), Sink())
    for visualizer in alone:
        train(visualizer)
    train(list(together))
    assert together[0].calls == alone[0].calls
    assert (together[1].records, together[1].flushed) == (alone[1].records, alone[1].flushed) != ([], 0)
    assert together[1].layers == alone[1].layers
    assert {("0", "Linear", 16), ("1", "ReLU", 0)} <= set(alone[1].layers)


def test_names_and_objects_may_be_mixed(capsys):
    sink = Sink()
    inspector = train(["print", sink])
    assert inspector.visualizer[1] is sink
    assert "epoch 2" in capsys.readouterr().out
    assert sink.flushed == 2


@pytest.mark.parametrize(
    ("given", "message"), [(["print", "paper"], "visualizer='paper' is unknown"), ([3], "not 3"), ([], "not")]
)
def test_a_list_is_checked_like_what_is_in_it(given, message):
    with pytest.raises(OptionError, match=message):
        PyTorchInspector([], visualizer=given)


def test_ticks_wait_unless_all_can_be_late():
    late, prompt = Sink(), Sink()
    late.deferred = True
    assert PyTorchInspector([], visualizer=[late]).visualizer.deferred
    assert not PyTorchInspector([], visualizer=[late, prompt]).visualizer.deferred
