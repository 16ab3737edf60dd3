"""TensorBoard as a tracker: what its own reader finds in the event file."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from torch.utils.tensorboard import SummaryWriter

from monitorch.visualizer.trackers import TensorBoardTracker
from monitorch.visualizer.trackers.tracker import Histogram, TrackedRun

RUN = TrackedRun("first", {})


def read(folder):
    found = EventAccumulator(str(folder), size_guidance=dict.fromkeys(("scalars", "histograms", "tensors"), 0))
    return found.Reload()


def text(found, tag):
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found.Tensors(tag)]


def test_numbers_texts_and_histograms_are_read_back(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(RUN)
    tracker.scalars(3, {"monitorch/loss": 0.5, "monitorch/\ud800": 1.0})
    tracker.scalars(5, {"monitorch/loss": math.nan, "monitorch/norm": math.inf})
    tracker.alert(4, "dead units in fc1", "No unit is active.", "error")
    tracker.note({"run": "/runs/first"})
    tracker.close("finished")
    found = read(tmp_path)
    assert next((event.step, event.value) for event in found.Scalars("monitorch/loss")) == (3, 0.5)
    assert math.isnan(found.Scalars("monitorch/loss")[1].value)
    assert found.Scalars("monitorch/norm")[0].value == math.inf
    assert text(found, "monitorch/findings") == [(4, "**error: dead units in fc1**: No unit is active.")]
    assert text(found, "monitorch/run") == [(0, "/runs/first")]


def test_a_tick_is_one_event(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(RUN)
    tracker.scalars(3, {f"monitorch/{n}": float(n) for n in range(50)})
    tracker.close("finished")
    [file] = tmp_path.iterdir()
    sizes = [len(event.summary.value) for event in LegacyEventFileLoader(str(file)).Load() if event.summary.value]
    assert sizes == [50]


def test_a_histogram_is_one_of_tensorboard(tmp_path):
    values = np.random.default_rng(0).standard_normal(1000)
    edges = np.linspace(-8, 8, 161)
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(RUN)
    tracker.histograms(7, {"monitorch/gradient/fc": Histogram(edges, np.histogram(values, edges)[0])})
    tracker.close("finished")
    [event] = read(tmp_path).Histograms("monitorch/gradient/fc")
    kept = event.histogram_value
    assert event.step == 7
    assert (kept.num, sum(kept.bucket)) == (1000, 1000)
    assert kept.min == pytest.approx(values.min(), abs=0.1)
    assert kept.max == pytest.approx(values.max(), abs=0.1)
    assert kept.sum == pytest.approx(values.sum(), abs=0.05 * 1000)
    below = dict(zip(np.round(kept.bucket_limit, 1).tolist(), np.cumsum(kept.bucket).tolist(), strict=True))
    assert below[0.5] == (values < 0.5).sum()


def test_the_writer_of_the_user_is_used_and_stays_open(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        tracker = TensorBoardTracker(writer=writer)
        tracker.start(RUN)
        tracker.scalars(3, {"monitorch/loss": 0.5})
        tracker.close("finished")
        writer.add_scalar("own", 1.0, 9)
    found = read(tmp_path)
    assert set(found.Tags()["scalars"]) == {"monitorch/loss", "own"}
    assert len(list(tmp_path.iterdir())) == 1


def test_by_default_the_folder_has_the_name_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = TensorBoardTracker()
    assert list(tmp_path.iterdir()) == []  # every process makes one, and only one of them starts it
    tracker.start(RUN)
    tracker.close("finished")
    assert [file.parent.name for file in (tmp_path / "runs").rglob("events*")] == ["first"]
