"""A run shown while it trains, without a notebook; those are in tests/dashboard/test_notebook.py."""

import gc
import io
import math
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from tqdm import tqdm

import monitorch
from monitorch.dashboard import card as drawing
from monitorch.diagnosis import verdict
from monitorch.inspector.tick_finisher import TickFinisher
from monitorch.visualizer import StoreVisualizer
from monitorch.watching import live_view
from monitorch.watching.live_view import LiveView, Notebook


class Job:
    """A model in training."""

    def __init__(self, folder):
        torch.manual_seed(0)
        self.model, self.loss_fn = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), nn.MSELoss()
        self.optimizer, self.folder, self.losses = torch.optim.SGD(self.model.parameters(), lr=0.05), folder, []

    def watch(self, **options):
        where = {} if "visualizer" in options else {"folder": self.folder, "run": "live"}
        return monitorch.watch(self.model, self.optimizer, loss_fn=self.loss_fn, every=1, **where, **options)

    def step(self):
        inputs = torch.randn(16, 4)
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.fixture
def eager(monkeypatch):
    """Show pictures at once, where lines of text are far apart."""
    monkeypatch.setattr(live_view, "LINE_SECONDS", 0.001)
    monkeypatch.setattr(live_view, "SHARE", 1.0)


def train_until(job, condition):
    while not condition():
        job.step()


def test_lines_come_while_it_trains_and_a_last_one_at_the_end(job, eager, monkeypatch, capsys):
    pictures, real = [], drawing.card
    monkeypatch.setattr(drawing, "card", lambda run: pictures.append(threading.current_thread().name) or real(run))
    with job.watch(tick_every=5) as watched:
        watched.live(every=0.001)
        train_until(job, lambda: len(pictures) >= 3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("live  ")]
    assert lines[0] == "live  running · no steps yet  not diagnosed"
    assert lines[-1].startswith(f"live  finished · step {len(job.losses):,}")
    assert lines[-1].endswith(f"  {verdict(watched.findings)}")
    assert "train_loss" in lines[-1]
    assert len(lines) == len(pictures)
    assert set(pictures[1:-1]) == {"monitorch live view"}
    assert not [thread for thread in threading.enumerate() if thread.name == "monitorch live view"]


def test_a_picture_is_drawn_only_if_something_was_stored(job):
    store, pictures = StoreVisualizer(job.folder, "still"), []
    store.open()
    store.writer.put("run", 1, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
    path = store.path
    store.close()  # nothing comes any more
    view = LiveView(store, path, 1000.0, pictures.append)
    assert len(pictures) == 1
    view._draw()
    assert len(pictures) == 1
    assert view.close() is None
    assert len(pictures) == 2  # the last one in any case
    assert view.close() is None
    assert len(pictures) == 2


def test_lines_of_text_are_far_apart_and_pictures_as_far_as_asked(job, monkeypatch):
    made = []
    monkeypatch.setattr(LiveView, "__init__", lambda self, store, path, every, show: made.append(every))
    store = StoreVisualizer(job.folder, "run")
    store.open()
    for every in (0.5, 60):
        LiveView.of(store, every)
    monkeypatch.setattr(Notebook, "here", classmethod(lambda cls: cls(SimpleNamespace(display_pub=None))))
    LiveView.of(store, 0.5)
    store.close()
    assert made == [live_view.LINE_SECONDS, 60, 0.5]


def test_a_second_view_takes_the_place_of_the_first(job, eager):
    with job.watch() as watched:
        watched.live()
        first = watched._live_view
        watched.live()
        assert first._ends.is_set()
        assert watched._live_view is not first


def test_a_picture_that_cannot_be_drawn_is_told_once_and_training_goes_on(job, eager, monkeypatch):
    def fail(run):
        raise ValueError("no colours left")

    monkeypatch.setattr(drawing, "card", fail)
    watched = job.watch()
    watched.live()
    job.step()
    with pytest.warns(monitorch.MonitorchWarning, match="drawing the live view failed: ValueError: no colours left"):
        watched.close()
    assert len(job.losses) == 1


@pytest.mark.parametrize(
    ("options", "every", "message"),
    [
        ({"visualizer": "dummy"}, 1.0, "this watch stores none: leave visualizer= out"),
        ({}, 0, "every=0 must be a number of seconds"),
        ({}, "often", "every='often' must be a number of seconds"),
        ({}, float("nan"), "every=nan must be"),
    ],
)
def test_what_cannot_be_shown_is_told(job, options, every, message):
    with job.watch(**options) as watched:
        with pytest.warns(monitorch.MonitorchWarning, match=message):
            watched.live(every)
        job.step()


def test_where_nothing_is_watched_nothing_is_shown(job, monkeypatch, capsys):
    monkeypatch.setenv("MONITORCH", "off")
    with job.watch() as watched:
        watched.live()
        job.step()
        assert watched.postfix() == {}
    assert capsys.readouterr().out == ""


def test_a_closed_watch_says_so(job):
    watched = job.watch()
    watched.close()
    with pytest.warns(monitorch.MonitorchWarning, match=r"live\(\) does nothing"):
        watched.live()


def test_training_is_the_same_with_a_view(tmp_path, eager):
    def weights(*, shown):
        job = Job(tmp_path / str(shown))
        with job.watch() as watched:
            if shown:
                watched.live()
            for _ in range(20):
                job.step()
                watched.postfix()
        return [parameter.detach().clone() for parameter in job.model.parameters()], torch.get_rng_state()

    (ours, our_rng), (theirs, their_rng) = weights(shown=True), weights(shown=False)
    assert all(map(torch.equal, ours, theirs))
    assert torch.equal(our_rng, their_rng)


def test_a_progress_bar_gets_the_numbers_of_the_last_tick(job, monkeypatch):
    monkeypatch.setattr(monitorch.PyTorchInspector, "overhead", 0.03)
    with job.watch(tick_every=4) as watched:
        assert watched.postfix() == {"overhead": 0.03}
        for _ in range(8):
            job.step()
        norm = next(one.value for one in watched.records() if one.tag == "Gradient Norm" and one.line == "mean")
        found = watched.postfix()
        assert list(found) == ["loss", "grad_norm", "overhead", "verdict"]
        assert found["loss"] == pytest.approx(sum(job.losses[4:]) / 4, rel=1e-6)
        assert found["grad_norm"] == norm
        assert found["overhead"] == 0.03
        assert found["verdict"] == verdict(watched.findings)
        screen = io.StringIO()
        with tqdm(range(3), file=screen) as bar:
            bar.set_postfix(found)
        assert f"verdict={found['verdict']}" in screen.getvalue()
    assert watched.postfix()["loss"] == found["loss"]


def test_a_loss_that_is_not_finite_is_shown_as_such(job):
    with torch.no_grad():
        job.model[0].weight.fill_(float("nan"))
    with job.watch(tick_every=2) as watched:
        for _ in range(4):
            job.step()
        assert watched.findings
        assert math.isnan(watched.postfix()["loss"])
        assert watched.postfix()["verdict"] == "1 problem since step 0"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"diagnose": False}, ["loss", "grad_norm"]),
        ({"visualizer": "dummy"}, ["loss", "grad_norm", "verdict"]),
    ],
)
def test_what_is_not_known_is_left_out(job, monkeypatch, options, names):
    monkeypatch.setattr(monitorch.PyTorchInspector, "overhead", None)
    with job.watch(tick_every=2, **options) as watched:
        for _ in range(4):
            job.step()
        watched.records()  # waits for the tick
        assert list(watched.postfix()) == names


def test_a_progress_bar_waits_for_nothing(job, host_reads, monkeypatch):
    with job.watch(tick_every=2) as watched:
        for _ in range(4):
            job.step()
        watched.records()
        monkeypatch.setattr(TickFinisher, "wait", lambda self: pytest.fail("it waits for a tick"))
        with host_reads() as reads:
            assert watched.postfix()["loss"] > 0
        assert not +reads.calls
        monkeypatch.undo()


def test_a_watch_that_is_dropped_leaves_no_thread(tmp_path, eager):
    def train():
        job = Job(tmp_path)
        job.watch().live()
        job.step()

    train()
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "monitorch live view"]


def test_nothing_of_ours_loads_ipython(run_program):
    code = (
        "import sys, torch, monitorch; from torch import nn\n"
        "watched = monitorch.watch(nn.Linear(1, 1), visualizer='dummy'); watched.postfix(); watched.close()\n"
        "print(sorted({'IPython', 'ipywidgets', 'monitorch.dashboard'} & set(sys.modules)))"
    )
    done = run_program(code)
    assert done.stdout.splitlines()[-1] == "[]"
