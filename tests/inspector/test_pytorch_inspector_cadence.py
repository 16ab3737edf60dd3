"""Which steps are observed, and which gradients: those an optimizer consumes."""

import copy
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.gatherer import feed_forward_gatherer
from monitorch.inspector import inspector_state, pytorch_inspector, step_counter
from monitorch.inspector.cadence import Cadence, Phase
from monitorch.lens import (
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterFacts,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterUpdateGeometry,
)
from tests.inspector.fake_time import Time

STEPS = 10


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def batch(number):
    stream = torch.Generator().manual_seed(number)
    return torch.randn(6, 3, generator=stream), torch.randn(6, 1, generator=stream)


def array(tensor):
    return tensor.detach().double().numpy().copy()


def cosine(first, second):
    return (first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second))


class Truth:
    """What a twin in float64 really does, as arrays by step."""

    def __init__(self, model):
        self.model = copy.deepcopy(model).double()
        self.outputs, self.series = {}, defaultdict(list)
        for name, layer in self.model.named_children():
            layer.register_forward_hook(lambda _, __, output, name=name: self._keep(name, output))

    def _keep(self, name, output):
        output.retain_grad()
        self.outputs[name] = output

    def train(self, steps):
        optimizer = sgd(self.model)
        for number in range(1, steps + 1):
            optimizer.zero_grad()
            inputs, targets = (part.double() for part in batch(number))
            nn.functional.mse_loss(self.model(inputs), targets).backward()
            before = [array(parameter) for parameter in self.model.parameters()]
            optimizer.step()
            for name, output in self.outputs.items():
                self.series["Output", name].append(array(output))
                self.series["Output Gradient", name].append(array(output.grad))
            for (path, parameter), old in zip(self.model.named_parameters(), before, strict=True):
                layer, short = path.split(".")
                self.series[f"{short.title()} Gradient", layer].append(array(parameter.grad))
                self.series[f"{short.title()} Update", layer].append(array(parameter) - old)
        return self

    def geometry(self, observed):
        """Norms and correlations of the observed steps (from 1), each compared with the step before."""
        found = {}
        for (what, layer), arrays in self.series.items():
            if what != "Output" and (what, layer) != ("Output Gradient", "1"):
                now = [arrays[step - 1] for step in observed]
                before = [arrays[step - 2] for step in observed]
                found[f"{what} Norm", layer] = np.mean([np.linalg.norm(x) for x in now])
                found[f"{what} Correlation", layer] = np.mean(list(map(cosine, now, before)))
        return found

    def rates(self, observed):
        outputs = [abs(self.series["Output", "1"][step - 1]) > 1e-8 for step in observed]
        norms = [np.linalg.norm(self.series["Output", "1"][step - 1], axis=1).mean() for step in observed]
        return {
            ("Output Norm", "1", "mean"): np.mean(norms),
            ("Output Activations", "1", "activation_rate"): np.mean([active.mean() for active in outputs]),
            ("Output Activations", "1", "death_rate"): np.mean([(~active.any(0)).mean() for active in outputs]),
        }


@pytest.fixture
def watch(model):
    """Inspectors that live as long as the test."""
    kept = []

    def build(*lenses, **options):
        options = {"module": model, "visualizer": "dummy", "on_error": "raise", **options}
        kept.append(PyTorchInspector(lenses, **options))
        return kept[-1]

    return build


def shown(inspector):
    inspector.tick_epoch()
    return {(record.tag, record.layer, record.statistic): record.value for record in inspector.records()}


def means(inspector):
    return {key[:2]: value for key, value in shown(inspector).items() if key[2] == "mean"}


def train(model, optimizer, steps, after=lambda: None, first=1):
    for number in range(first, first + steps):
        optimizer.zero_grad()
        inputs, targets = batch(number)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        after()


def close(expected):
    return pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("every", "observed"),
    [(3, [3, 6, 9]), (2, [2, 4, 6, 8, 10]), (lambda step: step in (4, 5, 8), [4, 5, 8])],
    ids=["every third", "every second", "function"],
)
@pytest.mark.parametrize("given", [True, False], ids=["optimizer", "passes"])
def test_observed_steps_are_compared_with_those_right_before(every, observed, given, model, watch):
    truth = Truth(model).train(STEPS)
    optimizer = sgd(model)
    lenses = [
        OutputNorm(),
        OutputActivation(),
        OutputGradientGeometry(),
        ParameterGradientGeometry(),
        ParameterGradientActivation(),
        ParameterUpdateGeometry(optimizer),
    ]
    inspector = watch(*lenses, every=every, optimizer=optimizer if given else None)
    train(model, optimizer, STEPS)
    found = shown(inspector)
    expected = truth.geometry(observed)
    assert {key: found[(*key, "mean")] for key in expected} == close(expected)
    assert {key: found[key] for key in truth.rates(observed)} == close(truth.rates(observed))


def test_ticks_do_not_disturb_the_rhythm(model, watch):
    truth = Truth(model).train(STEPS)
    optimizer = sgd(model)
    inspector, ticks = watch(ParameterGradientGeometry(), optimizer=optimizer, every=3), []
    train(model, optimizer, STEPS, after=lambda: ticks.append(means(inspector)))
    seen = [number for number, tick in enumerate(ticks, start=1) if tick]
    assert seen == [3, 6, 9]
    for step in seen:
        expected = {key: value for key, value in truth.geometry([step]).items() if key in ticks[step - 1]}
        assert ticks[step - 1] == close(expected)
        assert len(expected) == 8


def test_idle_steps_record_nothing_and_leave_no_hooks_on_tensors(model, watch):
    optimizer = sgd(model)
    inspector = watch(OutputGradientGeometry(), OutputNorm(), optimizer=optimizer, every=4)
    hooks, rows, buffer = [], [], inspector.state.engine.buffers[torch.device("cpu")]
    for layer in model:
        layer.register_forward_hook(lambda _, __, output: hooks.append(len(output._backward_hooks or ())))

    def note():
        rows.append((sum(hooks), len(buffer)))
        hooks.clear()
        inspector.tick_epoch()

    train(model, optimizer, 8, after=note)
    # two linear layers lead; they and an activation are observed
    assert rows == [(0, 0), (0, 0), (2, 2), (2, 3)] * 2


def test_idle_steps_are_bare_for_autograd(model, watch):
    """Torch looks into a dictionary of hooks in every backward pass, also into one that has become empty."""
    optimizer, called, hooked = sgd(model), [], []
    first, *others = model.parameters()
    first.register_hook(called.append)
    watch(ParameterFacts(optimizer), ParameterGradientGeometry(), optimizer=optimizer, every=4)
    first.register_hook(lambda _: hooked.append([own._backward_hooks is not None for own in others]))
    train(model, optimizer, 9)
    assert len(called) == 9  # the user's own
    assert [any(at_step) for at_step in hooked] == [False, False, True, True, False, False, True, True, False]
    assert not any(own._post_accumulate_grad_hooks is not None for own in others)


def test_without_comparisons_no_step_is_a_baseline(model, watch):
    optimizer = sgd(model)
    inspector = watch(OutputGradientGeometry(compute_correlation=False), optimizer=optimizer, every=2)
    train(model, optimizer, 3)
    assert len(inspector.state.engine.buffers[torch.device("cpu")]) == 2


def test_losses_are_seen_at_every_step(model, watch):
    optimizer, loss_fn = sgd(model), nn.MSELoss()
    inspector, losses = watch(LossMetrics(loss_fn=loss_fn), optimizer=optimizer, every=5), []
    for number in range(4):
        loss = loss_fn(model(batch(number)[0]), batch(number)[1])
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    assert shown(inspector)["Loss", "Loss", "train_loss mean"] == pytest.approx(np.mean(losses))


def test_unrecorded_passes_are_counted_as_gaps(model, watch):
    optimizer = sgd(model)
    inspector = watch(ParameterGradientGeometry(), optimizer=optimizer)
    train(model, optimizer, 2)
    assert inspector.state.gaps == 0
    with inspector.paused():
        train(model, optimizer, 3)
        with torch.no_grad():
            model(batch(0)[0])
    train(model, optimizer, 2)
    assert inspector.state.gaps == 3


@pytest.fixture
def take_time(monkeypatch):
    """Make a baseline step of a model take half as long again as an idle one, and an observed one twice as long."""
    time = Time()
    monkeypatch.setattr(pytorch_inspector, "Cadence", partial(Cadence, clock=time))
    for room in (inspector_state, feed_forward_gatherer, step_counter):
        monkeypatch.setattr(room, "perf_counter", time)

    def take(model, inspector, seconds):
        phases, began = [], time.now

        def step(*_):
            phases.append(inspector.state.phase)
            time.now += seconds * (1 + 0.5 * phases[-1])

        model.register_forward_hook(step)
        return phases, lambda: (time.now - began) / (seconds * len(phases)) - 1

    return take


@pytest.mark.parametrize("given", [True, False], ids=["optimizer", "passes"])
def test_a_budget_chooses_how_often_and_says_what_it_costs(given, model, watch, take_time):
    optimizer = sgd(model)
    options = {"budget": 0.1, "optimizer": optimizer if given else None}
    inspector = watch(ParameterGradientGeometry(), OutputNorm(), **options)
    phases, added = take_time(model, inspector, seconds=1.0)
    assert inspector.overhead is None
    train(model, optimizer, 400)
    assert added() == pytest.approx(0.1, abs=0.01)
    assert inspector.overhead == pytest.approx(added(), abs=0.01)
    assert not inspector.overhead_is_lower_bound
    assert phases.count(Phase.OBSERVE) == pytest.approx(400 / 15, abs=4)  # (0.5 + 1.0) / 15 is the budget
    before = inspector.overhead
    inspector.detach()
    assert (inspector.overhead, inspector.overhead_is_lower_bound) == (before, False)


@pytest.mark.parametrize("given", [True, False], ids=["optimizer", "passes"])
def test_a_tick_after_every_step_is_no_part_of_its_time(given, model, watch, take_time):
    optimizer = sgd(model)
    inspector = watch(OutputNorm(), every=4, optimizer=optimizer if given else None)
    take_time(model, inspector, seconds=1000.0)  # beside which real ticks are short
    inspector.state.follow(ticker := Ticker(inspector))
    train(model, optimizer, 40)
    assert ticker.ticks > 30
    assert inspector.overhead == pytest.approx(0.25, abs=0.03)


class Ticker:
    """Ticks like a watch: when a step has ended, or if nothing tells of that, when the next one begins."""

    def __init__(self, inspector):
        self.inspector, self.ticks = inspector, 0
        inspector.state.tick_step = 0  # due after any step

    def step_is_over(self):
        self.ticks += 1
        self.inspector.tick_epoch()

    def step_begins(self):
        if not self.inspector.state.steps_have_ends and self.inspector.state.step:
            self.step_is_over()

    def evaluation_begins(self):
        pass


def test_a_head_start_is_spent_on_the_first_steps(model, watch, take_time):
    optimizer = sgd(model)
    inspector = watch(ParameterGradientGeometry(), optimizer=optimizer, budget=0.03, head_start=7.0)
    phases, _ = take_time(model, inspector, seconds=0.1)
    train(model, optimizer, 150)
    assert phases[:72].count(Phase.OBSERVE) == 63
    assert phases[90:].count(Phase.OBSERVE) < 6


@pytest.mark.parametrize("every", [1, 2])
def test_the_cost_of_observing_is_a_lower_bound_where_no_step_is_idle(every, model, watch):
    optimizer = sgd(model)
    inspector = watch(ParameterGradientGeometry(), OutputNorm(), optimizer=optimizer, every=every)
    train(model, optimizer, 10)
    assert inspector.overhead > 0
    assert inspector.overhead_is_lower_bound


# something unusual


def with_nan(inspector, model):
    with torch.no_grad():
        model(torch.full((2, 3), torch.nan))


def push_nan(inspector, model):
    inspector.push_loss(float("nan"), train=True)


def push_nothing_unusual(inspector, model):
    inspector.push_loss(1.0, train=True)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (with_nan, {"numbers that are not finite"}),
        (push_nan, {"a loss that is not finite"}),
        (push_nothing_unusual, set()),
    ],
)
def test_numbers_that_are_not_finite_are_noticed(act, expected, model, watch):
    inspector, kinds = watch(OutputNorm(record_eval=True), LossMetrics()), set()
    inspector.state.notice = kinds.add
    act(inspector, model)
    inspector.tick_epoch()
    inspector.records()
    assert kinds == expected


def test_sketches_are_nothing_unusual_until_a_number_is_not_finite(model, watch):
    optimizer, kinds = sgd(model), set()
    updates = ParameterUpdateGeometry(optimizer, correlation="sketch")
    inspector = watch(ParameterGradientGeometry(correlation="sketch"), updates, optimizer=optimizer)
    inspector.state.notice = kinds.add
    for expected in (set(), {"numbers that are not finite"}):
        train(model, optimizer, 3)
        inspector.tick_epoch()
        inspector.records()
        assert kinds == expected
        with torch.no_grad():
            next(model.parameters())[0] = torch.nan


def test_a_loss_that_is_not_finite_buys_a_closer_look_once(model, watch, take_time):
    optimizer = sgd(model)
    inspector = watch(ParameterGradientGeometry(), LossMetrics(), optimizer=optimizer, budget=0.03)
    phases, _ = take_time(model, inspector, seconds=0.1)
    seen = []
    for loss in (1.0, float("nan"), float("nan")):
        before = phases.count(Phase.OBSERVE)
        train(model, optimizer, 200)
        seen.append(phases.count(Phase.OBSERVE) - before)
        inspector.push_loss(loss, train=True)
        inspector.tick_epoch()
        inspector.records()
    train(model, optimizer, 100)
    assert seen[0] < 12
    assert seen[1] < 12
    assert 20 <= seen[2] <= 40  # two seconds pay for twenty steps
