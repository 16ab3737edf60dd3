"""The life cycle that all lenses share."""

import copy
import warnings

import pytest
import torch
from torch import nn

from monitorch.errors import MonitorchWarning
from monitorch.inspector import InspectorState, PyTorchInspector
from monitorch.lens import (
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
)
from monitorch.lens.logged_scalars import LoggedScalars
from monitorch.preprocessor import GradientActivation
from monitorch.visualizer import Record
from monitorch.visualizer.record_sink import RecordSink


class Records(RecordSink):
    def __init__(self):
        super().__init__()
        self.written = []

    def write(self, records):
        self.written.append(list(records))


def all_lenses():
    return [OutputNorm(), OutputActivation(), OutputGradientGeometry(), ParameterGradientGeometry(), ParameterNorm()]


@pytest.mark.parametrize("lens", all_lenses()[:4], ids=lambda lens: type(lens).__name__)
def test_values_of_one_tick_are_not_repeated_at_the_next(lens, watch, shown):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    inspector = watch(model, lens)
    model(torch.randn(4, 3)).sum().backward()
    inspector.tick_epoch()
    assert any(values for _, _, values, _ in shown.calls)
    shown.calls.clear()
    inspector.tick_epoch()
    assert {tag for _, tag, *_ in shown.calls} == set(shown.tags)
    assert not any(values or ranges for _, _, values, ranges in shown.calls)


def test_layers_keep_the_order_of_the_model_at_every_tick(watch, shown):
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)))
    inspector = watch(model, ParameterGradientGeometry(), ParameterGradientActivation(), OutputGradientGeometry())
    for _ in inspector.range(3):
        model(torch.randn(4, 3)).sum().backward()
    names = [str(index) for index in range(12)]
    assert len(shown.calls) == 3 * 9
    for _, tag, values, ranges in shown.calls:
        if tag != "Warning Gradient Activations":
            assert list(values) == names
            assert ranges is None or list(ranges) == names


def test_what_was_handed_over_does_not_change_later():
    class Keeps:
        def __init__(self):
            self.seen = []

        def register_tags(self, tag, attributes):
            pass

        def plot_numerical_values(self, epoch, tag, values, ranges):
            self.seen.append((values, copy.deepcopy(values)))

    keeps, model = Keeps(), nn.Sequential(nn.Linear(3, 1))
    inspector = PyTorchInspector([ParameterGradientGeometry()], module=model, visualizer=keeps)
    for _ in inspector.range(3):
        model(torch.randn(4, 3)).sum().backward()
    assert all(held == copied for held, copied in keeps.seen)


def test_records_say_where_when_and_what(watch):
    model = nn.Sequential(nn.Linear(3, 1))
    sink = Records()
    inspector = watch(model, ParameterNorm(comparison_plot=False), visualizer=sink)
    for _ in range(3):
        model(torch.randn(2, 3))
    inspector.tick_epoch(epoch=7)
    (written,) = sink.written
    norm = model[0].weight.double().norm().item()
    assert list(sink.tags) == ["Weight Norm", "Bias Norm"]
    assert [(r.step, r.epoch, r.rank, r.lens, r.layer, r.tag, r.statistic) for r in written] == [
        (3, 7, 0, "ParameterNorm", "0", "Weight Norm", "mean"),
        (3, 7, 0, "ParameterNorm", "0", "Bias Norm", "mean"),
    ]
    assert isinstance(written[0], Record)
    assert written[0].value == pytest.approx(norm)


@pytest.mark.parametrize("lens", [OutputNorm(), OutputActivation(), ParameterNorm(parameters="kernel")])
def test_lens_without_layers_warns_once_per_model(lens, watch):
    model = nn.Sequential(nn.Linear(3, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inspector = watch(model, lens)
        for _ in inspector.range(2):
            model(torch.randn(2, 3)).sum().backward()
    assert [entry.category for entry in caught] == [MonitorchWarning]
    assert "found no layer to watch in this model; name some with" in str(caught[0].message)


def test_lens_moves_to_the_inspector_that_takes_it_last(watch, hooks_on):
    first, second = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())
    lens = OutputNorm(inplace=False)
    watch(first, lens)
    watch(second, lens)
    first(torch.randn(2, 2))
    second(torch.randn(2, 2))
    assert [len(samples) for samples in lens._preprocessors[0].value.values()] == [1]


def test_lens_works_without_an_inspector(shown):
    class State:
        is_active, on_error = True, "raise"

    model, lens = nn.Sequential(nn.ReLU()), OutputNorm(comparison_plot=False)
    lens.introduce_tags(shown)
    lens.register_leaf_module(model[0], "act", State())
    model(torch.ones(1, 4))
    lens.finalize_epoch()
    lens.vizualize(shown, 5)
    lens.reset_epoch()
    assert shown.calls[0][:2] == (5, "Output Norm")
    assert shown.values("Output Norm") == {"act": {"mean": 2.0}}
    lens.detach_from_module()


@pytest.fixture
def shown_by(shown, watch):
    """What lenses show of one training step of the same model."""

    def run(lenses):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
        inspector = watch(model, *lenses)
        model(torch.randn(4, 3)).sum().backward()
        shown.calls.clear()
        inspector.tick_epoch()
        return {tag: (values, ranges) for _, tag, values, ranges in shown.calls}

    return run


def test_all_lenses_share_a_model_without_disturbing_each_other(shown_by):
    apart = {}
    for lens in all_lenses():
        apart.update(shown_by([lens]))
    assert shown_by(all_lenses()) == apart


@pytest.mark.parametrize("lens", [LossMetrics(loss_fn=nn.MSELoss()), LoggedScalars()])
def test_foreign_preprocessor_of_another_kind_is_ignored(lens, hooks_on):
    lens.register_foreign_preprocessor(GradientActivation(death=True, inplace=True), InspectorState())
    lens.register_leaf_module(nn.Linear(1, 1), "layer", InspectorState())
    lens.finish_attach()
    assert lens._pushed(["train_loss"], None) == {}
    lens.detach_from_module()


def test_loss_lens_misses_no_layers(watch):
    inspector = watch(nn.Sequential(nn.Identity()), LossMetrics())  # a warning would be an error here
    assert inspector.state.attached
