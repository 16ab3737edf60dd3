"""Watching a model with one call: which lenses, which ticks, and what is left afterwards."""

import copy
import gc
import pickle
import re
import threading
import weakref
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from itertools import count, pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import monitorch
from monitorch.engine import allocation
from monitorch.errors import LifecycleError, MonitorchWarning, OptionError, TrainingStopped
from monitorch.lens import LossMetrics, OutputNorm, ParameterGradientGeometry, ParameterNorm
from monitorch.store import open_run, read_flight_record
from monitorch.visualizer.record_sink import RecordSink
from monitorch.watching import model_watch
from tests.marks import slow


class Collector(RecordSink):
    """Keeps every number by tick, tag, layer and statistic."""

    def __init__(self):
        self.numbers, self.ticks, self.closed = {}, 0, False
        self.at_steps = {}

    def write(self, records):
        self.numbers.update({(r.epoch, r.tag, r.layer, r.statistic): r.value for r in records})
        for r in records:
            self.at_steps.setdefault((r.tag, r.statistic), []).append((r.step, r.value))

    def flush(self):
        self.ticks += 1

    def close(self):
        self.closed = True

    def line(self, tag, layer, statistic="mean"):
        return {e: v for (e, *rest), v in self.numbers.items() if rest == [tag, layer, statistic]}

    def run_line(self, tag, statistic):
        """The numbers of the run as a whole, with the step of each."""
        return self.at_steps.get((tag, statistic), [])

    def layers_of(self, tag):
        return {layer for _, seen, layer, _ in self.numbers if seen == tag}


class OwnLoss(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs):
        prediction = self.layer(inputs)
        return {"loss": prediction.pow(2).mean(), "logits": prediction}


class Training:
    """A model with what trains it, watched by a collector."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss_fn = nn.MSELoss()
        self.shown = Collector()
        self.losses, self.gradients = [], []

    def watch(self, optimizer=None, **options):
        """Every step is observed, and every fourth shown, unless the options say otherwise."""
        common = {"visualizer": self.shown, "every": 1, "tick_every": 4}
        return monitorch.watch(self.model, optimizer, **common | options)

    def run(self, steps):
        for step in range(steps):
            self.model.zero_grad()
            prediction = self.model(torch.linspace(-1, 1, 12).reshape(4, 3) * (step + 1))
            loss = self.loss_fn(prediction, torch.ones(4, 1))
            loss.backward()
            self.losses.append(loss.item())
            self.gradients.append(np.linalg.norm(self.model[0].weight.grad.double().numpy()))
            self.optimizer.step()

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            loss = self.loss_fn(self.model(torch.ones(4, 3)), torch.ones(4, 1)).item()
        self.model.train()
        return loss

    def count_hooks(self):
        modules = [*self.model.modules(), self.loss_fn]
        parts = [*modules, *self.model.parameters(), self.optimizer]
        hooks = [getattr(part, name) for part in parts for name in dir(part) if name.endswith("_hooks")]
        return sum(len(found) for found in hooks if isinstance(found, dict))


@pytest.fixture
def training():
    return Training()


def means(samples, size=4):
    return {n + 1: np.mean(samples[i : i + size]) for n, i in enumerate(range(0, len(samples), size))}


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize("steps", [1, 4, 10])
def test_ticks_come_every_few_steps_and_the_rest_at_the_end(training, with_optimizer, steps):
    with training.watch(training.optimizer if with_optimizer else None, loss_fn=training.loss_fn) as watch:
        training.run(steps)
        assert training.shown.ticks == (steps if with_optimizer else steps - 1) // 4
    assert watch.inspector.visualizer is training.shown
    assert training.shown.ticks == -(-steps // 4)
    assert training.shown.line("Loss", "Loss", "train_loss mean") == pytest.approx(means(training.losses))
    assert training.shown.line("Parameter Gradient Norm", "0.weight") == pytest.approx(means(training.gradients))


def test_updates_are_shown_for_each_of_several_optimizers_and_the_first_one_counts(training):
    first, second = (torch.optim.SGD(training.model[i].parameters(), lr=0.1) for i in (0, 2))
    training.optimizer = second
    with training.watch([first, second]):
        training.run(5)
        assert training.shown.ticks == 0
        first.step()
    assert training.shown.ticks == 1
    assert training.shown.layers_of("Parameter Update Norm") == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)], ids=str)
def test_optimizers_that_step_one_after_another_make_one_step_with_all_that_they_do(order, reports):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizers = [torch.optim.SGD(model[place].parameters(), lr=0.1 / (place + 1)) for place in (0, 2, 4)]
    shown, norms, updates = Collector(), [], []
    with monitorch.watch(model, optimizers, visualizer=shown, every=1, tick_every=1) as watch:
        for _ in range(4):
            model(torch.randn(8, 3)).square().mean().backward()
            norms.append(np.sqrt(sum(np.square(p.grad.double().numpy()).sum() for p in model.parameters())))
            before = model[4].weight.detach().clone()
            for place in order:
                optimizers[place].step()
            updates.append((model[4].weight.detach() - before).norm().item())
            if reports:
                watch.log(norm=norms[-1])
                watch.push_loss(norms[-1], train=False)
            model.zero_grad()
    steps = range(1, 5)
    assert shown.run_line("Gradient Norm", "gradient_norm mean") == list(
        zip(steps, map(pytest.approx, norms), strict=True)
    )
    assert list(shown.line("Parameter Update Norm", "4.weight").values()) == pytest.approx(updates)
    if reports:
        assert shown.run_line("Logged", "norm mean") == list(zip(steps, norms, strict=True))
        assert shown.run_line("Loss", "val_loss mean") == list(zip(steps, norms, strict=True))


def test_an_optimizer_that_follows_only_now_and_then_holds_up_no_step(training):
    first, second = (torch.optim.SGD(training.model[place].parameters(), lr=0.1) for place in (0, 2))
    with training.watch([first, second], tick_every=1) as watch:
        for number in range(6):
            training.model(torch.ones(2, 3)).sum().backward()
            first.step()
            if number % 3 == 0:
                second.step()
            training.model.zero_grad()
            if number % 2:
                watch.push_loss(training.evaluate(), train=False)
    assert [step for step, _ in training.shown.run_line("Loss", "val_loss mean")] == [2, 4, 6]
    assert {step for step, _ in training.shown.run_line("Parameter Gradient Norm", "mean")} == set(range(1, 7))


def test_accumulated_and_evaluated_passes_are_no_steps_of_an_optimizer(training):
    with training.watch(training.optimizer, tick_every=2):
        for _ in range(3):
            for _ in range(5):
                training.model(torch.ones(2, 3)).sum().backward()
            training.evaluate()
            training.optimizer.step()
        assert training.shown.ticks == 1


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize("before", [1, 3, 4, 7, 8, 13])
def test_an_evaluation_belongs_to_the_last_step_that_was_done_and_closes_its_tick(training, with_optimizer, before):
    with training.watch(training.optimizer if with_optimizer else None, loss_fn=training.loss_fn) as watch:
        training.run(before)
        loss = training.evaluate()
        watch.log(accuracy=0.25)
        training.run(5)
    assert training.shown.run_line("Loss", "val_loss mean") == [(before, pytest.approx(loss))]
    assert training.shown.run_line("Logged", "accuracy mean") == [(before, 0.25)]
    ends = sorted({*range(4, before + 5, 4), before, before + 5})
    expected = [np.mean(training.losses[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    seen = [(end, pytest.approx(mean)) for end, mean in zip(ends, expected, strict=True)]
    assert training.shown.run_line("Loss", "train_loss mean") == seen


def test_an_evaluation_after_each_epoch_stands_at_its_step_however_many_steps_a_tick_has(training, replace_time):
    replace_time(lambda: 0.0)
    evaluations = []
    with training.watch(training.optimizer, loss_fn=training.loss_fn, tick_every=None) as watch:
        for epoch in range(5):
            training.run(17)
            evaluations.append((17 * (epoch + 1), pytest.approx(training.evaluate())))
            watch.log(accuracy=epoch / 8)
    assert training.shown.run_line("Loss", "val_loss mean") == evaluations
    assert training.shown.run_line("Logged", "accuracy mean") == [(17 * n, (n - 1) / 8) for n in range(1, 6)]
    assert training.shown.ticks == 13  # 10, 20, ... and 17, 34, ...: the clock stands still, so none comes by time


@pytest.mark.parametrize(
    ("options", "ticks"),
    [({}, 2), ({"every": 5}, 2), ({"budget": 0.02, "head_start": 1.0}, 2), ({"budget": 0.02}, 0)],
    ids=str,
)
def test_a_budget_without_a_head_start_pays_no_ticks_by_steps(training, replace_time, options, ticks):
    replace_time(lambda: 0.0)
    with training.watch(training.optimizer, tick_every=None, **{"every": None, **options}):
        training.run(25)
        assert training.shown.ticks == ticks
    assert training.shown.ticks == ticks + 1


def test_evaluations_make_no_ticks_that_the_budget_does_not_pay_for_and_stand_at_their_steps(training, replace_time):
    replace_time(lambda: 0.0)  # so that no tick comes by time
    evaluations = []
    with training.watch(
        training.optimizer, loss_fn=training.loss_fn, tick_every=None, every=None, budget=0.02
    ) as watch:
        for number in range(1, 11):
            training.run(5)
            evaluations.append((5 * number, pytest.approx(training.evaluate())))
            watch.log(accuracy=number / 16)
        assert training.shown.ticks == 0
    assert training.shown.run_line("Loss", "val_loss mean") == evaluations
    assert training.shown.run_line("Logged", "accuracy mean") == [(5 * n, n / 16) for n in range(1, 11)]
    assert training.shown.ticks == 1


def test_evaluations_at_every_step_make_no_further_ticks_and_are_in_those_of_their_steps(training):
    evaluations = []
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        for number in range(12):
            training.run(1)
            evaluations.append(training.evaluate())
            watch.log(number=number)
    parts = {1: [0], 4: [1, 2, 3], 8: [4, 5, 6, 7], 12: [8, 9, 10, 11]}  # the first may have been the only one
    losses = [(step, pytest.approx(np.mean([evaluations[n] for n in part]))) for step, part in parts.items()]
    assert training.shown.run_line("Loss", "val_loss mean") == losses
    assert training.shown.run_line("Logged", "number mean") == [(step, np.mean(part)) for step, part in parts.items()]
    assert training.shown.ticks == 4


@pytest.mark.parametrize("tick_every", [1, 3])
def test_what_is_reported_after_each_step_is_in_the_tick_of_that_step(training, tick_every):
    with training.watch(training.optimizer, tick_every=tick_every) as watch:
        for number in range(1, 7):
            training.run(1)
            watch.push_loss(training.losses[-1])
            watch.log(number=number)
    ends = sorted({1, *range(tick_every, 7, tick_every)})  # the first log may have been the only one
    parts = [range(start + 1, end + 1) for start, end in zip([0, *ends], ends, strict=False)]
    assert training.shown.run_line("Logged", "number mean") == [(part[-1], np.mean(part)) for part in parts]
    losses = [(part[-1], pytest.approx(np.mean([training.losses[n - 1] for n in part]))) for part in parts]
    assert training.shown.run_line("Loss", "train_loss mean") == losses


def test_a_loss_that_is_pushed_after_the_tick_of_its_step_is_shown_at_it(training):
    with training.watch(training.optimizer, tick_every=1) as watch:
        for _ in range(4):
            training.run(1)
            watch.push_loss(training.losses[-1])
    losses = list(zip(range(1, 5), map(pytest.approx, training.losses), strict=True))
    assert training.shown.run_line("Loss", "train_loss mean") == losses
    assert training.shown.ticks == 5


@pytest.mark.parametrize("report", ["log", "push_loss"])
def test_an_evaluation_stands_at_its_step_also_where_something_else_is_reported_after_each_one(training, report):
    evaluations, accuracies = [], []
    with training.watch(training.optimizer, loss_fn=training.loss_fn, tick_every=10) as watch:
        for number in range(1, 31):
            training.run(1)
            watch.log(number=number) if report == "log" else watch.push_loss(training.losses[-1])
            if number % 7 == 0:
                evaluations.append((number, pytest.approx(training.evaluate())))
                watch.log(accuracy=number / 8)
                accuracies.append((number, number / 8))
    assert training.shown.run_line("Loss", "val_loss mean") == evaluations
    assert training.shown.run_line("Logged", "accuracy mean") == accuracies
    assert training.shown.ticks == (4 if report == "log" else 3)  # 1, 10, 20, 30: the first log may be the only one


def test_passes_of_evaluation_close_a_tick_also_where_something_is_reported_after_each_step(training):
    with training.watch(training.optimizer, lenses=[OutputNorm(record_eval=True)], tick_every=10) as watch:
        for number in range(1, 11):
            training.run(1)
            watch.log(number=number)
            if number == 6:
                training.evaluate()
    assert sorted({step for step, _ in training.shown.run_line("Output Norm", "mean")}) == [1, 6, 10]


def test_an_evaluation_before_the_first_step_is_that_of_step_0(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn):
        loss = training.evaluate()
        training.run(4)
    assert training.shown.run_line("Loss", "val_loss mean") == [(0, pytest.approx(loss))]
    assert [step for step, _ in training.shown.run_line("Loss", "train_loss mean")] == [4]


@pytest.mark.parametrize("pushes", [False, True], ids=["loss_fn", "push_loss"])
@pytest.mark.parametrize("tick_every", [1, 10])
def test_an_evaluation_between_micro_batches_belongs_to_the_step_before_them(training, tick_every, pushes):
    seen = {"loss_fn": None if pushes else training.loss_fn, "tick_every": tick_every}
    with training.watch(training.optimizer, **seen) as watch:
        training.run(2)
        training.loss_fn(training.model(torch.ones(4, 3)), torch.ones(4, 1)).backward()
        loss = training.evaluate()
        if pushes:
            watch.push_loss(loss, train=False)
        watch.log(accuracy=0.25)
        training.run(1)
        watch.log(later=0.5)
    assert training.shown.run_line("Loss", "val_loss mean") == [(2, pytest.approx(loss))]
    assert training.shown.run_line("Logged", "accuracy mean") == [(2, 0.25)]
    assert training.shown.run_line("Logged", "later mean") == [(3, 0.5)]


@pytest.mark.parametrize("with_closure", [True, False])
def test_a_step_without_a_pass_leaves_the_numbers_of_others_where_they_are(training, with_closure):
    """Lightning steps without a pass where ``training_step`` returns None."""
    with training.watch(training.optimizer, loss_fn=training.loss_fn, tick_every=1) as watch:
        for number in range(1, 8):
            if number not in (3, 6):
                training.run(1)
            elif with_closure:
                training.optimizer.zero_grad()
                training.optimizer.step(lambda: None)
            else:
                training.optimizer.step()
            watch.log(number=number)
    losses = zip([1, 2, 4, 5, 7], map(pytest.approx, training.losses), strict=True)
    assert training.shown.run_line("Loss", "train_loss mean") == list(losses)
    assert training.shown.run_line("Logged", "number mean") == [(n, n) for n in range(1, 8)]


def test_passes_that_leave_no_number_make_no_tick(training):
    with training.watch(training.optimizer, tick_every=100):
        for _ in range(5):
            training.run(3)
            training.evaluate()  # nobody watches its loss
        assert training.shown.ticks == 0


def test_passes_of_evaluation_are_in_the_tick_that_they_close(training):
    with training.watch(training.optimizer, lenses=[OutputNorm(record_eval=True)]):
        training.run(4)
        training.model.eval()
        with torch.no_grad():
            norms = training.model[1](training.model[0](torch.ones(4, 3))).double().norm(dim=1)
            training.model(torch.ones(4, 3))
        training.model.train()
        training.run(4)
    found = training.shown.run_line("Output Norm", "mean")
    assert [step for step, _ in found] == [4, 4, 8]
    assert found[1][1] == pytest.approx(norms.mean().item())


def test_a_step_with_a_closure_is_one_step(training):
    training.optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=5)

    def closure():
        training.optimizer.zero_grad()
        loss = training.loss_fn(training.model(torch.ones(4, 3)), torch.ones(4, 1))
        loss.backward()
        return loss

    with training.watch(training.optimizer, tick_every=2):
        for _ in range(3):
            training.optimizer.step(closure)
        assert training.shown.ticks == 1


def test_nothing_new_means_no_tick_at_the_end(training):
    with training.watch(training.optimizer):
        training.run(8)
    with training.watch(training.optimizer):
        pass
    assert training.shown.ticks == 2


def test_evaluation_after_the_last_tick_is_shown_at_the_end(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn):
        training.run(4)
        loss = training.evaluate()
    assert training.shown.line("Loss", "Loss", "val_loss mean") == pytest.approx({2: loss})


@pytest.mark.parametrize("cyclic", [True, False])
def test_what_is_left_is_shown_where_a_function_returns_and_its_model_goes(cyclic):
    def train():
        training = Training()
        watch = training.watch(training.optimizer, loss_fn=training.loss_fn)
        training.run(6)
        loss = training.evaluate()
        watch.log(accuracy=0.5)
        if cyclic:
            training.model.itself = [training.model]
        return loss, training.shown, weakref.ref(training.model)

    loss, shown, model = train()
    gc.collect()
    assert model() is None
    assert shown.run_line("Loss", "val_loss mean") == [(6, pytest.approx(loss))]
    assert shown.run_line("Logged", "accuracy mean") == [(6, 0.5)]
    assert [step for step, _ in shown.run_line("Loss", "train_loss mean")] == [4, 6]


def test_a_model_that_goes_in_another_thread_is_left_without_a_last_tick():
    training = Training()
    shown, watch = training.shown, training.watch(training.optimizer)
    training.run(2)
    parts = [training]
    del training
    thread = threading.Thread(target=parts.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert shown.ticks == 0
    assert watch.inspector.state.engine is None


def test_tick_by_hand_begins_a_new_one(training):
    with training.watch(training.optimizer) as watch:
        training.run(3)
        watch.tick()
        training.run(3)
        assert training.shown.ticks == 1
        training.run(1)
        assert training.shown.ticks == 2
    assert training.shown.line("Parameter Gradient Norm", "0.weight")[1] == pytest.approx(
        np.mean(training.gradients[:3])
    )


def test_logged_numbers_are_shown(training):
    with training.watch() as watch:
        watch.log(accuracy=0.25)
        watch.log(accuracy=0.75)
    assert [value for (_, _, _, name), value in training.shown.numbers.items() if "accuracy" in name] == [0.5]


@pytest.mark.parametrize(
    ("arguments", "named", "expected"),
    [
        (({"a": 1},), {}, {"a": 1}),
        (({"a": 1},), {"b": 2.5}, {"a": 1, "b": 2.5}),
        (({"train_loss": 100},), {}, {"train_loss": 100}),
        (({"val": {"accuracy": 0.5, "top": {5: 0.75}}},), {}, {"val.accuracy": 0.5, "val.top.5": 0.75}),
        ((), {"step_": 3, "self": 1, "values": 2}, {"step_": 3, "self": 1, "values": 2}),
        ((), {"a": torch.tensor(2.0, requires_grad=True), "b": torch.tensor([[3]])}, {"a": 2, "b": 3}),
        (
            (),
            {"a": np.float32(0.5), "b": np.int64(4), "c": np.array(1.5), "d": True},
            {"a": 0.5, "b": 4, "c": 1.5, "d": 1},
        ),
        ((), {"a": Fraction(1, 4), "b": Decimal("0.5"), "c": "0.125"}, {"a": 0.25, "b": 0.5, "c": 0.125}),
        ((None,), {"a": 1}, {"a": 1}),
        (({},), {}, {}),
    ],
)
def test_anything_that_can_be_a_number_is_logged(training, arguments, named, expected):
    with training.watch(training.optimizer) as watch:
        watch.log(*arguments, **named)
    found = {line: values for (tag, line), values in training.shown.at_steps.items() if tag == "Logged"}
    found = {line: value for line, value in found.items() if not line.startswith("learning rate")}
    assert found == {f"{name} mean": [(0, value)] for name, value in expected.items()}


class Unreadable:
    """What nobody can print or count."""

    def __repr__(self):
        raise RuntimeError("not a text")

    def __float__(self):
        raise RuntimeError("not a number")

    __int__ = __float__


@pytest.mark.parametrize(
    ("odd", "text"),
    [(10**400, "odd=.* is left out"), (Unreadable(), "'odd' failed: .*not a number")],
    ids=["too large", "unreadable"],
)
def test_what_is_no_number_keeps_no_other_from_being_logged(training, odd, text):
    with training.watch(training.optimizer) as watch, pytest.warns(MonitorchWarning, match=text):
        watch.log(first=1, odd=odd, last=2)
    found = {line: values for (tag, line), values in training.shown.at_steps.items() if tag == "Logged"}
    assert (found["first mean"], found["last mean"]) == ([(0, 1.0)], [(0, 2.0)])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda watch: watch.log(a="x"), r"log\(\) takes numbers, so a='x' is left out: could not convert"),
        (lambda watch: watch.log({"a": None}), r"log\(\) takes numbers, so a=None is left out"),
        (
            lambda watch: watch.log(a=torch.ones(2)),
            r"a=tensor\(\[1., 1.\]\) is left out: .* not a tensor of shape \(2,\)",
        ),
        (lambda watch: watch.log(a=1j), "a=1j is left out"),
        (lambda watch: watch.log(a=10**400), r"a=10+… is left out: int too large"),
        (lambda watch: watch.log(a=torch.ones((), device="meta")), "a=tensor.* is left out: .* meta device"),
        (lambda watch: watch.log(a=torch.ones((), dtype=torch.complex64)), "a=tensor.* is left out: .* not a complex"),
        (lambda watch: watch.log(a=1, step=Unreadable()), r"log\(step=<Unreadable>\): this is not a step number"),
        (lambda watch: watch.log(a=["x" * 1000]), r"a=\['xx+… is left out"),
        (lambda watch: watch.log(5), r"log\(5\) is left out: write log\(name=number\)"),
        (lambda watch: watch.log(a=1, step="now"), r"log\(step='now'\): this is not a step number"),
        (lambda watch: watch.push_loss("high"), r"push_loss\(\) takes numbers, so loss='high' is left out"),
        (lambda watch: watch.push_loss(torch.ones(3)), r"loss=tensor.* is left out: .* not a tensor of shape \(3,\)"),
        (lambda watch: watch.push_loss(None, train=False), "loss=None is left out"),
        (lambda watch: watch.inspector.push_metric("f1", []), r"push_metric\(\) takes numbers, so f1=\[\] is left out"),
    ],
)
def test_what_is_no_number_is_told_once_and_training_goes_on(training, call, text):
    with training.watch(training.optimizer) as watch:
        with pytest.warns(MonitorchWarning, match=text) as caught:
            call(watch)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        call(watch)
        training.run(4)
        watch.log(fine=1)
    assert training.shown.run_line("Logged", "fine mean") == [(4, 1.0)]
    (norm,) = training.shown.line("Parameter Gradient Norm", "0.weight").values()
    assert norm == pytest.approx(np.mean(training.gradients))


def test_what_is_no_number_is_an_error_on_request(training):
    with training.watch(training.optimizer, on_error="raise") as watch, pytest.raises(ValueError, match="could not"):
        watch.log(a="x")


def test_numbers_are_shown_at_the_step_that_they_are_said_to_belong_to(training):
    with training.watch(training.optimizer, tick_every=5) as watch:
        for step in range(1, 12):
            watch.log(before=step, step=step)
            training.run(1)
            watch.log({"after": 10 * step}, step=step)
            watch.log(twice=step, step=step)
            watch.log(twice=step + 1, step=step)
    assert training.shown.run_line("Logged", "before mean") == [(n, n) for n in range(1, 12)]
    assert training.shown.run_line("Logged", "after mean") == [(n, 10 * n) for n in range(1, 12)]
    assert training.shown.run_line("Logged", "twice mean") == [(n, n + 0.5) for n in range(1, 12)]
    assert training.shown.ticks == 3


@pytest.mark.parametrize(("wanted", "shown"), [(-3, 4), (2, 4), (9, 7), (4, 4), (6, 6), (7, 7)])
def test_a_step_that_was_shown_or_has_not_come_is_replaced_by_the_nearest_one(training, wanted, shown):
    with training.watch(training.optimizer) as watch:
        training.run(6)
        if wanted == shown:
            watch.log(a=1, step=wanted)
        else:
            text = rf"step={wanted}\): the run is at step 6 and .* up to step 4, so these are shown at step {shown}"
            with pytest.warns(MonitorchWarning, match=text):
                watch.log(a=1, step=wanted)
            watch.log(a=1, step=wanted)
        training.run(2)
    assert training.shown.run_line("Logged", "a mean") == [(shown, 1)]


def test_steps_of_numbers_never_go_back(training):
    with training.watch(training.optimizer) as watch:
        training.run(4)
        watch.log(a=1, step=5)  # it has not begun
        watch.tick()
        training.run(4)
    assert training.shown.run_line("Logged", "a mean") == [(4, 1)]
    steps = [step for pairs in training.shown.at_steps.values() for step, _ in pairs]
    assert set(steps) == {4, 8}


def test_pushed_losses_are_those_of_training_unless_said_otherwise(training):
    with training.watch(training.optimizer) as watch:
        training.run(3)
        watch.push_loss(torch.tensor(2.0, requires_grad=True) * 2)
        watch.push_loss(7.0, train=False)
    assert training.shown.run_line("Loss", "train_loss mean") == [(3, 4.0)]
    assert training.shown.run_line("Loss", "val_loss mean") == [(3, 7.0)]


def test_logged_numbers_and_losses_of_one_name_are_kept_apart(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        for _ in range(4):
            training.run(1)
            watch.log(train_loss=100.0, val_loss=200.0)
        watch.push_loss(3.0, train=False)
        watch.inspector.push_metric("train_loss", 300.0)
    losses = [value for _, value in training.shown.run_line("Loss", "train_loss mean")]
    assert losses == pytest.approx([training.losses[0], np.mean(training.losses[1:])])
    assert training.shown.run_line("Loss", "val_loss mean") == [(4, 3.0)]
    assert {value for _, value in training.shown.run_line("Logged", "train_loss mean")} == {100.0}
    assert {value for _, value in training.shown.run_line("Logged", "val_loss mean")} == {200.0}


def test_records_are_those_of_the_last_tick_also_when_the_watch_is_closed(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        assert watch.records() == []
        training.run(4)
        shown = {(r.tag, r.statistic): (r.step, r.value) for r in watch.records()}
        assert shown["Loss", "train_loss mean"] == (4, pytest.approx(np.mean(training.losses)))
        training.run(2)
    last = {(r.tag, r.statistic): (r.step, r.value) for r in watch.records()}
    assert last["Loss", "train_loss mean"] == (6, pytest.approx(np.mean(training.losses[4:])))
    assert last.keys() == shown.keys()


def test_a_watch_is_printed_as_its_verdict_with_what_was_found(training):
    training.optimizer = torch.optim.SGD(training.model[0].parameters(), lr=0.001)  # the last layer is missing
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        assert str(watch) == "not diagnosed"
        training.run(10)
    (found,) = (finding for finding in watch.findings if finding.symptom == "no_update")
    assert str(watch).splitlines()[0] == monitorch.diagnosis.verdict(watch.findings)
    assert f"\n  {found.line}\n    try: {found.remedy.text}" in str(watch)


def test_without_diagnosis_a_watch_is_printed_so(training):
    with training.watch(training.optimizer, diagnose=False) as watch:
        training.run(4)
    assert str(watch) == "not diagnosed"


def test_a_report_is_written_during_the_run_and_after_it(training, tmp_path):
    stored = {"visualizer": None, "folder": tmp_path, "run": "first"}
    with training.watch(training.optimizer, loss_fn=training.loss_fn, **stored) as watch:
        training.run(8)
        assert watch.report(tmp_path / "early.html") == tmp_path / "early.html"
        training.run(8)
    late = watch.report(str(tmp_path / "late.html")).read_text(encoding="utf-8")
    assert late != (tmp_path / "early.html").read_text(encoding="utf-8")
    assert "<title>first · monitorch</title>" in late


def test_without_a_stored_run_there_is_no_report(training, tmp_path):
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        training.run(4)
    with pytest.warns(MonitorchWarning, match="no run to report on: watch.. stores one unless visualizer="):
        assert watch.report(tmp_path / "none.html") is None
    assert not (tmp_path / "none.html").exists()


def test_a_report_that_cannot_be_written_is_told(training, tmp_path):
    with training.watch(training.optimizer, visualizer=None, folder=tmp_path, run="first") as watch:
        training.run(4)
    (tmp_path / "file").touch()
    with pytest.warns(MonitorchWarning, match="writing a report failed: .*Error"):
        assert watch.report(tmp_path / "file" / "first.html") is None
    assert watch.report(tmp_path / "new" / "first.html").is_file()


def test_where_monitorch_is_off_there_is_no_report_and_no_warning(training, tmp_path, monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    with training.watch(training.optimizer, visualizer=None, folder=tmp_path, run="first") as watch:
        training.run(4)
    assert str(watch) == "not diagnosed"
    assert watch.report(tmp_path / "first.html") is None


class Foreign:
    """An optimizer that torch does not know."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            parameter -= 0.1 * parameter.grad


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_steps_of_a_foreign_optimizer_are_told_by_hand(training, micro_batches):
    training.optimizer, losses = Foreign(training.model.parameters()), []
    with training.watch(loss_fn=training.loss_fn, tick_every=2) as watch:
        for _ in range(6):
            training.model.zero_grad()
            for _ in range(micro_batches):
                x = torch.randn(4, 3)
                loss = training.loss_fn(training.model(x), x.sum(1, keepdim=True))
                loss.backward()
                losses.append(loss.item())
            training.optimizer.step()
            watch.step()
    found = training.shown.run_line("Loss", "train_loss mean")
    by_step = np.reshape(losses, (6, micro_batches)).mean(1)
    ends = [2, 4, 6] if micro_batches == 1 else [3, 5, 6]  # until the first call each pass was taken for a step
    expected = [by_step[start:end].mean() for start, end in pairwise(ends)]
    assert found[-2:] == [(end, pytest.approx(mean)) for end, mean in zip(ends[1:], expected, strict=True)]


@pytest.mark.parametrize("saves", [False, True])
def test_a_tick_waits_for_reports_that_were_announced(training, saves):
    """As for frameworks that tell the loss after the step: it is in the tick of its step, also of the first one."""
    losses = []
    with training.watch(training.optimizer, tick_every=1) as watch:
        watch.wait_for_reports()
        for _ in range(4):
            x = torch.randn(4, 3)
            loss = training.model(x).square().mean()
            loss.backward()
            training.optimizer.step()
            watch.push_loss(loss)
            losses.append(loss.item())
            if saves:
                assert watch.state_dict()["ticked_at"] == len(losses)  # nobody else will show it
    found = training.shown.run_line("Loss", "train_loss mean")
    assert found == [(step, pytest.approx(loss)) for step, loss in enumerate(losses, 1)]


def test_loss_in_the_output_needs_no_loss_fn():
    model, shown = OwnLoss(), Collector()
    with monitorch.watch(model, visualizer=shown):
        loss = model(torch.ones(2, 3))["loss"]
    assert shown.line("Loss", "Loss", "train_loss mean") == pytest.approx({1: loss.item()})


def test_a_pushed_loss_is_meant_where_the_output_has_another(tmp_path):
    model = OwnLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with monitorch.watch(model, optimizer, run="run", folder=tmp_path, tick_every=2) as watched:
        for number in range(3):
            model(torch.ones(2, 3))["loss"].backward()
            watched.push_loss(10.0 + number)
            optimizer.step()
        record = read_flight_record(watched.dump())
    steps, losses = record.losses["train_loss"]
    assert (list(steps), list(losses)) == ([1, 2, 3], [10.0, 11.0, 12.0])


@pytest.mark.parametrize("begin", [0, 7])
def test_steps_are_counted_on_from_a_given_one(training, begin):
    with training.watch(training.optimizer, loss_fn=training.loss_fn, tick_every=2) as watched:
        watched.begin_at(begin)
        training.run(5)
    losses = training.losses
    expected = [(begin + 2, np.mean(losses[:2])), (begin + 4, np.mean(losses[2:4])), (begin + 5, losses[4])]
    assert training.shown.run_line("Loss", "train_loss mean") == [(at, pytest.approx(loss)) for at, loss in expected]


def test_a_stored_run_begins_at_the_step_that_is_counted_on_from(training, tmp_path):
    options = {"visualizer": None, "run": "run", "folder": tmp_path, "tick_every": 1}
    with training.watch(training.optimizer, loss_fn=training.loss_fn, **options) as watched:
        watched.begin_at(100)
        training.run(3)
        assert watched.run == "run"
    with open_run(tmp_path / "run") as run:
        assert run.series("run", "Loss/train_loss mean", "run").axis.step.tolist() == [101, 102, 103]


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", None])
def test_what_is_no_step_to_begin_at_is_refused(training, step):
    with training.watch() as watched, pytest.raises(OptionError, match="at least 0"):
        watched.begin_at(step)


def test_counting_on_comes_before_the_first_step(training):
    with training.watch() as watched:
        training.run(1)
        with pytest.raises(LifecycleError, match="before the first step"):
            watched.begin_at(3)


def test_a_watch_that_stores_nothing_has_no_run(training):
    with training.watch() as watched:
        assert watched.run is None


STANDARD = (
    "LossMetrics GradientNorm NonFinite OutputNorm OutputActivation ActivationHealth OutputGradientGeometry "
    "ParameterGradientGeometry"
)


DATA = "InputStatistics"


@pytest.mark.parametrize(
    ("with_optimizer", "options", "expected"),
    [
        (
            True,
            {},
            f"{STANDARD} ParameterUpdateGeometry UpdateRatio ParameterNorm {DATA} ParameterFacts DiagnosisSignals",
        ),
        (False, {}, f"{STANDARD} ParameterNorm {DATA} DiagnosisSignals"),
        (True, {"depth": 0}, f"LossMetrics ActivationHealth OutputGradientGeometry {DATA} DiagnosisSignals"),
    ],
    ids=["optimizer", "no optimizer", "not deep"],
)
def test_standard_lenses_by_default(training, with_optimizer, options, expected):
    with training.watch(training.optimizer if with_optimizer else None, **options) as watch:
        assert [type(lens).__name__ for lens in watch.inspector.lenses] == expected.split()


def test_a_list_of_lenses_is_taken_as_it_is(training):
    lenses = [OutputNorm(), ParameterNorm()]
    with training.watch(lenses=lenses) as watch:
        assert watch.inspector.lenses == lenses


def test_a_model_and_an_optimizer_in_the_wrong_order_are_noticed(training):
    with pytest.raises(OptionError, match=r"a model is a torch\.nn\.Module, not SGD: the model comes first"):
        monitorch.watch(training.optimizer, training.model)


def test_lenses_of_a_list_may_find_nothing_but_say_so():
    with pytest.warns(MonitorchWarning, match="OutputNorm found no layer"):
        monitorch.watch(nn.Linear(1, 1), lenses=[OutputNorm()], visualizer="dummy").close()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"lenses": "most"}, OptionError, "lenses='most' is unknown; choose 'standard' or 'all', or a list"),
        ({"lenses": 3}, OptionError, "is not a lens"),
        ({"lenses": ["ParameterNorm"]}, OptionError, "lenses='ParameterNorm' is unknown"),
        ({"lenses": [ParameterNorm()], "loss_fn": nn.MSELoss()}, OptionError, "into your list instead"),
        ({"lenses": [ParameterNorm()], "correlation": "exact"}, OptionError, "to the lenses in your list instead"),
        ({"correlation": "cosine"}, OptionError, "correlation='cosine' is unknown; choose .*'exact', 'sketch'.*'auto'"),
        (
            {"lenses": ["standard", LossMetrics(metrics="accuracy")], "loss_fn": nn.MSELoss()},
            OptionError,
            r"also pass it there: LossMetrics\(loss_fn=",
        ),
        ({"loss_fn": nn.functional.mse_loss}, OptionError, "loss_fn takes a module"),
        ({"tick_every": 0}, OptionError, "tick_every=0 must be a whole number of steps, at least 1"),
        ({"tick_every": True}, OptionError, "tick_every=True must be"),
        ({"tick_every": 2.5}, OptionError, r"tick_every=2\.5 must be"),
        ({"optimizer": "adam"}, OptionError, "optimizer takes a torch.optim.Optimizer or a list of them, not 'adam'"),
        ({"optimizer": [torch.optim.SGD]}, OptionError, "optimizer takes a torch.optim.Optimizer"),
        ({"optimizer": nn.Sequential(nn.Linear(1, 1))}, OptionError, r"a list of them, not Sequential\("),
        *(
            (
                {"every": wrong},
                OptionError,
                "every=.* must be a whole number of at least 1, or a function of the step's",
            )
            for wrong in (0, -1, 1.5, "2", True, False)
        ),
        *(
            ({"every": None, "budget": wrong}, OptionError, "budget=.* must be a share of time .*, such as 0.02")
            for wrong in (2, 1, 0, -0.1, float("nan"), "2 %", True, False)
        ),
        *(
            ({"every": None, "head_start": wrong}, OptionError, "head_start=.* must be a number of seconds, at least 0")
            for wrong in (-1, float("inf"), float("nan"), "2", "", True, False)
        ),
        ({"every": 1, "head_start": 2.0}, OptionError, r"head_start=2\.0 is for a budget: pass budget= too"),
        ({"every": 10, "head_start": 1}, OptionError, "head_start=1 is for a budget: pass budget= too"),
        ({"every": lambda step: True, "budget": 0.02}, OptionError, "both choose the steps: leave one of them out"),
        ({"visualizer": "paper"}, OptionError, "visualizer='paper' is unknown"),
        ({"depth": "deep"}, OptionError, "depth takes a whole number"),
        *(
            ({name: wrong}, OptionError, f"{name} takes True or False, not {re.escape(repr(wrong))}")
            for name in ("diagnose", "resume", "capture", "per_rank")
            for wrong in ("off", 1, None)
        ),
        *(
            ({name: wrong}, OptionError, f"{name} takes the name of a loss, not {re.escape(repr(wrong))}")
            for name in ("train_loss_str", "non_train_loss_str")
            for wrong in (None, ["loss"], 3)
        ),
        ({"train_loss_str": "val_loss"}, OptionError, "are both 'val_loss': give them two names"),
        ({"depht": 1}, TypeError, "depht"),
        ({"module": nn.Linear(1, 1)}, TypeError, "module"),
    ],
)
def test_bad_options_are_refused_and_leave_the_model_alone(training, options, error, text):
    with pytest.raises(error, match=text):
        training.watch(**options)
    gc.collect()
    assert training.count_hooks() == 0


@pytest.mark.parametrize("options", [{"on_error": "oops"}, {"every": 0}, {"lenses": "none"}, {"tick_every": 0}])
def test_a_call_that_is_refused_leaves_the_watch_before_it_open(training, options):
    first = training.watch()
    with pytest.raises(OptionError):
        training.watch(**options)
    assert "closed" not in repr(first)
    training.watch()
    assert "closed" in repr(first)


@pytest.mark.parametrize("model", ["model", None, torch.ones(1)])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(OptionError, match=r"a model is a torch\.nn\.Module"):
        monitorch.watch(model)


def test_after_the_end_nothing_is_left(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        training.run(5)
        assert training.count_hooks() > 0
    assert training.count_hooks() == 0
    ticks = training.shown.ticks
    training.run(10)
    watch.close()
    assert training.shown.ticks == ticks


CALLS = {
    "tick": lambda watch: watch.tick(),
    "step": lambda watch: watch.step(),
    "log": lambda watch: watch.log(a=1.0),
    "push_loss": lambda watch: watch.push_loss(1.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_watch_says_so_once_and_nothing_happens(training, name):
    watch = training.watch(training.optimizer)
    training.run(1)
    watch.close()
    before = dict(training.shown.numbers)
    with pytest.warns(MonitorchWarning, match=rf"this watch is closed, so {name}\(\) does nothing") as caught:
        any(call(watch) for call in (CALLS[name], *CALLS.values()))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert training.shown.numbers == before


def fail_in_block(training, error):
    with training.watch(training.optimizer):
        training.run(2)
        raise error("by the user")


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_the_block_comes_out_after_the_last_tick(training, error):
    with pytest.raises(error, match="by the user"):
        fail_in_block(training, error)
    assert training.shown.line("Parameter Gradient Norm", "0.weight") == pytest.approx(means(training.gradients))
    assert training.count_hooks() == 0


def test_an_error_in_one_of_several_processes_makes_no_tick(training, monkeypatch):
    monkeypatch.setattr(model_watch, "several_processes", lambda: True)
    with pytest.raises(ZeroDivisionError, match="by the user"):
        fail_in_block(training, ZeroDivisionError)
    assert training.shown.ticks == 0
    assert training.count_hooks() == 0


class Broken(Collector):
    """A visualizer that cannot show anything."""

    def flush(self):
        raise ValueError("no ink")


def test_a_tick_that_fails_is_told_once_and_training_goes_on(training):
    training.shown = Broken()
    watch = training.watch(training.optimizer)
    with pytest.warns(MonitorchWarning, match="a tick failed: ValueError: no ink") as caught:
        training.run(12)
    assert len(caught) == 1
    watch.tick()  # says no more
    watch.close()


def test_a_tick_that_fails_is_an_error_on_request(training):
    training.shown = Broken()
    training.watch(training.optimizer, on_error="raise")
    with pytest.raises(ValueError, match="no ink"):
        training.run(4)


def test_a_last_tick_that_fails_does_not_hide_the_error_of_the_block(training):
    training.shown = Broken()
    with pytest.warns(MonitorchWarning, match="no ink"), pytest.raises(ZeroDivisionError, match="by the user"):
        fail_in_block(training, ZeroDivisionError)
    assert training.count_hooks() == 0


def test_a_last_tick_that_fails_when_the_model_goes_is_told_even_where_it_is_an_error(training):
    training.shown = Broken()
    training.watch(training.optimizer, on_error="raise")
    training.run(1)
    parts = [training.model]
    del training.model
    with pytest.warns(MonitorchWarning, match="no ink"):
        any((parts.clear(), gc.collect()))


def test_a_last_tick_that_fails_leaves_no_hook_even_where_it_is_an_error(training):
    training.shown = Broken()
    watch = training.watch(training.optimizer, on_error="raise")
    training.run(1)
    with pytest.raises(ValueError, match="no ink"):
        watch.close()
    assert training.count_hooks() == 0


def test_a_last_tick_that_fails_leaves_no_hook(training):
    training.shown = Broken()
    watch = training.watch(training.optimizer)
    training.run(1)
    with pytest.warns(MonitorchWarning, match="no ink"):
        watch.close()
    assert training.count_hooks() == 0


def test_plain_call_lasts_without_being_kept(training):
    training.watch(training.optimizer)
    gc.collect()
    training.run(8)
    assert training.shown.ticks == 2


def test_watch_goes_with_its_model(training):
    watch = weakref.ref(training.watch(training.optimizer, loss_fn=training.loss_fn))
    training.run(5)
    model = weakref.ref(training.model)
    del training.model
    gc.collect()
    assert model() is None
    assert watch() is None
    assert len(training.optimizer._optimizer_step_post_hooks) == 0
    assert len(training.loss_fn._forward_hooks) == 0
    training.optimizer.step()


class SetsVariable(Collector):
    """A visualizer that sets a context variable, as NumPy and torch do."""

    variable = ContextVar("variable")

    def flush(self):
        self.variable.set("set")
        super().flush()


def test_a_watch_that_goes_with_its_model_sets_no_variable_of_the_context_it_goes_in(training):
    """Where the garbage collector comes, one may be being set, and CPython overwrites what it is about to read."""
    training.shown = SetsVariable()
    training.watch(training.optimizer)
    training.run(5)
    SetsVariable.variable.set("before")
    del training.model
    gc.collect()
    assert training.shown.ticks == 2
    assert SetsVariable.variable.get() == "before"


def test_no_hook_keeps_the_watch_alive(training):
    training.watch(training.optimizer, loss_fn=training.loss_fn)
    hooks = [hook for part in training.model.modules() for hook in part._forward_pre_hooks.values()]
    assert {type(hook).__module__.split(".")[1] for hook in hooks} <= {"engine", "inspector", "gatherer"}
    assert training.model in model_watch._watches


def test_a_closed_watch_does_not_stay_with_its_model(training):
    watch = training.watch(training.optimizer, loss_fn=training.loss_fn)
    training.run(1)
    watch.close()
    gone = weakref.ref(watch)
    del watch
    gc.collect()
    assert gone() is None
    assert training.model not in model_watch._watches


def test_watching_again_closes_the_first_watch(training):
    first = training.watch(training.optimizer)
    hooks = training.count_hooks()
    training.run(1)
    second = training.watch(training.optimizer)
    assert (training.shown.ticks, training.count_hooks()) == (1, hooks)
    assert "closed" in repr(first)
    assert "closed" not in repr(second)
    second.close()
    assert training.count_hooks() == 0


def test_the_same_lenses_may_watch_again(training):
    lenses = [ParameterGradientGeometry()]
    for _ in range(2):
        training.watch(training.optimizer, lenses=lenses)
        training.run(4)
    assert training.shown.line("Weight Gradient Norm", "0") == pytest.approx({1: np.mean(training.gradients[4:])})


def test_other_hooks_of_the_user_stay(training):
    calls = []
    training.model.register_forward_pre_hook(lambda *_: calls.append(1))
    training.optimizer.register_step_post_hook(lambda *_: calls.append(2))
    with training.watch(training.optimizer):
        training.run(1)
    training.run(1)
    assert calls == [1, 2, 1, 2]


def test_switched_off_by_the_environment_nothing_happens(training, monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        assert training.count_hooks() == 0
        training.run(9)
        watch.log(anything=1.0)
        watch.tick()
    assert training.shown.numbers == {}


def test_training_is_not_changed():
    weights = []
    for watched in (False, True):
        torch.manual_seed(1)
        training = Training()
        if watched:
            training.watch(training.optimizer, loss_fn=training.loss_fn, tick_every=2)
        training.run(7)
        weights.append([parameter.detach().numpy().tobytes() for parameter in training.model.parameters()])
    assert weights[0] == weights[1]


def test_copies_and_pickles_of_the_model_are_not_watched(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        for copied in (copy.deepcopy(training.model), pickle.loads(pickle.dumps(training.model))):
            copied(torch.ones(2, 3)).sum().backward()
        assert watch.inspector.state.passes == 0
        assert copied not in model_watch._watches
        assert training.count_hooks() > 0


@pytest.fixture
def _fresh_compiler():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


# the compiler hides these warnings of its own, but cannot where warnings are errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_a_compiled_model_is_watched_in_one_graph(training, with_optimizer):
    compiled = torch.compile(training.model, backend="aot_eager", fullgraph=True)
    optimizer = training.optimizer if with_optimizer else None
    with monitorch.watch(compiled, optimizer, loss_fn=training.loss_fn, visualizer=training.shown, tick_every=2):
        for _ in range(5):
            compiled(torch.ones(2, 3)).sum().backward()
            training.optimizer.step()
        assert training.shown.ticks == 2
        compiled.eval()
        compiled(torch.ones(2, 3))
    assert training.count_hooks() == 0
    compiled.train()
    compiled(torch.ones(2, 3))
    assert training.shown.ticks == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "tracer",
    [
        lambda model, x: torch.export.export(model, (x,)),
        lambda model, x: torch.jit.trace(model, x, check_trace=False),
        lambda model, x: torch.func.vmap(model)(x),
    ],
    ids=["export", "trace", "vmap"],
)
def test_tracing_is_no_step(training, tracer):
    with training.watch():
        tracer(training.model, torch.ones(2, 3))
    assert training.shown.ticks == 0


def test_figures_are_there_after_the_end(training):
    with training.watch(training.optimizer, visualizer="matplotlib") as watch:
        training.run(8)
    visualizer = watch.inspector.visualizer
    assert visualizer._history.epochs == (4, 8)
    assert visualizer.show_fig().axes
    visualizer.reset_fig()


def test_a_visualizer_that_the_watch_made_is_closed_and_one_of_the_user_is_not(training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with training.watch(visualizer="tensorboard") as watch:
        training.run(1)
    assert watch.inspector.visualizer._closed
    training.watch().close()
    assert not training.shown.closed


@pytest.mark.parametrize(
    ("options", "every", "budget", "head_start"),
    [
        ({}, 1, 0.03, 2.0),
        ({"head_start": 0}, 1, 0.03, 0.0),
        ({"head_start": 7.5}, 1, 0.03, 7.5),
        ({"budget": 0.02}, 1, 0.02, 0.0),
        ({"budget": 0.02, "head_start": 1}, 1, 0.02, 1.0),
        ({"every": 1}, 1, None, 0.0),
        ({"every": 10, "head_start": 0}, 10, None, 0.0),
        ({"every": 3, "budget": 0.1}, 3, 0.1, 0.0),
        ({"every": 3, "budget": 0.1, "head_start": 1}, 3, 0.1, 1.0),
    ],
    ids=str,
)
def test_a_head_start_and_three_percent_are_the_default_and_any_choice_replaces_it(
    training, options, every, budget, head_start
):
    with training.watch(training.optimizer, **{"every": None} | options) as watch:
        cadence = watch.inspector.state.cadence
        assert (cadence.every, cadence.budget, cadence.head_start) == (every, budget, head_start)


def test_the_inspector_is_told_of_optimizers(training):
    with training.watch(training.optimizer) as watch:
        assert watch.inspector.optimizers == (training.optimizer,)
    with training.watch() as watch:
        assert watch.inspector.optimizers == ()


def test_repr_counts_ticks(training):
    watch = training.watch(training.optimizer)
    training.run(9)
    assert repr(watch) == "Watch(Sequential, tick_every=4, ticks=2)"
    watch.close()
    assert repr(watch) == "Watch(Sequential, tick_every=4, ticks=3, closed)"


@pytest.mark.parametrize(
    "option", [{"run": "a"}, {"folder": "there"}, {"config": {}}, {"capture": False}, {"max_size": 2**20}]
)
def test_options_of_the_stored_run_are_refused_where_none_is_stored(training, option):
    with pytest.raises(OptionError, match=f"{next(iter(option))}.* for a stored run: drop either these or visualizer="):
        training.watch(training.optimizer, **option)
    assert training.count_hooks() == 0


@pytest.mark.parametrize("saved", ["before what is reported", "after what is reported"])
@pytest.mark.parametrize("after_each_step", [True, False])
@pytest.mark.parametrize("step", [3, 4, slow(5)])  # at a tick, and after it
def test_what_is_reported_around_a_checkpoint_is_shown_as_without_one(training, step, after_each_step, saved):
    def report(watch, training, number):
        if after_each_step or number == step:
            watch.log(number=number)

    def numbers(shown):
        return [(at, value, shown.ticks) for at, value in shown.run_line("Logged", "number mean")]

    whole = Training()
    with whole.watch(whole.optimizer, tick_every=3) as watch:
        for number in range(1, 9):
            whole.run(1)
            report(watch, whole, number)
    before = training.watch(training.optimizer, tick_every=3)
    for number in range(1, step):
        training.run(1)
        report(before, training, number)
    training.run(1)
    if saved == "after what is reported":
        report(before, training, step)
    again = Training()
    again.shown = training.shown
    after = again.watch(again.optimizer, tick_every=3)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    if saved == "before what is reported":
        report(after, again, step)
    for number in range(step + 1, 9):
        again.run(1)
        report(after, again, number)
    after.close()
    assert numbers(again.shown) == numbers(whole.shown)


@pytest.mark.parametrize("lacks", ["inspector", "ticks", "reported_before"])
def test_what_is_not_the_state_of_a_watch_is_refused_before_anything_is_loaded(lacks, training):
    with training.watch(tick_every=2) as watched:
        training.run(4)
        state = watched.state_dict()
    del state[lacks]
    with Training().watch(tick_every=2) as again:
        with pytest.raises(OptionError, match="this is not the state of a watch"):
            again.load_state_dict(state)
        assert again.inspector.state.step == 0


EXACT, ESTIMATED = {None}, {None, 0.011, 0.022}


@pytest.mark.parametrize("cadence", [{}, {"every": 1}, {"every": 2}], ids=str)
@pytest.mark.parametrize(
    ("options", "room", "errors"),
    [
        ({}, 0, ESTIMATED),
        ({}, 1 << 30, EXACT),
        ({"correlation": "exact"}, 0, EXACT),
        ({"correlation": "sketch"}, 1 << 30, ESTIMATED),
    ],
)
def test_copies_for_comparisons_are_kept_while_they_are_small_or_as_asked(cadence, options, room, errors, monkeypatch):
    monkeypatch.setattr(allocation, "MOST_COPIES", room)
    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with monitorch.watch(model, optimizer, visualizer="dummy", tick_every=4, **cadence, **options) as watch:
        for _ in range(4):
            model(torch.ones(50, 100)).sum().backward()
            optimizer.step()
        assert {record.error for record in watch.records()} == errors


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(replace_time):
    clock = Clock()
    replace_time(clock)
    return clock


class SlowPaper(Collector):
    """Notes the step and the beginning of each tick, and takes its time."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds
        self.steps, self.began = [], []

    def begin_tick(self, epoch, step, axis):
        self.steps.append(step)
        self.began.append(self.clock.now)
        super().begin_tick(epoch, step, axis)

    def flush(self):
        super().flush()
        self.clock.now += self.seconds


class TimedTraining:
    """Steps that take as long as they are told to, and their ticks."""

    def __init__(self, clock, step_seconds, tick_seconds, **options):
        self.clock, self.seconds = clock, step_seconds
        parameter = nn.Linear(1, 1)
        self.model, self.optimizer = parameter, torch.optim.SGD(parameter.parameters(), lr=0.1)
        self.shown = SlowPaper(clock, tick_seconds)
        self.watched = monitorch.watch(
            self.model, self.optimizer, lenses=[ParameterNorm()], visualizer=self.shown, **options
        )

    def run(self, steps):
        for _ in range(steps):
            self.model(torch.ones(1, 1))
            self.clock.now += self.seconds
            self.optimizer.step()
        return self

    def run_ticks(self, ticks):
        """Steps until there were so many ticks."""
        for _ in range(1_000_000):
            self.run(1)
            if len(self.shown.steps) >= ticks:
                return self
        raise AssertionError("ticks are too rare")


STEP_AND_TICK_SECONDS = pytest.mark.parametrize(
    ("step_seconds", "tick_seconds"),
    [
        *(slow(*seconds) for seconds in ((0.002, 0.0001), (0.002, 0.004), (0.04, 0.001))),
        (0.04, 0.02),
        (2.0, 0.005),
    ],
)


@pytest.mark.parametrize(
    ("options", "idle", "share"),
    [
        ({"every": None}, 0.0, 0.0075),
        ({"every": None}, 0.01, 0.005),
        ({"every": None}, 0.02, 0.00375),
        ({"every": None}, 0.5, 0.00375),
        ({"every": None, "budget": 0.02}, 0.0, 0.005),
        ({"every": None, "budget": 0.5}, 0.1, 0.01),
        ({"every": 1}, 0.5, 0.01),
    ],
)
def test_ticks_take_a_part_of_what_idle_steps_leave_of_the_budget(training, options, idle, share):
    watched = training.watch(**options)
    cost = watched.inspector.state.cadence.cost
    cost.bare, cost.on_idle = 10.0, 10.0 * idle
    assert watched._share_of_ticks() == pytest.approx(share)
    watched.close()


@STEP_AND_TICK_SECONDS
@pytest.mark.parametrize(("resumed", "every"), [(False, None), (False, 50), (True, None)])
def test_ticks_come_by_time_after_the_first_forty(clock, step_seconds, tick_seconds, resumed, every):
    training = TimedTraining(clock, step_seconds, tick_seconds, every=every)
    if resumed:
        state = training.watched.state_dict()
        training.watched.load_state_dict({**state, "ticks": 10_000})
    training.run_ticks(60)
    began, few, share = training.shown.began, 0 if resumed else 40, 0.01 if every else 0.03 / 4
    shown = list(pairwise(zip(training.shown.steps, began, strict=True)))[few:]
    for (step, begin), (next_step, next_begin) in shown:
        pause = max(0.25, tick_seconds / share)
        assert next_begin - begin >= pause + tick_seconds - 1e-9  # counted from the end of a tick
        assert next_begin - begin < pause + tick_seconds + step_seconds + 1e-9
        assert next_step > step
    assert len(shown) * tick_seconds <= share * (began[-1] - began[few])


@STEP_AND_TICK_SECONDS
@pytest.mark.parametrize("tick_every", [1, 7, 100])
def test_ticks_come_every_so_many_steps_if_that_is_asked_for(clock, step_seconds, tick_seconds, tick_every):
    training = TimedTraining(clock, step_seconds, tick_seconds, tick_every=tick_every).run(120)
    assert training.shown.steps == list(range(tick_every, 121, tick_every))


def test_first_ticks_come_every_ten_steps_and_then_at_a_tenth_more(clock):
    training = TimedTraining(clock, 0.0001, 0.0).run_ticks(40)
    assert training.shown.steps[:12] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 121]
    assert all(next_step == step + step // 10 for step, next_step in pairwise(training.shown.steps[9:]))


@pytest.mark.parametrize("every", [None, 5])
def test_dear_ticks_come_by_time_as_soon_as_they_have_taken_half_a_second(clock, every):
    training = TimedTraining(clock, 0.01, 0.2, every=every).run(1000)
    early = training.shown.steps[:3]
    assert early == [10, 20, 30]
    assert len(training.shown.steps) == 3  # the next one comes 20 seconds after the last


def test_ticks_that_take_longer_later_come_further_apart(clock):
    training = TimedTraining(clock, 0.01, 0.0005).run_ticks(200)
    training.shown.seconds = 0.02
    training.run_ticks(240)
    begin, end = training.shown.began[220], training.shown.began[239]
    assert (end - begin) * 0.01 * 1.1 >= 19 * 0.02


def test_a_tick_is_not_due_because_of_time_in_which_nothing_is_recorded(clock):
    training = TimedTraining(clock, 0.01, 0.0).run_ticks(60)
    known = len(training.shown.steps)
    with training.watched.inspector.paused(), training.watched.inspector.paused():
        clock.now += 1000.0
    training.run(20)
    assert len(training.shown.steps) == known
    training.run(20)
    assert len(training.shown.steps) > known


def test_slow_steps_are_shown_one_by_one_from_the_first_on(clock):
    assert TimedTraining(clock, 1.0, 0.001).run(5).shown.steps == [1, 2, 3, 4, 5]


def test_a_long_run_has_no_more_ticks_than_two_thousand_such_pauses(clock):
    training = TimedTraining(clock, 1.0, 0.0).run(41)
    clock.now += 20_000.0
    training.run(40)
    ticks = training.shown.steps[-4:]
    assert [end - begin for begin, end in pairwise(ticks)] == [11, 11, 11]  # 20,041 seconds / 2,000


def test_a_clock_that_stands_still_keeps_no_tick_from_being_shown(clock):
    training = TimedTraining(clock, 0.0, 0.0)
    for _ in range(50):
        training.run(1)
        training.watched.tick()
    assert training.shown.steps == list(range(1, 51))


@pytest.mark.parametrize("every", [1, 7, 100, None])
def test_losses_of_paused_steps_are_left_out_whichever_steps_are_observed(training, every):
    training.optimizer.param_groups[0]["lr"] = 1e-4
    with training.watch(training.optimizer, loss_fn=training.loss_fn, every=every, tick_every=1000) as watch:
        training.run(10)
        with watch.inspector.paused():
            training.run(10)
        training.run(10)
    losses = training.losses[:10] + training.losses[20:]
    assert training.shown.run_line("Loss", "train_loss mean") == [(30, pytest.approx(np.mean(losses), rel=1e-6))]


def numbers_of_the_run(pushes, **options):
    """Losses, evaluations and logged numbers of a training that reports in every way there is, with their steps."""
    torch.manual_seed(3)
    training = Training()
    training.optimizer.param_groups[0]["lr"] = 1e-4
    with training.watch(training.optimizer, loss_fn=training.loss_fn, tick_every=5, **options) as watch:
        for number in range(1, 46):
            training.run(1)
            if pushes:
                watch.push_loss(training.losses[-1])
                watch.log(number=number)
            if number % 7 == 0:
                training.evaluate()
                watch.log(accuracy=number / 8)
            if number == 33:
                watch.log(early=number, step=number - 1)
    lines = {name: found for name, found in training.shown.at_steps.items() if name[0] in ("Loss", "Logged")}
    observed = len(training.shown.run_line("Parameter Gradient Norm", "mean"))  # ticks with numbers of layers
    return {name: found for name, found in lines.items() if "per second" not in name[1]}, observed


@cache
def numbers_of_every_step(pushes):
    return numbers_of_the_run(pushes, every=1)


@pytest.mark.parametrize("pushes", [True, False])
@pytest.mark.parametrize(
    ("options", "are_rare"),
    [({"every": 30}, True), ({"every": None, "budget": 0.001}, True), ({"every": None}, False)],
    ids=str,
)
def test_losses_and_reported_numbers_are_the_same_whichever_steps_are_observed(options, are_rare, pushes, replace_time):
    expected, all_observed = numbers_of_every_step(pushes)
    replace_time(partial(next, map((1e-4).__mul__, count())))
    found, observed = numbers_of_the_run(pushes, **options)
    assert found == expected
    assert observed < all_observed or not are_rare


# --- events ---


def test_a_watch_passes_events_on_and_keeps_them(training):
    told = []
    with training.watch(training.optimizer, on_event=told.append) as watched:
        training.run(2)
        watched.inspector.state.events.add(2, "first", "warning", layer="0")
        training.run(1)
        assert [event.kind for event in told] == ["first"]
        watched.inspector.state.events.add(3, "second")
    assert [event.kind for event in told] == ["first", "second"]
    assert watched.events() == told


def test_the_function_may_close_the_watch(training):
    told = []

    def on_event(event):
        told.append(event.kind)
        watched.close()

    watched = training.watch(training.optimizer, on_event=on_event)
    training.run(2)
    for kind in ("first", "second"):
        watched.inspector.state.events.add(2, kind)
    training.run(2)
    assert told == ["first", "second"]
    assert training.count_hooks() == 0


def test_events_are_told_when_training_fails(training):
    told = []

    def train():
        with training.watch(training.optimizer, on_event=told.append) as watched:
            training.run(2)
            watched.inspector.state.events.add(2, "just before")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()
    assert [event.kind for event in told] == ["just before"]


def test_a_loss_that_is_not_finite_in_a_step_that_is_skipped_stops_nothing(training, tmp_path):
    options = {"visualizer": None, "folder": tmp_path, "run": "run", "stop_on": "error"}
    with training.watch(training.optimizer, loss_fn=training.loss_fn, **options) as watched:
        training.run(4)
        training.loss_fn(torch.full((2, 1), torch.nan), torch.zeros(2, 1))  # and no backward
        training.run(8)
    found = [(event.kind, event.severity, event.layer) for event in watched.events()]
    assert found == [("not finite", "warning", "run")]
    assert watched.inspector.first_not_finite is None


def test_a_run_that_an_event_stops_is_marked_as_crashed_and_has_the_event(training, tmp_path):
    told = []

    def train():
        options = {"visualizer": None, "folder": tmp_path, "run": "run", "on_event": told.append, "stop_on": "error"}
        with training.watch(training.optimizer, loss_fn=training.loss_fn, **options) as watched:
            training.run(5)
            watched.inspector.state.events.add(5, "too hot", "error", layer="2")
            training.run(5)

    with pytest.raises(TrainingStopped, match="error at step 5: too hot: layer 2"):
        train()
    assert [(event.kind, event.step) for event in told] == [("too hot", 5), ("flight record", 5)]
    assert len(training.losses) == 5
    with open_run(tmp_path / "run") as run:
        assert [event._replace(id=0) for event in run.events()] == told
        assert (run.status, run.error.type) == ("crashed", "TrainingStopped")


def test_a_tick_of_the_user_stops_training_and_closing_does_not(training):
    watched = training.watch(training.optimizer, stop_on="warning")
    training.run(5)
    watched.inspector.state.events.add(5, "odd", "warning")
    with pytest.raises(TrainingStopped, match="warning at step 5: odd"):
        watched.tick()
    watched.inspector.state.events.add(5, "odd", "warning")
    watched.close()
    assert len(watched.events()) == 2


def test_steps_of_the_user_stop_training(training):
    watched = training.watch(stop_on="error")
    training.run(1)
    watched.step()
    watched.inspector.state.events.add(1, "odd", "error")
    with pytest.raises(TrainingStopped):
        watched.step()
    watched.close()


def test_a_tick_at_the_end_of_a_step_is_complete_before_training_stops(training):
    """A tick that finds the event is not cut short: the next ones come when they would have come."""

    class Judge(Collector):
        def flush(self):
            super().flush()
            if self.ticks == 2:
                watched.inspector.state.events.add(8, "judged", "error")

    training.shown = judge = Judge()
    watched = training.watch(training.optimizer, stop_on="error")
    with pytest.raises(TrainingStopped, match="step 8: judged"):
        training.run(20)
    assert len(training.losses) == 8
    training.run(8)
    assert judge.ticks == 4
    watched.close()
