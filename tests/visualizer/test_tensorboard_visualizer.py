import math
import re
import socket
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from torch import nn

import monitorch
from monitorch import cli
from monitorch.visualizer import Record, StoreVisualizer, TagAttributes, TagType, TensorBoardVisualizer


def record(tag, layer, statistic, value, step=3, time=100.5):
    return Record(step, 8, time, 0, "Lens", layer, tag, statistic, value)


def summaries(folder):
    """The events that hold numbers, as ``(step, wall time, {name: number})``."""
    events = [event for file in sorted(folder.iterdir()) for event in LegacyEventFileLoader(str(file)).Load()]
    return [
        (event.step, event.wall_time, {value.tag: value.simple_value for value in event.summary.value})
        for event in events
        if event.HasField("summary")
    ]


def write(folder, *lists, tags=()):
    with TensorBoardVisualizer(folder) as visualizer:
        for tag in tags:
            visualizer.register_tags(tag, TagAttributes(False, True, False, TagType.RELATIONS))
        for records in lists:
            visualizer.write(records)


@pytest.mark.parametrize(
    ("tag", "layer", "statistic", "name"),
    [
        ("Weight Norm", "lin1", "mean", "weight_norm/lin1/mean"),
        ("Output Norm", "block.relu", "-σ", "output_norm/block.relu/-std"),
        ("Output Norm", "relu", "+σ", "output_norm/relu/+std"),
        ("Loss", "Loss", "train_loss mean", "loss/train_loss_mean"),
        (
            "Warning Output Activations",
            "Warning Output Activations",
            "worst death_rate",
            "warning_output_activations/worst_death_rate",
        ),
        ("Weight Norm Comparison", "Weight Norm Comparison", "lin1", "weight_norm_comparison/lin1"),
    ],
)
def test_scalar_names(tmp_path, tag, layer, statistic, name):
    write(tmp_path, [record(tag, layer, statistic, 0.5)], tags=["Weight Norm Comparison"])
    assert summaries(tmp_path) == [(3, 100.5, {name: 0.5})]


@pytest.mark.parametrize(
    ("arguments", "joined"),
    [
        (("Output Norm", "ReLU 1"), "output_norm/relu_1"),
        (("Loss", "train_loss +σ"), "loss/train_loss_+std"),
        (("A", "B", " - "), "a_-_b"),
    ],
)
def test_transform_tag_str(arguments, joined):
    assert TensorBoardVisualizer.transform_tag_str(*arguments) == joined


def test_one_event_for_each_list_of_records(tmp_path):
    layers = [f"layer{i}" for i in range(50)]
    write(tmp_path, *([record("Output Norm", layer, "mean", 2.0, step) for layer in layers] for step in range(4)), [])
    assert [(step, len(values)) for step, _, values in summaries(tmp_path)] == [(step, 50) for step in range(4)]


def test_one_event_for_each_step_in_a_list(tmp_path):
    steps = [1, 2, 1, 2]
    write(tmp_path, [record("Norm", f"layer{i}", "mean", i, step, 10.0 * step) for i, step in enumerate(steps)])
    assert summaries(tmp_path) == [
        (1, 10.0, {"norm/layer0/mean": 0.0, "norm/layer2/mean": 2.0}),
        (2, 20.0, {"norm/layer1/mean": 1.0, "norm/layer3/mean": 3.0}),
    ]


def test_tensorboard_reads_scalars_back(tmp_path):
    values = [1.5, math.nan, math.inf, -math.inf, 0.0]
    write(tmp_path, *([record("Output Norm", "relu", "mean", value, step)] for step, value in enumerate(values)))
    accumulator = EventAccumulator(str(tmp_path)).Reload()
    scalars = accumulator.Scalars("output_norm/relu/mean")
    assert [scalar.step for scalar in scalars] == [0, 1, 2, 3, 4]
    assert [scalar.value for scalar in scalars] == pytest.approx(values, nan_ok=True)


def test_plot_methods_end_in_the_same_names_and_make_no_run_folders(tmp_path):
    with TensorBoardVisualizer(tmp_path) as visualizer:
        visualizer.register_tags("Share", TagAttributes(False, True, False, TagType.RELATIONS))
        visualizer.plot_numerical_values(1, "Norm", {"fc": {"mean": 1.0}}, {"fc": {("-σ", "+σ"): (0.5, 1.5)}})
        visualizer.plot_probabilities(1, "Rates", {"fc": {"death_rate": 0.25}})
        visualizer.plot_relations(1, "Share", {"Share": {"fc": 0.75, "head": 0.25}})
    assert [values for _, _, values in summaries(tmp_path)] == [
        {"norm/fc/mean": 1.0, "norm/fc/-std": 0.5, "norm/fc/+std": 1.5},
        {"rates/fc/death_rate": 0.25},
        {"share/fc": 0.75, "share/head": 0.25},
    ]
    assert [path.is_file() for path in tmp_path.iterdir()] == [True]


def test_flush_makes_numbers_readable_before_the_end(tmp_path):
    with TensorBoardVisualizer(tmp_path) as visualizer:
        visualizer.write([record("Norm", "fc", "mean", 1.0)])
        visualizer.flush()
        assert len(summaries(tmp_path)) == 1


def test_a_visualizer_that_gets_no_numbers_leaves_nothing_behind(tmp_path):
    with TensorBoardVisualizer(tmp_path / "run") as visualizer:
        visualizer.register_tags("Norm", TagAttributes(False, False, False, TagType.NUMERICAL))
        visualizer.write([])
        visualizer.flush()
    assert not (tmp_path / "run").exists()


def test_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TensorBoardVisualizer(comment="_trial") as visualizer:
        assert visualizer.writer is visualizer.writer
        log_dir = visualizer.writer.log_dir
    host = re.escape(socket.gethostname())
    assert re.fullmatch(rf"runs/\w{{3}}\d\d_\d\d-\d\d-\d\d_{host}_trial", log_dir)
    assert (tmp_path / log_dir).is_dir()


def test_options_reach_the_writer(tmp_path):
    with TensorBoardVisualizer(tmp_path, filename_suffix=".mine") as visualizer:
        visualizer.write([record("Norm", "fc", "mean", 1.0)])
    assert [path.suffix for path in tmp_path.iterdir()] == [".mine"]


def test_unknown_options_are_refused_at_once(tmp_path):
    with pytest.raises(TypeError, match="flush_seconds"):
        TensorBoardVisualizer(tmp_path, flush_seconds=3)


def test_closing_twice_is_fine_and_writing_afterwards_is_not(tmp_path):
    visualizer = TensorBoardVisualizer(tmp_path)
    visualizer.write([record("Norm", "fc", "mean", 1.0)])
    visualizer.close()
    visualizer.close()
    visualizer.flush()
    with pytest.raises(ValueError, match="TensorBoardVisualizer is closed and takes no more numbers"):
        visualizer.write([record("Norm", "fc", "mean", 2.0)])
    assert len(summaries(tmp_path)) == 1


def test_without_tensorboard_the_error_holds_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"TensorBoardVisualizer .* pip install 'monitorch\[tensorboard\]'"):
        TensorBoardVisualizer()


def test_an_export_of_the_stored_run_has_the_same_names_steps_and_numbers(tmp_path):
    model, loss_fn = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shown = [TensorBoardVisualizer(tmp_path / "live"), StoreVisualizer(tmp_path / "runs", "run")]
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, visualizer=shown, every=1, tick_every=3) as watched:
        for step in range(8):
            x = torch.randn(4, 3)
            loss_fn(model(x), torch.zeros(4, 1)).backward()
            optimizer.step()
            if step == 4:
                model[0].weight.data[0, 0] = math.nan
        watched.log(accuracy=0.5)
    for visualizer in shown:
        visualizer.close()
    out = ["--to", "tensorboard", "-o", str(tmp_path / "exported"), "--all"]
    assert cli.main(["export", "run", "--runs", str(tmp_path / "runs"), *out]) == 0

    def scalars(folder):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        return {tag: [(e.step, repr(e.value)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    live, exported = scalars(tmp_path / "live"), scalars(tmp_path / "exported")
    counts = {tag for tag in exported if tag.endswith("nonfinite")}  # live only those that are not zero
    assert {tag: exported[tag] for tag in live.keys() - counts} == {tag: live[tag] for tag in live.keys() - counts}
    assert live.keys() <= exported.keys() <= live.keys() | counts
    for tag in live.keys() & counts:
        assert live[tag] == [(step, count) for step, count in exported[tag] if float(count)]
    assert live["loss/train_loss_mean"] == exported["loss/train_loss_mean"]
    assert [step for step, _ in live["loss/train_loss_mean"]] == [3, 6, 8]
    assert {"logged/accuracy_mean", "parameter_norm/0.weight/mean", "mean_output_norm_comparison/1"} <= live.keys()
