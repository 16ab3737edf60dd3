"""Norms at every step: as NumPy computes them, however the model is trained; or none, where they cost too much."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.engine import buffers, step_norms
from monitorch.engine.buffers import DeviceBuffer
from monitorch.engine.norm_ring import OF_GRADIENTS, OF_PARAMETERS, STEPS, UNMEASURED
from monitorch.engine.step_norms import AGAIN, ENOUGH, FIRST, Price
from monitorch.lens import GradientNorm, ParameterNorm
from monitorch.numerical.precision import HOST
from tests.inspector.fake_time import Time


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Let the CPU be a device where norms stay, at any price, and rows are written by kernels."""
    monkeypatch.setattr(step_norms, "is_kept_on", lambda device: device.type != "meta")
    monkeypatch.setattr(step_norms, "SHARE", math.inf)
    monkeypatch.setattr(buffers, "HostBuffer", partial(DeviceBuffer, HOST))


@pytest.fixture
def at_any_price(monkeypatch):
    monkeypatch.setattr(step_norms, "SHARE", math.inf)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def norm(tensor):
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    wide = dense.to(torch.complex128 if dense.is_complex() else torch.float64)
    return float(np.linalg.norm(wide.numpy().ravel()))


class Training:
    """Trains a model and notes what the norms have to be, by step and parameter."""

    def __init__(self, model, *optimizers, lenses=None, **options):
        self.model, self.optimizers = model, optimizers
        arguments = {"visualizer": "dummy", "on_error": "raise", "every": 10, "optimizer": optimizers, **options}
        self.lens = GradientNorm(inplace=False)
        self.inspector = PyTorchInspector([self.lens] if lenses is None else lenses, module=model, **arguments)
        self.norms = self.inspector.state.engine.norms
        self.norms.keep()
        self.gradients, self.weights = [], []

    def note(self, gradient=norm):
        own = dict(self.model.named_parameters())
        self.gradients.append({name: UNMEASURED if p.grad is None else gradient(p.grad) for name, p in own.items()})
        self.weights.append({name: norm(p) for name, p in own.items()})

    def backward(self, parts=1):
        for _ in range(parts):
            self.model(torch.randn(5, 3)).square().sum().backward()

    def run(self, steps, parts=1):
        for _ in range(steps):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            self.backward(parts)
            self.note()
            for optimizer in self.optimizers:
                optimizer.step()

    def kept(self, line=OF_GRADIENTS):
        """By step, which are numbered from 1, and parameter."""
        self.inspector.state.engine.settle()
        steps, names, numbers = self.norms.read()
        joined = [".".join(filter(None, name)) for name in names]
        return {
            step + 1: dict(zip(joined, of[line].tolist(), strict=True))
            for step, of in zip(steps.tolist(), numbers, strict=True)
        }

    def totals(self):
        self.inspector.state.engine.settle()
        return [float(number) for values in self.lens._norm.norms.values() for number in values]

    def check(self, close):
        first = max(0, len(self.gradients) - STEPS)
        steps = range(first + 1, len(self.gradients) + 1)
        expected = dict(zip(steps, self.gradients[first:], strict=True))
        assert self.kept() == {step: close(own) for step, own in expected.items()}
        return dict(zip(steps, self.weights[first:], strict=True))


@pytest.fixture
def close():
    return partial(pytest.approx, rel=1e-6, abs=1e-30)


def total(norms):
    return math.sqrt(sum(one**2 for one in norms.values() if one != UNMEASURED))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("steps", [1, 25, STEPS + 9])
@pytest.mark.parametrize("every", [1, 10, 1000])
def test_norms_of_the_last_steps_are_kept_whichever_are_observed(steps, every, close):
    model = mlp()
    training = Training(model, torch.optim.Adam(model.parameters()), every=every)
    training.run(steps)
    weights = training.check(close)
    assert training.kept(OF_PARAMETERS) == {step: close(own) for step, own in weights.items()}
    assert training.totals() == close([total(own) for own in training.gradients])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_gradients_are_those_that_the_optimizer_gets_after_accumulation_and_clipping(close):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer)

    def clip(*_):  # a hook that comes after ours
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    optimizer.register_step_pre_hook(clip)
    for parts in (1, 3, 2):
        optimizer.zero_grad()
        training.backward(parts)
        optimizer.step()
        training.note()
    found = training.kept()
    assert [total(own) for own in found.values()] == pytest.approx([0.01] * 3, rel=1e-3)
    training.check(close)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_optimizers_that_step_one_after_another_are_in_the_same_step(close):
    model = mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    training = Training(model, first, second)
    training.run(12)
    found = training.kept()
    assert list(found) == list(range(1, 13))
    for step in range(1, 13):
        for name in ("0.weight", "2.weight"):
            assert found[step][name] == close(training.gradients[step - 1][name])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_closure_gives_the_gradients_of_its_last_call(close):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    training, batch = Training(model, optimizer), torch.randn(5, 3)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().sum() + 1
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        training.note()
    weights = training.check(close)
    assert training.kept(OF_PARAMETERS) == {step: close(own) for step, own in weights.items()}


class Mixed(nn.Module):
    """Parameters of many kinds, and a tied, a frozen and an unused one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 3, sparse=True)
        self.wide, self.short = nn.Linear(3, 3).double(), nn.Linear(3, 3).bfloat16()
        self.turn = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.tied, self.frozen, self.unused = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.tied.weight = nn.Parameter(torch.randn(3, 3))
        self.again = nn.Linear(3, 3, bias=False)
        self.again.weight = self.tied.weight
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.frozen(self.embed((x > 0).long()).sum(1))
        x = self.short(x.bfloat16()).float() + self.wide(x.double()).float() + (x * self.turn).real
        return self.again(self.tied(x)) + self.empty.sum()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_sparse_complex_short_and_tied_parameters_are_measured_and_frozen_ones_are_not(close):
    torch.manual_seed(0)
    model = Mixed()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    training.run(4)
    found = training.kept()
    assert [set(own) for own in found.values()] == [set(dict(model.named_parameters()))] * 4
    training.check(partial(pytest.approx, rel=1e-5, abs=1e-30))
    assert found[2]["frozen.weight"] == found[2]["unused.bias"] == UNMEASURED
    assert training.totals() == pytest.approx([total(own) for own in training.gradients], rel=1e-5)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_tensors_that_cannot_be_read_together_are_read_one_by_one(close, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError('"foreach_norm" not implemented for this dtype')

    monkeypatch.setattr(step_norms, "norm_all", fail)
    model = mlp()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    training.run(12)
    training.check(close)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_parameters_that_come_later_are_found(close):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer)
    training.run(3)
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    optimizer.param_groups[0]["params"] = list(model.parameters())
    training.run(2)
    model.append(nn.Linear(1, 2))
    optimizer.add_param_group({"params": model[3].parameters()})
    training.inspector.tick()
    training.run(3)
    found = training.kept()
    for step, own in enumerate(training.gradients, 1):
        if step in found:  # a ring for more parameters begins anew
            assert {name: found[step][name] for name in own} == close(own)
    assert {6, 7, 8} <= found.keys()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_with_a_scaler_norms_have_no_scale_and_skipped_steps_are_no_alarm(close):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    training = Training(model, optimizer, grad_scaler=scaler)
    for step in range(1, 15):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(5, 3)).square().sum()).backward()
        if step == 5:
            model[0].weight.grad[0, 0] = torch.inf
        scale = scaler.get_scale()
        training.note(lambda gradient, scale=scale: norm(gradient) / scale)
        scaler.step(optimizer)
        scaler.update()
    training.gradients[4] = dict.fromkeys(training.gradients[4], UNMEASURED)
    training.check(close)
    assert training.inspector.first_not_finite is None
    assert training.totals() == close([total(own) for own in training.gradients if own["0.bias"] != UNMEASURED])


@pytest.mark.parametrize("fixture", ["as_on_a_gpu", "at_any_price"])
@pytest.mark.parametrize("where", ["gradient", "parameter"])
def test_what_was_not_finite_first_is_known_in_steps_that_are_not_observed(fixture, where, request):
    request.getfixturevalue(fixture)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    training = Training(model, optimizer, every=100)
    training.run(20)
    if where == "parameter":
        with torch.no_grad():
            model[2].weight[0, 1] = torch.inf
    else:
        optimizer.zero_grad()
        training.backward()
        model[2].weight.grad[0, 1] = torch.nan
        optimizer.step()
    training.run(3)
    found = training.inspector.first_not_finite
    at = (20, "step", "parameter") if where == "parameter" else (21, "backward", "gradient")
    assert found[:5] == (*at, "2", "weight")
    assert found.last_good == 20
    assert "not measured:" not in found.text


@pytest.mark.parametrize("fixture", ["as_on_a_gpu", "at_any_price"])
def test_weights_and_random_numbers_are_those_of_a_bare_run(fixture, request):
    request.getfixturevalue(fixture)
    results = []
    for is_watched in (False, True):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        if is_watched:
            Training(model, optimizer).run(30)
        else:
            for _ in range(30):
                optimizer.zero_grad()
                model(torch.randn(5, 3)).square().sum().backward()
                optimizer.step()
        results.append(([own.detach().numpy().tobytes() for own in model.parameters()], torch.rand(3).tolist()))
    assert results[0] == results[1]


@pytest.mark.usefixtures("at_any_price")
def test_on_a_cpu_the_norm_of_all_is_known_at_every_step_once_it_was_found_to_be_cheap(close):
    model = mlp()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    training.run(40)
    assert training.norms._price.is_low is True
    found, expected = training.totals(), [total(own) for own in training.gradients]
    assert found[-25:] == close(expected[-25:])
    assert len(found) >= 40 - FIRST - ENOUGH - 3
    assert all(min(abs(one / other - 1) for other in expected) < 1e-6 for one in found)
    assert training.kept() == {}  # nothing else is kept there


@pytest.mark.parametrize("device", ["cpu", "as a gpu"])
def test_what_costs_too_much_is_given_up_for_good(device, request, monkeypatch):
    if device != "cpu":
        request.getfixturevalue("as_on_a_gpu")
    monkeypatch.setattr(step_norms, "SHARE", 0.0)
    model = mlp()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    training.run(25)
    assert training.norms._price.is_low is False
    assert not training.norms.wants_every_step
    before, kept = training.totals(), training.kept()
    training.run(25)
    assert training.inspector.state.is_quiet  # idle steps go by unnoticed
    expected = [total(own) for own in training.gradients]
    assert training.totals()[len(before) :] == pytest.approx([expected[29], expected[39], expected[49]])
    assert training.kept() == kept


@pytest.mark.parametrize(("later", "is_low"), [(1e-6, True), (0.01, False)])
def test_what_was_cheap_in_the_first_steps_is_measured_again(later, is_low, monkeypatch):
    time = Time()
    monkeypatch.setattr(step_norms, "perf_counter", time)
    price = Price(HOST)
    for step in range(10 * AGAIN):
        with price.measuring(step):
            time.now += 1e-6 if step < AGAIN - 1 else later
        price.decide(bare=0.01, share=0.01, more=0.0)
        if step == AGAIN - 2:
            assert price.is_low is True
    assert price.is_low is is_low


@pytest.mark.parametrize(
    "options",
    [{"gradient": "before_clip"}, {"optimizer": None}],
    ids=["before clipping", "no optimizer"],
)
@pytest.mark.usefixtures("at_any_price")
def test_where_it_would_be_another_number_it_stays_at_observed_steps(options):
    model = mlp()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.0), **options)
    training.run(40)
    assert len(training.totals()) == 4


@pytest.mark.usefixtures("as_on_a_gpu")
def test_parameters_that_no_optimizer_has_count_in_no_step_whether_observed_or_not(close):
    model = mlp()
    training = Training(model, torch.optim.SGD(model[0].parameters(), lr=0.0))
    training.run(40, parts=3)
    owned = [{name: one for name, one in of.items() if name.startswith("0.")} for of in training.gradients]
    assert training.totals() == close([total(of) for of in owned])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nothing_is_read_while_recording_is_paused_or_a_graph_is_captured(monkeypatch):
    model = mlp()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    training.run(3)
    with training.inspector.paused():
        training.run(2)
    monkeypatch.setattr(step_norms, "is_capturing", lambda device: True)
    training.run(2)
    monkeypatch.undo()
    assert list(training.kept()) == [1, 2, 3]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_meta_tensors_and_parameters_outside_of_the_model_are_left_alone():
    model = mlp()
    model.extra = nn.Parameter(torch.zeros(2, device="meta"))
    outside = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters(), outside], lr=0.1)
    training = Training(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(5, 3)).sum() * outside.sum()).backward()
        optimizer.step()
    assert all(own["extra"] == UNMEASURED for own in training.kept().values())
    assert all(set(own) == set(dict(model.named_parameters())) for own in training.kept().values())


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_lens_that_leaves_takes_its_sum_with_it():
    model = mlp()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), every=100)
    training.run(12)
    training.inspector.lenses.clear()
    training.inspector.lenses.append(ParameterNorm())
    training.inspector.tick()
    training.run(12)
    training.inspector.tick()
    assert training.totals() == []
    assert len(training.kept()) == 24
    training.inspector.detach()
    assert not training.norms.wants_every_step


def test_nobody_pays_for_what_nobody_wants():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = PyTorchInspector(
        [ParameterNorm()], module=model, optimizer=optimizer, every=10, visualizer="dummy", on_error="raise"
    )
    norms = inspector.state.engine.norms
    assert not norms.wants_every_step
    for _ in range(12):
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    assert norms._price.is_low is None
    assert not norms._rings


@pytest.mark.usefixtures("as_on_a_gpu")
def test_other_parameters_may_have_gradients_in_each_step(close):
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(3, 1) for _ in range(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer)
    for step in range(12):
        optimizer.zero_grad()
        model[step % 3](torch.randn(5, 3)).sum().backward()
        training.note()
        optimizer.step()
    training.check(close)
    assert training.totals() == close([total(own) for own in training.gradients])


@pytest.mark.parametrize("fixture", ["as_on_a_gpu", "at_any_price"])
def test_what_fails_is_told_once_and_not_tried_again(fixture, request, monkeypatch):
    request.getfixturevalue(fixture)
    model = mlp()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), on_error="warn")
    tries = []

    def fail(tensor):
        tries.append(1)
        raise NotImplementedError("there is no norm of this")

    monkeypatch.setattr(step_norms, "part_here", fail)
    with pytest.warns(MonitorchWarning, match="there is no norm of this"):
        training.run(20)
    assert len(tries) == 1
    assert len(training.totals()) == 2  # those of observed steps
