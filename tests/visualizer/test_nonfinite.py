"""Samples that were left out because they were not finite are seen in every visualizer."""

import io
import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from monitorch import PyTorchInspector
from monitorch.lens import LossMetrics, ParameterGradientGeometry
from monitorch.visualizer import (
    MatplotlibVisualizer,
    PlayerVisualizer,
    PrintVisualizer,
    RecorderVisualizer,
    TensorBoardVisualizer,
)


@pytest.fixture
def run():
    """Two ticks of four steps each; in the second tick one gradient is NaN."""

    def train(visualizer):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        lens = ParameterGradientGeometry(parameters="weight", compute_correlation=False)
        inspector = PyTorchInspector([lens], module=model, visualizer=visualizer)
        for step in range(8):
            model.zero_grad()
            (model(torch.ones(2, 3)).sum() * (math.nan if step == 6 else 1.0)).backward()
            if step % 4 == 3:
                inspector.tick_epoch()
        return inspector

    return train


def marks_of(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_print_marks_the_number(run):
    file = io.StringIO()
    run(PrintVisualizer(file=file))
    first, second = file.getvalue().split("epoch 2")
    assert "!" not in first
    assert second.count(" !1") >= 2


def test_figure_marks_the_epoch(run):
    visualizer = run(MatplotlibVisualizer()).visualizer
    figure = visualizer.show_fig()
    assert marks_of(figure) == [" NaN or Inf left out "] * 2
    visualizer.reset_fig()


def test_tensorboard_has_the_count(run, tmp_path):
    with TensorBoardVisualizer(tmp_path) as visualizer:
        run(visualizer)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("weight_gradient_norm/1/nonfinite")] == [(8, 1.0)]


def test_tensorboard_counts_each_curve_of_a_tag(tmp_path):
    lens = LossMetrics(metrics=["one", "two"])
    with TensorBoardVisualizer(tmp_path) as visualizer:
        inspector = PyTorchInspector([lens], module=nn.Linear(2, 1), visualizer=visualizer)
        for name, broken in (("one", 3), ("two", 1)):
            for sample in range(4):
                inspector.push_metric(name, math.nan if sample < broken else 1.0)
        inspector.tick_epoch()
    events = EventAccumulator(str(tmp_path)).Reload()
    counts = {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"] if "nonfinite" in name}
    assert counts == {"metrics/one_nonfinite": 3.0, "metrics/two_nonfinite": 1.0}


def test_recording_keeps_the_count_and_the_order_of_layers(run, tmp_path):
    path = tmp_path / "run.jsonl"
    with RecorderVisualizer(path) as recorder:
        run(recorder)
    file = io.StringIO()
    PlayerVisualizer(path, PrintVisualizer(file=file)).playback()
    assert file.getvalue().split("epoch 2")[1].count(" !1") >= 2
    player = PlayerVisualizer(path, "matplotlib").playback()
    assert marks_of(player.visualizer.show_fig()) == [" NaN or Inf left out "] * 2
    player.visualizer.reset_fig()


def test_recording_with_wrong_arguments_of_an_optional_call_is_damaged(tmp_path):
    path = tmp_path / "run.jsonl"
    with RecorderVisualizer(path) as recorder:
        recorder.introduce_layers(["b", "a"])
        session = recorder.session
    with path.open("a") as file:
        file.write(f'{{"session": "{session}", "method": "count_nonfinite", "arguments": [1, "t", [2]]}}\n')
    printed = PrintVisualizer(file=io.StringIO())
    with pytest.warns(UserWarning, match="line 3 .* is damaged"):
        PlayerVisualizer(path, printed).playback()
