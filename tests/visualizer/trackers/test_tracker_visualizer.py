"""How ticks get to a tracker: by a thread of its own, when they are due, and whatever happens there."""

import os
import threading

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.diagnosis.finding import Finding, Remedy
from monitorch.errors import MonitorchWarning
from monitorch.inspector import PyTorchInspector
from monitorch.lens import Distribution, OutputNorm, ParameterNorm
from monitorch.statistic import Statistic
from monitorch.store import Event
from monitorch.visualizer import Record
from monitorch.visualizer.abstract_visualizer import TagType
from monitorch.visualizer.frame import Bins, Moment, TagFrame
from monitorch.visualizer.trackers import TrackerVisualizer, tracker_visualizer
from monitorch.visualizer.trackers.tracker import TrackedRun
from tests.visualizer.trackers.kept import KeptTracker

RUN = TrackedRun("first", {"lr": 0.1})


def norms(*numbers):
    statistics = (Statistic("Output Norm/mean"),)
    return TagFrame("Output Norm", TagType.NUMERICAL, ("fc1", "fc2"), statistics, np.array([numbers]))


def losses(**named):
    statistics = tuple(Statistic.of("Loss", "mean", name) for name in named)
    return TagFrame("Loss", TagType.NUMERICAL, ("Loss",), statistics, np.array([[number] for number in named.values()]))


def binned(*counts):
    found = norms(1.0, 1.0)
    found.tag, found.bins = "Gradient Distribution", Bins(np.arange(len(counts) + 1.0), np.array([counts, counts]))
    return found


def show(visualizer, step, *frames):
    visualizer.begin_tick(step, step, "step")
    visualizer.write_frames(Moment(step, step, 100.0, 0, "Lens"), frames)


def tick(visualizer, step, *frames):
    show(visualizer, step, *frames)
    visualizer.flush()


def many_ticks(visualizer):
    for step in range(1, 200):
        tick(visualizer, step, norms(1.0, 2.0))


def finding(layer, severity="error"):
    return Finding("dead_units", severity, layer, 5, 6, "No unit is active.", Remedy("Lower the rate."))


def test_a_thread_of_its_own_writes_and_the_user_s_thread_starts_and_closes():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        visualizer.begin(RUN, {"run": "/runs/first"})
        tick(visualizer, 1, norms(1.0, 3.0), losses(train_loss=0.5))
    assert tracker.of("start") == [(RUN,)]
    assert tracker.of("note") == [({"run": "/runs/first"},)]
    assert tracker.series("output_norm/max") == [(1, 3.0)]
    assert tracker.series("loss/train_loss") == [(1, 0.5)]
    assert tracker.of("close") == [("finished",)]
    here = {method for method, thread in tracker.threads if thread is threading.current_thread()}
    assert here == {"start", "close"}
    assert visualizer.busy_seconds > 0


def test_it_starts_by_itself_at_the_first_number_and_not_without_one():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        visualizer.flush()
    assert tracker.calls == []
    with TrackerVisualizer(tracker) as visualizer:
        tick(visualizer, 1, norms(1.0, 3.0))
    assert [method for method, *_ in tracker.calls] == ["start", "scalars", "close"]


def test_records_are_taken_like_frames():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        visualizer.write([Record(4, 1, 100.0, 0, "Norm", layer, "Output Norm", "mean", 2.0) for layer in ("a", "b")])
        visualizer.flush()
    assert tracker.series("output_norm/median") == [(4, 2.0)]


def test_numbers_of_earlier_steps_come_at_their_steps():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        show(visualizer, 3, losses(val_loss=0.25))
        tick(visualizer, 5, norms(1.0, 2.0), losses(train_loss=0.5))
    assert [step for step, _ in tracker.of("scalars")] == [3, 5]
    assert tracker.series("loss/val_loss") == [(3, 0.25)]
    assert tracker.series("output_norm/max") == [(5, 2.0)]


def test_every_third_tick_is_written_and_the_last():
    tracker = KeptTracker(every_ticks=3)
    with TrackerVisualizer(tracker) as visualizer:
        for step in range(1, 9):
            tick(visualizer, step, norms(1.0, float(step)), losses(train_loss=float(step)))
    assert tracker.series("output_norm/max") == [(1, 1.0), (4, 4.0), (7, 7.0), (8, 8.0)]
    assert tracker.series("loss/train_loss") == [(1, 1.0), (4, 4.0), (7, 7.0), (8, 8.0)]


def test_a_rare_number_of_a_tick_that_is_not_due_is_not_lost():
    tracker = KeptTracker(every_ticks=4)
    with TrackerVisualizer(tracker) as visualizer:
        for step in range(1, 6):
            rare = {"val_loss": 0.25} if step == 3 else {}
            tick(visualizer, step, losses(train_loss=float(step), **rare))
    assert tracker.series("loss/val_loss") == [(3, 0.25)]
    assert tracker.series("loss/train_loss") == [(1, 1.0), (5, 5.0)]


def test_ticks_that_come_too_soon_are_left_out(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(tracker_visualizer.time, "monotonic", lambda: now[0])
    tracker = KeptTracker(every_seconds=5)
    visualizer = TrackerVisualizer(tracker)
    for step in range(1, 13):
        tick(visualizer, step, losses(train_loss=float(step)))
        now[0] += 1.0
    visualizer.close()
    assert tracker.series("loss/train_loss") == [(1, 1.0), (6, 6.0), (11, 11.0), (12, 12.0)]


def test_histograms_come_by_name_and_not_if_they_are_not_wanted():
    kept, none, one = KeptTracker(), KeptTracker(histograms=None), KeptTracker(histograms="fc2")
    for tracker in (kept, none, one):
        with TrackerVisualizer(tracker) as visualizer:
            tick(visualizer, 2, binned(1, 2, 0))
    [(step, found)] = kept.of("histograms")
    assert step == 2
    assert {name: histogram.counts.tolist() for name, histogram in found.items()} == {
        "monitorch/gradient_distribution/fc1": [1, 2, 0],
        "monitorch/gradient_distribution/fc2": [1, 2, 0],
    }
    assert none.of("histograms") == []
    assert list(one.of("histograms")[0][1]) == ["monitorch/gradient_distribution/fc2"]


def test_slow_histograms_come_less_often(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(tracker_visualizer.time, "monotonic", lambda: now[0])

    class Slow(KeptTracker):
        def histograms(self, step, histograms):
            super().histograms(step, histograms)
            now[0] += 1.0

    tracker = Slow()
    visualizer = TrackerVisualizer(tracker)
    for step in range(1, 50):
        tick(visualizer, step, binned(1, 2))
        now[0] += 1.0
    visualizer.close()
    assert len(tracker.of("scalars")) == 49
    assert len(tracker.of("histograms")) <= 4


def test_warnings_and_errors_are_alerts_and_other_events_are_not():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        visualizer.begin(RUN)
        visualizer.show_event(Event(7, "dead units", "error", layer="fc1", body={"text": "No unit is active."}))
        visualizer.show_event(Event(8, "loss spike", "warning", body={"numbers": {"factor": 12.0}}))
        visualizer.show_event(Event(9, "checkpoint", "info"))
    assert tracker.of("alert") == [
        (7, "dead units in fc1", "No unit is active.", "error"),
        (8, "loss spike", "factor 12", "warning"),
    ]


def test_one_problem_that_leads_to_many_is_not_told_for_ever():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        visualizer.begin(RUN)
        for step in range(100):
            visualizer.show_event(Event(step, "not finite", "error"))
    assert len(tracker.of("alert")) == tracker_visualizer.MOST_ALERTS


def test_findings_are_counted_and_told_at_the_end(tmp_path):
    report = tmp_path / "report.html"
    report.write_text("page", encoding="utf-8")
    tracker = KeptTracker()
    visualizer = TrackerVisualizer(tracker)
    visualizer.show_findings([])
    tick(visualizer, 4, norms(1.0, 2.0))
    visualizer.show_findings([finding("fc2"), finding(None, "warning")])
    visualizer.close("crashed", report)
    assert tracker.series("findings/errors") == [(4, 0), (4, 1)]
    ended, written = tracker.of("note")
    assert ended[0]["verdict"] == "2 problems since step 5"
    first, second = ended[0]["findings"].splitlines()
    assert first == "error: dead units in fc2 since step 5: No unit is active. Lower the rate."
    assert second.startswith("warning: dead units since step 5")
    assert written == ({"report": str(report)},)
    assert tracker.of("artifact") == [(report, "page")]
    assert tracker.of("close") == [("crashed",)]


def test_without_findings_and_report_nothing_is_told(tmp_path):
    report = tmp_path / "report.html"
    report.write_text("page", encoding="utf-8")
    tracker = KeptTracker(report=False)
    visualizer = TrackerVisualizer(tracker)
    tick(visualizer, 4, norms(1.0, 2.0))
    visualizer.close("finished", report)
    assert [method for method, *_ in tracker.calls] == ["start", "scalars", "close"]


@pytest.mark.parametrize("method", ["scalars", "histograms", "alert", "note", "artifact"])
def test_a_tracker_that_fails_warns_once_and_the_rest_goes_on(method, tmp_path):
    report = tmp_path / "report.html"
    report.write_text("page", encoding="utf-8")
    tracker = KeptTracker(fails=[method])
    visualizer = TrackerVisualizer(tracker)
    visualizer.begin(RUN, {"run": "here"})

    def train():
        for step in (1, 2, 3):
            tick(visualizer, step, norms(1.0, 2.0), binned(1, 2))
            visualizer.show_event(Event(step, "dead units", "error"))
        visualizer.show_findings([])
        visualizer.close("finished", report)

    with pytest.warns(MonitorchWarning, match="KeptTracker failed: OSError: no space left. Training goes on") as told:
        train()
    assert len(told) == 1
    reached = {called for called, *_ in tracker.calls}
    assert {"start", "close"} <= reached
    assert method not in reached


def test_a_tracker_that_cannot_start_is_left_out_with_one_warning():
    tracker = KeptTracker(fails=["start"])
    visualizer = TrackerVisualizer(tracker)
    with pytest.warns(MonitorchWarning, match="KeptTracker cannot be started: OSError: no space left"):
        visualizer.begin(RUN)
    tick(visualizer, 1, norms(1.0, 2.0))
    visualizer.close()
    assert tracker.calls == []


def test_a_tracker_that_cannot_be_closed_only_warns():
    visualizer = TrackerVisualizer(KeptTracker(fails=["close"]))
    tick(visualizer, 1, norms(1.0, 2.0))
    with pytest.warns(MonitorchWarning, match="KeptTracker cannot be finished: OSError: no space left"):
        visualizer.close()


class Stuck(KeptTracker):
    """Does not answer before it is told to."""

    def __init__(self):
        super().__init__()
        self.reached, self.answer = threading.Event(), threading.Event()

    def scalars(self, step, numbers):
        self.reached.set()
        self.answer.wait()
        super().scalars(step, numbers)


def test_a_tracker_that_hangs_holds_nothing_up(monkeypatch):
    monkeypatch.setattr(tracker_visualizer, "CLOSE_SECONDS", 0.01)
    tracker = Stuck()
    visualizer = TrackerVisualizer(tracker)
    with pytest.warns(MonitorchWarning, match="is slower than the ticks, so some are left out") as told:
        many_ticks(visualizer)
    assert len(told) == 1
    with pytest.warns(MonitorchWarning, match="Stuck did not answer for 0 seconds: what was left is not written"):
        visualizer.close()
    assert tracker.of("close") == []
    tracker.answer.set()


def test_a_slow_tracker_gets_what_fits_in_order():
    tracker = Stuck()
    visualizer = TrackerVisualizer(tracker)
    tick(visualizer, 0, norms(1.0, 2.0))
    assert tracker.reached.wait(60)
    with pytest.warns(MonitorchWarning, match="some are left out"):
        many_ticks(visualizer)
    tracker.answer.set()
    visualizer.close()
    assert [step for step, _ in tracker.of("scalars")] == list(range(1 + tracker_visualizer.QUEUE_LENGTH))


def test_after_the_end_nothing_is_written_and_nothing_said():
    tracker = KeptTracker()
    visualizer = TrackerVisualizer(tracker)
    tick(visualizer, 1, norms(1.0, 2.0))
    visualizer.close()
    written = list(tracker.calls)
    visualizer.close()
    tick(visualizer, 2, norms(1.0, 2.0))
    visualizer.show_event(Event(2, "dead units", "error"))
    visualizer.show_findings([])
    assert tracker.calls == written


def test_a_continued_run_counts_on():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        visualizer.begin(RUN, first_step=100)
        tick(visualizer, 1, norms(1.0, 2.0))
        visualizer.show_event(Event(2, "dead units", "error"))
        visualizer.show_findings([finding("fc1")])
    assert tracker.of("scalars")[0][0] == 101
    assert tracker.of("alert")[0][0] == 102
    assert tracker.of("note")[0][0]["verdict"] == "1 problem since step 105"


def test_a_continued_inspector_counts_by_itself():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        visualizer.begin(RUN, first_step=100)
        visualizer.continue_from(100)
        tick(visualizer, 101, norms(1.0, 2.0))
    assert tracker.of("scalars")[0][0] == 101


def test_a_forked_process_writes_nothing():
    tracker = KeptTracker()
    with TrackerVisualizer(tracker) as visualizer:
        tick(visualizer, 1, norms(1.0, 2.0))
        child = os.fork()
        if child == 0:
            tick(visualizer, 2, norms(1.0, 2.0))
            visualizer.close()
            os._exit(len(tracker.of("close")))
        assert os.waitpid(child, 0)[1] == 0
    assert [step for step, _ in tracker.of("scalars")] == [1]


def test_an_inspector_shows_in_it_beside_others():
    tracker, model = KeptTracker(include="parameter_norm"), nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with TrackerVisualizer(tracker) as visualizer:
        lenses = [ParameterNorm(parameters="all"), OutputNorm(), Distribution("output")]
        inspector = PyTorchInspector(lenses, module=model, visualizer=[visualizer, "dummy"])
        model(torch.ones(4, 2)).sum().backward()
        inspector.tick_epoch()
        inspector.detach()
    exact = {f"parameter_norm/{name}/mean": value.double().norm().item() for name, value in model.named_parameters()}
    found = {name: tracker.series(name)[0][1] for name in exact}
    assert found == pytest.approx(exact, rel=1e-6)
    [(_, shown)] = tracker.of("histograms")
    assert {name.rpartition("/")[2] for name in shown} == {"0", "1", "2"}
    assert shown["monitorch/output_distribution/2"].counts.sum() == 4
