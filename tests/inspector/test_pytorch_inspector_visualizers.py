"""Where an inspector shows its numbers, and what happens when that fails or changes."""

import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.errors import OptionError
from monitorch.lens import LossMetrics, OutputNorm, ParameterNorm
from monitorch.visualizer import PrintVisualizer, RecorderVisualizer, TensorBoardVisualizer
from monitorch.visualizer.record_sink import RecordSink


class Records(RecordSink):
    def __init__(self):
        super().__init__()
        self.kept, self.flushes = [], 0

    def write(self, records):
        self.kept += records

    def flush(self):
        self.flushes += 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("print", "PrintVisualizer"),
        ("dummy", "DummyVisualizer"),
        ("matplotlib", "MatplotlibVisualizer"),
        ("tensorboard", "TensorBoardVisualizer"),
    ],
)
def test_visualizers_by_name(name, kind, model, train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # event files go to the working directory
    inspector = PyTorchInspector([OutputNorm()], module=model, visualizer=name)
    assert type(inspector.visualizer).__name__ == kind
    for _ in inspector.range(2):
        train(model)
    assert inspector.state.counter == 3


def test_print_is_the_default(model):
    assert isinstance(PyTorchInspector([OutputNorm()], module=model).visualizer, PrintVisualizer)


@pytest.mark.parametrize("error", [OptionError, AttributeError])
def test_unknown_name_lists_the_choices(error, model):
    inspector = PyTorchInspector([OutputNorm()], module=model, visualizer="dummy")
    with pytest.raises(error, match="'mathplotlib' is unknown; choose from 'print', 'dummy', 'matplotlib'"):
        inspector.visualizer = "mathplotlib"


def test_old_spelling_works_as_keyword_and_attribute(shown, new_shown, model):
    inspector = PyTorchInspector([OutputNorm()], module=model, vizualizer=shown)
    assert inspector.vizualizer is inspector.visualizer is shown
    inspector.vizualizer = other = new_shown()
    assert inspector.visualizer is other


def test_swapped_visualizer_learns_tags_and_layers_and_gets_the_next_tick(shown, new_shown, model, train):
    inspector = PyTorchInspector([OutputNorm(), LossMetrics()], module=model, visualizer=shown)
    train(model)
    inspector.tick_epoch()
    inspector.visualizer = other = new_shown()
    assert other.tags == shown.tags
    assert other.layers == shown.layers == ["", "0", "1", "2"]
    train(model)
    inspector.tick_epoch()
    assert (shown.labels(), other.labels()) == ([1], [2])
    assert other.layers_of("Output Norm") == {"1"}


def test_figures_work_after_a_swap(model, train):
    inspector = PyTorchInspector([ParameterNorm()], module=model, visualizer="dummy")
    inspector.visualizer = "matplotlib"
    train(model)
    inspector.tick_epoch()
    titles = [sub.get_suptitle() for sub in inspector.visualizer.show_fig().subfigs for sub in (sub, *sub.subfigs)]
    assert "Weight Norm" in titles


def test_visualizer_swapped_while_detached_meets_the_model_at_attach(shown, model, train, tmp_path):
    inspector = PyTorchInspector([OutputNorm()], visualizer="dummy", module=model)
    inspector.detach().visualizer = shown
    assert list(shown.tags) == ["Output Norm", "Mean Output Norm Comparison"]
    inspector.attach(model)
    train(model)
    inspector.tick_epoch()
    assert shown.labels() == [1]
    inspector.detach().visualizer = TensorBoardVisualizer(log_dir=str(tmp_path))
    inspector.attach(model)
    train(model)
    inspector.tick_epoch()
    assert list(tmp_path.iterdir())


def test_visualizer_with_only_the_four_methods_is_enough(new_shown, model, train):
    class Plain(new_shown):
        introduce_layers = reset_fig = property(lambda self: (_ for _ in ()).throw(AttributeError))

    inspector = PyTorchInspector([OutputNorm()], visualizer=Plain(), module=model)
    train(model)
    inspector.tick_epoch()
    assert inspector.visualizer.labels() == [1]
    inspector.detach()


def test_records_know_step_epoch_lens_and_layer(model, train):
    inspector = PyTorchInspector([OutputNorm(range_aggregation=None)], visualizer=Records(), module=model)
    train(model, steps=3)
    with torch.no_grad():
        model(torch.ones(1, 3))  # no training step
    inspector.tick_epoch(epoch=7)
    train(model, steps=2)
    inspector.tick_epoch()
    records = [r for r in inspector.visualizer.kept if r.tag == "Output Norm"]
    assert [(r.step, r.epoch, r.rank, r.lens, r.layer, r.statistic) for r in records] == [
        (3, 7, 0, "OutputNorm", "1", "mean"),
        (5, 8, 0, "OutputNorm", "1", "mean"),
    ]
    assert inspector.visualizer.flushes == 2


def full_disk(new_shown):
    class FullDisk(new_shown):
        def plot_numerical_values(self, *call):
            raise OSError(28, "No space left on device")

    return FullDisk()


def test_full_disk_warns_and_training_goes_on(new_shown, shown, model, train):
    inspector = PyTorchInspector([OutputNorm()], visualizer=full_disk(new_shown), module=model)
    train(model)
    with pytest.warns(MonitorchWarning, match="FullDisk could not show tick 1: .*No space left"):
        inspector.tick_epoch()
    inspector.visualizer = shown
    train(model)
    inspector.tick_epoch()
    assert list(shown.line("Output Norm", "1")) == [2]


def test_full_disk_raises_for_the_user_who_asks_for_errors(new_shown, model):
    inspector = PyTorchInspector([OutputNorm()], visualizer=full_disk(new_shown), module=model, on_error="raise")
    with pytest.raises(OSError, match="No space left"):
        inspector.tick_epoch()


def test_two_inspectors_may_record_into_one_file(tmp_path, model, train):
    path = tmp_path / "run.jsonl"
    inspectors = [
        PyTorchInspector([OutputNorm()], visualizer=RecorderVisualizer(path), module=m)
        for m in (model, nn.Sequential(nn.Linear(3, 1), nn.Tanh()))
    ]
    for inspector in inspectors:
        train(model)
        inspector.tick_epoch()
    assert path.read_text().count('"format"') == 2


def test_records_are_those_of_the_last_active_tick(model, train, new_shown):
    inspector = PyTorchInspector([ParameterNorm()], module=model, visualizer=new_shown(), is_active_fn=2)
    assert inspector.records() == []
    for _ in range(3):
        train(model)
        inspector.tick_epoch()
    records = inspector.records()
    assert {record.epoch for record in records} == {2}
    assert [record.layer for record in records if record.tag == "Weight Norm"] == [
        name for name in inspector.layers if hasattr(model.get_submodule(name), "weight")
    ]
