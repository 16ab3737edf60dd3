"""A tick is shown at once, or one tick later where the visualizer can wait; the numbers are the same."""

import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import MonitorchWarning
from monitorch.lens import LossMetrics, OutputNorm, ParameterGradientGeometry, ParameterNorm
from monitorch.visualizer.record_sink import RecordSink


class Sink(RecordSink):
    def __init__(self, deferred):
        super().__init__()
        self.deferred, self.records = deferred, []
        self.threads, self._shown = set(), threading.Condition()
        self.may_show = threading.Event()
        self.may_show.set()

    def write(self, records):
        self.may_show.wait()
        self.threads.add(threading.get_ident())
        with self._shown:
            self.records += records
            self._shown.notify_all()

    def wait_for(self, epoch):
        with self._shown:
            assert self._shown.wait_for(lambda: epoch in self.epochs(), timeout=60)

    def epochs(self):
        return sorted({record.epoch for record in self.records})

    def numbers(self):
        return {(r.epoch, r.step, r.layer, r.tag, r.statistic): r.value for r in self.records}


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def watch(model, deferred):
    lenses = [LossMetrics(metrics="score"), OutputNorm(), ParameterGradientGeometry(), ParameterNorm()]
    return PyTorchInspector(lenses, module=model, visualizer=Sink(deferred), on_error="raise")


def train(model, inspector, ticks, ended=lambda tick: None):
    for tick in range(ticks):
        for step in range(3):
            loss = model(torch.full((2, 3), tick + step + 1.0)).square().mean()
            loss.backward()
            inspector.push_loss(loss, train=True)
            inspector.push_metric("score", 10 * tick + step)
        inspector.tick_epoch()
        with torch.no_grad():
            model[0].weight += 1  # a norm that is read too late would show it
        ended(tick + 1)


def test_a_deferred_tick_is_shown_by_another_thread_in_the_meantime():
    model = new_model()
    inspector = watch(model, deferred=True)
    sink, here = inspector.visualizer, threading.get_ident()
    train(model, inspector, 3, lambda tick: sink.wait_for(tick))
    assert sink.epochs() == [1, 2, 3]
    assert sink.threads
    assert here not in sink.threads


def test_numbers_do_not_depend_on_when_they_are_shown():
    found = []
    for deferred in (False, True):
        model = new_model()
        inspector = watch(model, deferred)
        train(model, inspector, 3)
        inspector.detach()
        found.append(inspector.visualizer.numbers())
    assert found[0] == found[1]
    assert {(epoch, step) for epoch, step, *_ in found[0]} == {(1, 3), (2, 6), (3, 9)}
    scores = {epoch: value for (epoch, *_, name), value in found[0].items() if name == "score mean"}
    assert scores == {1: 1.0, 2: 11.0, 3: 21.0}
    norms = {
        epoch: value for (epoch, _, layer, tag, _), value in found[0].items() if (layer, tag) == ("0", "Weight Norm")
    }
    weight = new_model()[0].weight.detach().double().numpy()
    assert norms == pytest.approx({tick: np.linalg.norm(weight + tick - 1) for tick in (1, 2, 3)}, rel=1e-6)


@pytest.mark.parametrize("deferred", [False, True])
def test_without_a_model_every_tick_is_a_step(deferred):
    inspector = PyTorchInspector([LossMetrics(metrics="score")], visualizer=Sink(deferred), on_error="raise")
    for tick in (1, 2, 3):
        inspector.push_metric("score", 10 * tick)
        inspector.tick_epoch()
    inspector.records()
    scores = [(r.epoch, r.step, r.value) for r in inspector.visualizer.records if r.statistic == "score mean"]
    assert scores == [(1, 1, 10.0), (2, 2, 20.0), (3, 3, 30.0)]


READERS = {
    "records": lambda inspector: inspector.records(),
    "loss": lambda inspector: inspector.lenses[0].loss(train=True),
    "detach": lambda inspector: inspector.detach(),
    "another visualizer": lambda inspector: setattr(inspector, "visualizer", "dummy"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_reads_waits(read):
    model = new_model()
    inspector = watch(model, deferred=True)
    sink = inspector.visualizer
    sink.may_show.clear()
    train(model, inspector, 1)
    assert sink.epochs() == []
    reader = threading.Thread(target=read, args=[inspector])
    reader.start()
    assert reader.is_alive()
    sink.may_show.set()
    reader.join(60)
    assert sink.epochs() == [1]


def test_loss_is_that_of_the_last_tick_also_when_it_is_deferred():
    model = new_model()
    inspector = watch(model, deferred=True)
    train(model, inspector, 2)
    last = inspector.lenses[0].loss(train=True)
    inspector.push_loss(100.0, train=True)
    assert inspector.lenses[0].loss(train=True) == last


class Faulty(ParameterNorm):
    """Fails in the second tick."""

    where = ""

    def _fail(self, where):
        if where == self.where and self._state.counter == 2:
            raise ZeroDivisionError(f"in {where}")

    def finalize_epoch(self):
        self._fail("finalize_epoch")
        super().finalize_epoch()

    def vizualize(self, *arguments):
        self._fail("vizualize")
        super().vizualize(*arguments)


@pytest.mark.parametrize("where", ["finalize_epoch", "vizualize"])
@pytest.mark.parametrize("deferred", [False, True])
def test_a_lens_that_fails_does_not_keep_others_from_being_shown(where, deferred):
    model, faulty = new_model(), Faulty()
    faulty.where = where
    inspector = PyTorchInspector([faulty, OutputNorm()], module=model, visualizer=Sink(deferred))
    with pytest.warns(MonitorchWarning, match=f"ZeroDivisionError: in {where}") as told:
        train(model, inspector, 3, lambda _: inspector.records())
    assert len(told) == 1
    shown = {(record.epoch, record.lens) for record in inspector.visualizer.records}
    assert shown == {(1, "Faulty"), (1, "OutputNorm"), (2, "OutputNorm"), (3, "Faulty"), (3, "OutputNorm")}


class Broken(ParameterNorm):
    """Cannot say, in the second tick, what still waits on a device."""

    def __init__(self):
        super().__init__()
        for preprocessor in self._preprocessors:
            preprocessor.pending = partial(self._pending, preprocessor.pending)

    def _pending(self, pending, kept):
        if self._state.counter == 2:
            raise ZeroDivisionError("nothing waits")
        return pending(kept)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_lens_whose_numbers_cannot_be_fetched_does_not_take_those_of_others_along(deferred):
    model = new_model()
    inspector = PyTorchInspector([Broken(), OutputNorm()], module=model, visualizer=Sink(deferred))
    with pytest.warns(MonitorchWarning, match="ZeroDivisionError: nothing waits") as told:
        train(model, inspector, 3, lambda _: inspector.records())
    assert len(told) == 1
    assert {record.epoch for record in inspector.visualizer.records if record.lens == "OutputNorm"} == {1, 2, 3}
