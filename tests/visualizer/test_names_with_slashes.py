"""Losses, metrics and logged numbers may be called train/acc: every visualizer shows them under these names."""

import io

import pytest
import torch
from torch import nn

import monitorch
from monitorch import PyTorchInspector
from monitorch.lens import LossMetrics
from monitorch.store import open_run
from monitorch.visualizer import MatplotlibVisualizer, PlayerVisualizer, PrintVisualizer, RecorderVisualizer
from monitorch.visualizer.matplotlib.palette import line_styles


@pytest.fixture
def show():
    """Push a loss, two metrics and two logged numbers, all with slashes, and tick."""

    def run(visualizer, model=None):
        model, names = model or nn.Linear(2, 1), {"train_loss_str": "loss/train", "non_train_loss_str": "loss/val"}
        lens = LossMetrics(metrics=["train/acc", "val/acc"])
        inspector = PyTorchInspector([lens], module=model, visualizer=visualizer, **names)
        for epoch in range(2):
            inspector.push_loss(1.0 - epoch / 4, train=True)
            inspector.push_metric("train/acc", 0.5 + epoch / 4)
            inspector.push_metric("val/acc", 0.25)
            inspector.log({"lr/body": 0.125, "lr/head": 0.0625})
            inspector.tick_epoch()
        return inspector

    return run


def test_in_a_table(show):
    text = io.StringIO()
    show(PrintVisualizer(file=text))
    first = text.getvalue().partition("epoch 2")[0]
    for part in ("loss/train 1.000", "train/acc 0.5000", "val/acc 0.2500", "lr/body 0.1250", "lr/head 0.06250"):
        assert part in first


def test_in_figures_each_metric_has_a_curve_of_its_own(show):
    visualizer = MatplotlibVisualizer()
    show(visualizer)
    texts = {text.get_text() for text in visualizer.show_fig().findobj(lambda artist: hasattr(artist, "get_text"))}
    assert {"train/acc mean", "val/acc mean"} <= texts or {"train/acc", "val/acc"} <= texts
    assert {"lr/body", "lr/head"} <= {text.split(" ")[0] for text in texts}


def test_lines_of_two_curves_do_not_look_the_same():
    styles = line_styles(["train/acc mean", "val/acc mean", "train/acc max"])
    assert styles["train/acc mean"].colour == styles["train/acc max"].colour != styles["val/acc mean"].colour


def test_in_a_recording_and_played_again(show, tmp_path):
    file = tmp_path / "recording"
    show(RecorderVisualizer(file))
    text = io.StringIO()
    PlayerVisualizer(file, PrintVisualizer(file=text)).playback()
    assert "train/acc 0.5000" in text.getvalue()
    assert "lr/head 0.06250" in text.getvalue()


def test_in_a_run_and_on_a_progress_bar(tmp_path):
    model = nn.Linear(2, 1)
    options = {"train_loss_str": "loss/train", "folder": tmp_path, "run": "slashes", "tick_every": 1}
    with monitorch.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), **options) as watched:
        watched.push_loss(0.5, train=True)
        watched.log({"train/acc": 0.75})
        watched.tick()
        watched.records()  # waits until the tick is shown
        assert watched.postfix()["loss"] == 0.5
    with open_run(tmp_path / "slashes") as run:
        assert {"Logged/train/acc"} <= {one.title for names in run.lenses.values() for one in names.statistics}
