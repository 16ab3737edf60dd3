"""Measurements that run copies of the model: right numbers, and nothing of training changes."""

import copy
import dataclasses
import gc
import math
import random
import types
from collections import UserDict
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from monitorch import watch
from monitorch.engine.torch_private import number_of_graphs
from monitorch.errors import LifecycleError, MonitorchWarning, OptionError, UnsupportedModelError
from monitorch.inspector import ProbeReport, PyTorchInspector
from monitorch.inspector.cadence import Cadence
from monitorch.inspector.inspector_state import InspectorState
from monitorch.inspector.step_clock import Phase
from monitorch.lens import LossMetrics
from tests.inspector.fake_time import Time
from tests.unchanged import everything

ALL = {"overfit": 2, "sharpness": True, "mixing": True, "iterations": 3}
ONCE = {"overfit": 2, "mixing": True}
"""The same for models that cannot be differentiated twice."""


def inspect(model, **options):
    return PyTorchInspector(options.pop("lenses", []), module=model, visualizer="dummy", **options)


def probe(model, *batch, **options):
    return inspect(model).probe(*batch, **options)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def array(tensor):
    return tensor.detach().double().numpy()


# nothing changes


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, dropout=0.5, num_layers=2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.lstm(x[:, None])[0][:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(self.first(x).tanh()).tanh())


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.inner, self.last, self.reentrant = nn.Linear(3, 4), nn.Linear(4, 2), use_reentrant

    def forward(self, x):
        if not torch.is_grad_enabled():
            return self.last(self.inner(x).tanh())
        return self.last(checkpoint(self.inner, x + 0 * self.last.bias[0], use_reentrant=self.reentrant).tanh())


class Random(nn.Module):
    """Draws from every generator there is."""

    def __init__(self):
        super().__init__()
        self.linear, self.own, self.numpy = nn.Linear(3, 2), torch.Generator().manual_seed(3), np.random.default_rng(5)

    def forward(self, x):
        noise = random.random() + np.random.rand() + self.numpy.random()
        return self.linear(x + torch.rand_like(x) + torch.rand(1, generator=self.own)) * noise


class Keeping(nn.Module):
    """Keeps what it has seen: in attributes, lists and buffers, some of them replaced."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.seen = nn.Linear(3, 2), 0, []
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("last", None)

    def forward(self, x):
        x.mul_(2)
        self.calls += 1
        self.seen.append(self.linear(x))
        self.total, self.last = self.total + 1, x.detach().clone()
        self.hidden = self.seen[-1]
        return self.hidden


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(12, 2)

    def forward(self, x):
        return self.last(self.layer(x[:, :, None].expand(-1, -1, 4)).flatten(1))


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.embedding(x.argmax(1)) * x.sum(1, keepdim=True))


def normalised():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def frozen():
    model = normalised()
    model[0].requires_grad_(False)
    model[1].eval()
    return model


def hooked():
    """With hooks of the user's own, one of which changes outputs, and one that makes steps inside backward."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[2].weight.register_hook(lambda gradient: gradient * 3)
    model[0].weight.register_post_accumulate_grad_hook(step_at_once)
    return model


def step_at_once(parameter):
    with torch.no_grad():
        parameter -= parameter.grad


MODELS = {
    "batch norm and dropout": (normalised, ALL),
    "frozen, partly in eval mode": (frozen, ALL),
    "in eval mode": (lambda: normalised().eval(), ALL),
    "recurrent": (Recurrent, ALL),
    "tied weights": (Tied, ALL),
    "hooks of the user's own": (hooked, ALL),
    "checkpointing": (lambda: Checkpointed(use_reentrant=False), ALL),
    "reentrant checkpointing": (lambda: Checkpointed(use_reentrant=True), {"overfit": 2}),
    "random numbers of all kinds": (Random, ALL),
    "keeps what it has seen": (Keeping, ALL),
    "attention": (Attending, ALL),
    "sparse gradients": (Sparse, ONCE),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(2)), ONCE),
    "spectral norm": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))), ALL),
    "weight norm by a hook": (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))), ALL),
    "pruned": (lambda: nn.Sequential(prune.l1_unstructured(nn.Linear(3, 2), "weight", 2)), ALL),
}


@pytest.fixture(params=MODELS)
def case(request):
    """A model in the middle of training, and what to measure."""
    make, options = MODELS[request.param]
    model = make()
    trained = [own for own in model.parameters() if own.requires_grad]
    kind = torch.optim.SGD if isinstance(model, (Sparse, nn.Sequential)) else torch.optim.Adam
    optimizer = kind(trained, lr=0.01)
    x, y = normal(6, 3, dtype=torch.float32), normal(6, 2, seed=1, dtype=torch.float32)
    inspector = inspect(model, optimizer=optimizer, lenses=[LossMetrics(loss_fn=(loss_fn := nn.MSELoss()))])
    if not any(isinstance(own, nn.parameter.UninitializedTensorMixin) for own in trained):
        for _ in range(2):
            loss_fn(model(x.clone()), y).backward()
            optimizer.step()
        if trained[-1].grad is not None:
            trained[0].grad = None  # one stays None
    return inspector, model, optimizer, x, y, options


def test_nothing_of_training_changes(case):
    inspector, model, optimizer, x, y, options = case
    before, hooks = everything(model, optimizer, x, y), [*model._forward_pre_hooks]
    report = inspector.probe(x, y, **options)
    assert everything(model, optimizer, x, y) == before
    assert [*model._forward_pre_hooks] == hooks
    assert math.isfinite(report.train_loss)
    assert len(report.overfit) == 2


def test_numbers_do_not_depend_on_which_others_are_asked_for(case):
    inspector, _, _, x, y, options = case
    both, alone = inspector.probe(x, y, **options), inspector.probe(x, y, noise=False)
    assert (both.train_loss, both.eval_loss) == (alone.train_loss, alone.eval_loss)
    assert inspector.probe(x, y, **options) == both
    assert inspector.probe(x, y, noise=False, overfit=2).overfit == both.overfit


class Failure(Exception):
    pass


class Failing(nn.Module):
    """Fails in one of its passes, or in one backward pass."""

    countdown = math.inf

    def __init__(self, where):
        super().__init__()
        self.inner, self.where = normalised(), where

    def forward(self, x):
        output = self.inner(x)
        if self.where == "forward":
            self.fail()
        elif output.requires_grad:
            output.register_hook(lambda gradient: self.fail())
        return output

    def fail(self):
        Failing.countdown -= 1
        if Failing.countdown == 0:
            raise Failure("of the user's model")


@pytest.mark.parametrize(("where", "count"), [*product(["forward"], range(1, 10)), *product(["backward"], range(1, 6))])
def test_an_error_of_the_model_is_raised_after_everything_is_put_back(where, count, monkeypatch):
    model = Failing(where)
    optimizer = torch.optim.Adam(model.parameters())
    inspector, x = inspect(model, optimizer=optimizer), normal(6, 3, dtype=torch.float32)
    model(x).sum().backward()
    optimizer.step()
    before = everything(model, optimizer, x)
    monkeypatch.setattr(Failing, "countdown", count)
    with pytest.raises(Failure, match="of the user's model"):
        inspector.probe(x, loss_fn=torch.mean, **ALL)
    assert everything(model, optimizer, x) == before
    monkeypatch.setattr(Failing, "countdown", math.inf)
    assert inspector.probe(x, loss_fn=torch.mean).notes == ()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_context_of_the_call_makes_no_difference(context):
    inspector = inspect(model := normalised(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = normal(6, 3, dtype=torch.float32), normal(6, 2, dtype=torch.float32)
    report = inspector.probe(x, y, loss_fn=F.mse_loss, **ALL)
    with context():
        assert inspector.probe(x, y, loss_fn=F.mse_loss, **ALL) == report


def test_autocast_holds_for_the_copies_too():
    seen = []
    with torch.autocast("cpu", torch.bfloat16):
        x = normal(6, 3, dtype=torch.float32)
        report = probe(nn.Linear(3, 2), x, loss_fn=lambda output: seen.append(output.dtype) or output.float().mean())
    assert set(seen) == {torch.bfloat16}
    assert report.noise_scale is not None


# nothing is recorded


MOMENTS = ["before", "after forward", "after the loss", "after backward", "after the step"]


def trained(probe_at, all_lenses, **options):
    torch.manual_seed(0)
    model, loss_fn = normalised(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters())
    inspector = inspect(model, optimizer=optimizer, lenses=all_lenses(optimizer, loss_fn), **options)
    x, y, records = normal(6, 3, dtype=torch.float32), normal(6, 2, dtype=torch.float32), []

    def at(moment, step):
        if moment == probe_at and step in (2, 3):
            inspector.probe(x, y, **ALL)

    for step in range(6):
        optimizer.zero_grad()
        at("before", step)
        output = model(x)
        at("after forward", step)
        loss = loss_fn(output, y)
        at("after the loss", step)
        loss.backward()
        at("after backward", step)
        optimizer.step()
        at("after the step", step)
        if step % 3 == 2:
            inspector.tick()
            records += [record for record in inspector.records() if "per second" not in record.statistic]
    numbers = [tuple(record._replace(time=0.0)) for record in records]
    return numbers, inspector.state.step, [array(own) for own in model.parameters()]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_probe_at_any_moment_leaves_no_trace(moment, every, all_lenses):
    numbers, steps, weights = trained(moment, all_lenses, every=every)
    expected, expected_steps, expected_weights = trained(None, all_lenses, every=every)
    assert len(numbers) > 100
    assert steps == expected_steps == 6
    np.testing.assert_equal(numbers, expected)
    np.testing.assert_equal(weights, expected_weights)


def test_without_an_optimizer_no_step_is_counted():
    inspector = inspect(model := nn.Linear(3, 2))
    inspector.probe(normal(4, 3, dtype=torch.float32), loss_fn=torch.mean)
    assert (inspector.state.step, inspector.state.passes, inspector.state.gaps) == (0, 0, 0)
    model(torch.ones(4, 3))
    assert inspector.state.step == 1


class Logging(nn.Module):
    """Logs what it sees, with the inspector that it holds, and so does its copy."""

    inspector = None

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        if self.inspector is not None:
            self.inspector.log(seen=x.mean())
        return self.linear(x)


@pytest.mark.parametrize("every", [1, 5])
def test_what_the_copies_log_and_functions_compute_is_not_recorded(every):
    model, criterion = Logging(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inspector = inspect(model, optimizer=optimizer, lenses=[LossMetrics(loss_fn=criterion)], every=every)
    model.inspector = inspector
    x, y = torch.ones(4, 3), torch.ones(4, 1)
    for _ in range(3):
        criterion(model(x), y).backward()
        optimizer.step()
        inspector.probe(x * 3, y * 5, loss_fn=lambda output, targets: criterion(output, targets), overfit=1)
    inspector.tick()
    records = {record.statistic: record.value for record in inspector.records()}
    assert records["train_loss mean"] == pytest.approx(criterion(model(x), y).item())
    assert records["seen mean"] == 1.0
    assert "val_loss mean" not in records


def test_its_time_is_part_of_no_step_and_of_no_hook():
    time = Time()
    state = InspectorState(cadence=Cadence(clock=time))
    state.clock.mark()
    for took in (1.0, 1.0):
        time.now += took
        state.clock.end(Phase.IDLE)
    begin = state.clock.enter()
    with state.set_aside():
        time.now += 50.0
    state.clock.leave(begin)
    assert state.clock.end(Phase.IDLE) == 0.0  # nothing inside hooks
    time.now += 2.0
    state.clock.end(Phase.IDLE)
    assert state.clock._durations[Phase.IDLE] == pytest.approx([1.0, 1.0, 2.0])


def test_a_device_that_was_busy_with_it_does_not_count_as_one_that_waits_for_the_host(device):
    time = Time()
    state = InspectorState(cadence=Cadence(clock=time))
    state.cadence.use("cuda")
    with state.set_aside():
        time.now += 1.0
        device.submitted += 0.25
    device.done = device.submitted
    assert state.clock.usual(Phase.IDLE) is None  # reads the events that have passed
    assert state.clock.host_share == 1.0


# the two losses


def batch_norm_oracle(model, x, y):
    """Loss in train and eval mode of Linear, BatchNorm, Linear, and the statistics of the batch."""
    first, norm, last = model
    hidden = array(x) @ array(first.weight).T + array(first.bias)
    statistics = {"train": (hidden.mean(0), hidden.var(0)), "eval": (array(norm.running_mean), array(norm.running_var))}
    losses = {}
    for mode, (mean, variance) in statistics.items():
        scaled = (hidden - mean) / np.sqrt(variance + norm.eps) * array(norm.weight) + array(norm.bias)
        losses[mode] = np.mean((scaled @ array(last.weight).T + array(last.bias) - array(y)) ** 2)
    return losses, hidden


def test_both_losses_and_the_running_statistics_of_batch_norm():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[1].running_mean += torch.tensor([0.0, 3.0, -1.0, 0.5])
        model[1].running_var.copy_(torch.tensor([1.0, 2.0, 9.0, 0.5]))
    x, y = normal(7, 3), normal(7, 2, seed=1)
    losses, hidden = batch_norm_oracle(model, x, y)
    report = probe(model, x, y, loss_fn=nn.MSELoss())
    assert (report.train_loss, report.eval_loss) == pytest.approx((losses["train"], losses["eval"]), rel=1e-12)
    mean, variance = array(model[1].running_mean), array(model[1].running_var) + model[1].eps
    ratios = (hidden.var(0, ddof=1) + model[1].eps) / variance
    assert report.batch_norms.keys() == {"1"}
    assert report.batch_norms["1"].mean == pytest.approx(np.max(abs(hidden.mean(0) - mean) / np.sqrt(variance)))
    assert report.batch_norms["1"].variance == pytest.approx(ratios[np.argmax(abs(np.log(ratios)))])


def test_batch_norm_layers_have_the_names_of_the_inspector_and_the_order_of_the_model():
    inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2, track_running_stats=False))
    model = nn.Sequential(inner, nn.Flatten(), nn.BatchNorm1d(8), nn.InstanceNorm1d(8, track_running_stats=True))
    model.append(nn.BatchNorm1d(8))
    model.forward = types.MethodType(lambda self, x: self[2](self[4](self[1](self[0](x)))), model)
    report = inspect(model, module_name_prefix="/").probe(torch.rand(5, 1, 4, 4), loss_fn=torch.mean)
    assert [*report.batch_norms] == ["0/1", "2", "4"]


def test_a_running_average_of_this_very_batch_is_not_off():
    model, x = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0)).double(), normal(8, 3) * 3 + 2
    model(x)
    report = probe(model, x, loss_fn=torch.mean)
    assert report.batch_norms["0"] == pytest.approx((0.0, 1.0), abs=1e-12)


def test_layers_that_the_user_has_in_eval_mode_stay_there():
    model, x, y = frozen(), normal(6, 3, dtype=torch.float32), normal(6, 2, dtype=torch.float32)
    model[3].p = 0.0
    report = probe(model, x, y, loss_fn=F.mse_loss)
    assert report.train_loss == report.eval_loss
    assert probe(model.eval(), x, y, loss_fn=F.mse_loss).train_loss != report.train_loss  # now all are trained


# gradient noise


def per_sample_gradients(weight, x, y):
    """Of (x w - y)^2, by hand."""
    return 2 * (x @ weight - y)[:, None] * x


@pytest.fixture
def line():
    model = nn.Linear(3, 1, bias=False).double()
    return model, array(model.weight)[0], array(normal(3, 3, seed=4)), array(normal(3, seed=5))


@pytest.mark.parametrize("size", [2, 4])
def test_the_estimates_are_right_in_expectation(line, size):
    """The mean over all batches that can be drawn is that of the whole population, exactly."""
    model, weight, xs, ys = line
    gradients = per_sample_gradients(weight, xs, ys)
    inspector, found = inspect(model), []
    for drawn in product(range(3), repeat=size):
        x, y = torch.tensor(xs[[*drawn]]), torch.tensor(ys[[*drawn], None])
        report = inspector.probe(x, y, loss_fn=F.mse_loss)
        found.append((report.gradient_square, report.gradient_variance))
    mean = gradients.mean(0)
    assert np.mean(found, 0) == pytest.approx([mean @ mean, np.trace(np.cov(gradients.T, bias=True))], rel=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("size", [6, 7])
def test_the_noise_scale_of_one_batch(line, size, reduction):
    model, weight, *_ = line
    x = normal(size, 3, seed=2) + 1
    y = x @ model.weight.detach().T + 3 + normal(size, 1, seed=3)
    report = probe(model, x, y, loss_fn=nn.MSELoss(reduction=reduction))
    gradients = per_sample_gradients(weight, array(x), array(y)[:, 0])
    first, second = gradients[:3].mean(0), gradients[3:6].mean(0)
    full = gradients[:6].mean(0)
    small = (first @ first + second @ second) / 2
    square, variance = (6 * full @ full - 3 * small) / (6 - 3), (small - full @ full) / (1 / 3 - 1 / 6)
    assert square > 0
    assert report.noise_scale == pytest.approx(variance / square, rel=1e-10)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert report.half_cosine == pytest.approx(cosine, rel=1e-12)
    scale = 3 if reduction == "sum" else 1
    assert report.gradient_square == pytest.approx(scale**2 * square, rel=1e-10)


def test_halves_that_contradict_each_other_have_no_finite_noise_scale():
    model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [-1.0]])
    report = probe(model, x, loss_fn=torch.mean)
    assert (report.noise_scale, report.half_cosine, report.gradient_square) == (math.inf, -1.0, -1.0)
    assert report.gradient_variance == np.var([1, -1], ddof=1)
    assert "larger batch" in report.notes[0]


def freeze(model):
    model.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("inputs", "targets", "note"),
    [
        (torch.ones(1, 3), torch.ones(1, 2), "at least two samples, not 1"),
        (torch.ones(4, 3), torch.ones(2), "no common first dimension, but 2, 4"),
        (torch.ones(0, 3), torch.ones(0, 2), "at least two samples, not 0"),
    ],
)
def test_a_batch_that_has_no_halves_is_measured_without(inputs, targets, note):
    def loss_fn(output, targets):
        return output.sum() + targets.sum()

    report = probe(nn.Linear(3, 2), inputs, targets, loss_fn=loss_fn)
    assert (report.noise_scale, report.gradient_variance, report.gradient_square, report.half_cosine) == (None,) * 4
    assert len(report.notes) == 1
    assert note in report.notes[0]
    assert probe(nn.Linear(3, 2), inputs, targets, loss_fn=loss_fn, noise=False).notes == ()


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, number):
        return self.weight.sum() * number


@pytest.mark.parametrize(
    ("model", "inputs", "note"),
    [
        (Constant(), 3.0, "no tensor in the batch"),
        (Constant(), torch.tensor(3.0), "no tensor in the batch"),
        (Constant(), torch.zeros(4), "the gradient is 0"),
        (freeze(nn.Linear(3, 2)), torch.ones(4, 3), "no parameter is trained"),
        (nn.Tanh(), torch.ones(4, 3), "no parameter is trained"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.ones(3, 3), "BatchNorm it takes at least four"),
    ],
)
def test_a_note_says_why_there_is_no_noise_scale(model, inputs, note):
    report = probe(model, inputs, loss_fn=torch.sum)
    assert report.noise_scale is None
    assert [note in text for text in report.notes] == [True]


def test_parameters_that_only_one_half_uses():
    model = nn.EmbeddingBag(4, 2, mode="sum", sparse=True)
    report = probe(model, torch.tensor([[0], [1], [2], [3]]), loss_fn=torch.mean)
    assert report.half_cosine == 0.0
    assert report.gradient_variance == pytest.approx(2 * 4 * (1 / 4) ** 2)


# overfitting


def new_optimizers():
    return {
        "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.05, betas=(0.5, 0.9), amsgrad=True),
        "groups": lambda model: torch.optim.RMSprop(
            [
                {"params": model[0].parameters(), "lr": 0.1, "name": "first"},
                {"params": model[2].parameters(), "momentum": 0.5},
            ],
            lr=0.01,
        ),
        "named": lambda model: torch.optim.SGD(model.named_parameters(), lr=0.1),
        "tensor": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1)),
        "LBFGS": lambda model: torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3),
        "own": lambda model: Own(model.parameters(), 0.1),
    }


class Own(torch.optim.Optimizer):
    """Has an option without a default, and returns nothing."""

    def __init__(self, params, rate):
        super().__init__(params, {"rate": rate})

    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for own in group["params"]:
                own.data -= group["rate"] * own.grad


@pytest.mark.parametrize("name", new_optimizers())
def test_overfitting_is_training_with_a_new_optimizer(name):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = new_optimizers()[name](model)
    x, y, loss_fn = normal(5, 3), normal(5, 1, seed=1), nn.MSELoss()

    def closure():
        model.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        return loss

    inspector = inspect(model, optimizer=optimizer)
    for _ in range(3):
        optimizer.step(closure)  # it has a state now, which is not copied
    twin = copy.deepcopy(model)
    fresh, expected = new_optimizers()[name](twin), []

    def again():
        twin.zero_grad()
        loss = loss_fn(twin(x), y)
        loss.backward()
        return loss

    for _ in range(4):
        fresh.step(again)
        expected.append(loss_fn(twin(x), y).item())
    assert inspector.probe(x, y, loss_fn=loss_fn, overfit=4).overfit == pytest.approx(expected, rel=1e-12)
    assert expected[-1] < expected[0]


def test_all_optimizers_take_part_and_those_of_other_models_do_not():
    model, other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2], other)]
    x, y = normal(5, 3, dtype=torch.float32), normal(5, 1, dtype=torch.float32)
    both = torch.optim.SGD(model.parameters(), lr=0.1)
    reports = [inspect(model, optimizer=o).probe(x, y, loss_fn=F.mse_loss, overfit=3) for o in (optimizers, both)]
    assert reports[0].overfit == reports[1].overfit


def test_a_loss_module_may_have_parameters_that_are_trained():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, output, y):
            return ((output - y) * self.scale).pow(2).mean()

    model, loss_fn = freeze(nn.Linear(3, 1)), Scaled()
    optimizer = torch.optim.SGD(loss_fn.parameters(), lr=0.01)
    x, y = normal(5, 3, dtype=torch.float32), normal(5, 1, dtype=torch.float32)
    report = inspect(model, optimizer=optimizer).probe(x, y, loss_fn=loss_fn, overfit=3)
    assert report.train_loss > report.overfit[0] > report.overfit[-1]
    assert loss_fn.scale.item() == 2.0
    assert loss_fn.scale.grad is None


class Wrapping(torch.optim.SGD):
    def __init__(self, inner):
        super().__init__(inner.param_groups, lr=0.1)


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (lambda model: None, "overfit=2 needs an optimizer"),
        (lambda model: torch.optim.SGD(nn.Linear(1, 1).parameters()), "overfit=2 needs an optimizer"),
        (lambda model: Wrapping(torch.optim.SGD(model.parameters())), "cannot make another Wrapping"),
    ],
)
def test_overfitting_without_a_usable_optimizer_is_refused(optimizer, text):
    model = nn.Linear(3, 1)
    with pytest.raises(OptionError, match=text):
        inspect(model, optimizer=optimizer(model)).probe(torch.ones(2, 3), loss_fn=torch.mean, overfit=2)


# sharpness


def hessian(model, loss):
    """The whole matrix, row by row."""
    parameters = [own for own in model.parameters() if own.requires_grad]
    slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    rows = []
    for slope in torch.cat([each.reshape(-1) for each in slopes]):
        parts = torch.autograd.grad(slope, parameters, retain_graph=True, materialize_grads=True)
        rows.append(np.concatenate([array(part).ravel() for part in parts]))
    return np.array(rows)


class Quadratic(nn.Module):
    """A loss with given eigenvalues."""

    def __init__(self, *eigenvalues):
        super().__init__()
        rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(len(eigenvalues),) * 2))
        self.matrix = torch.tensor(rotation @ np.diag(eigenvalues) @ rotation.T)
        self.first, self.second = (nn.Parameter(torch.randn(n).double()) for n in (2, len(eigenvalues) - 2))

    def forward(self, x):
        point = torch.cat([self.first, self.second])
        return {"loss": point @ self.matrix @ point / 2 + x.sum()}


@pytest.mark.parametrize(
    ("eigenvalues", "largest"),
    [
        ([5.0, 2.0, 1.0, -1.0], 5.0),
        ([-9.0, 2.0, 1.0, 0.5], 2.0),
        ([4.0, -4.0, 1.0, 0.0], 4.0),
        ([-3.0, -2.0, -1.0, -0.5], -0.5),
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([1e-12, 0.0, 0.0, 0.0], 1e-12),
        ([7.0, 7.0, 7.0, 7.0], 7.0),
    ],
)
def test_sharpness_is_the_largest_eigenvalue_whatever_the_signs(eigenvalues, largest):
    report = probe(Quadratic(*eigenvalues), torch.ones(2), sharpness=True, iterations=500, tolerance=1e-6)
    assert report.sharpness == pytest.approx(largest, rel=1e-6, abs=1e-14)
    assert [note for note in report.notes if "sharpness" in note] == []


@pytest.mark.parametrize("make", [normalised, Tied, frozen])
def test_sharpness_of_a_network_is_that_of_its_hessian_in_train_mode(make):
    model = make().double()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    x, y = normal(6, 3), normal(6, 2, seed=1)
    report = probe(model, x, y, loss_fn=F.mse_loss, sharpness=True, iterations=1000, tolerance=1e-4)
    twin = copy.deepcopy(model)
    expected = np.linalg.eigvalsh(hessian(twin, F.mse_loss(twin(x), y)))[-1]
    assert report.sharpness == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "sharpness", "note"),
    [
        (nn.Linear(3, 1), 0.0, None),  # the loss is linear
        (freeze(nn.Linear(3, 1)), None, "sharpness is not known"),
        (nn.Tanh(), None, "sharpness is not known"),
    ],
)
def test_sharpness_where_nothing_is_curved(model, sharpness, note):
    report = probe(model, torch.ones(4, 3), loss_fn=torch.mean, sharpness=True, noise=False)
    assert report.sharpness == sharpness
    assert [note in text for text in report.notes] == [True] * (note is not None)


def test_sharpness_that_has_not_settled_says_so():
    model = Quadratic(*np.linspace(5, 4.9, 8))
    report = probe(model, torch.ones(2), sharpness=True, iterations=2, tolerance=1e-6)
    assert 4.9 <= report.sharpness <= 5.0
    assert any("not settled in 2 iterations" in note for note in report.notes)


# samples that mix


class Centred(nn.Module):
    """Takes the mean of the batch away, also in eval mode."""

    def __init__(self, outputs=1):
        super().__init__()
        self.linear = nn.Linear(3, outputs).double()

    def forward(self, x):
        return self.linear(x - x.mean(0))


def test_samples_that_mix_are_found_with_their_derivative():
    model = Centred()
    report = probe(model, normal(5, 3), loss_fn=torch.mean, mixing=True)
    assert report.mixing == pytest.approx(np.abs(array(model.linear.weight)).max() / 5)
    assert report.mixing_pair[0] != report.mixing_pair[1]


class Leaking(nn.Module):
    """The output of one sample depends on the input of another one."""

    def forward(self, x):
        leak = torch.zeros_like(x)
        leak[3] = 0.25 * x[1]
        return (x + leak).softmax(1)


def test_the_pair_names_output_and_input():
    report = probe(Leaking(), normal(5, 3), loss_fn=torch.mean, mixing=True, noise=False)
    assert report.mixing > 0  # though the sum of each output is always 1
    assert report.mixing_pair == (3, 1)
    assert "output 3 changes with input 1" in str(report)


@pytest.mark.parametrize("make", [normalised, Recurrent, Attending, Keeping])
def test_samples_of_sound_models_do_not_mix_at_all(make):
    report = probe(make(), normal(6, 3, dtype=torch.float32), loss_fn=torch.mean, mixing=True)
    assert (report.mixing, report.mixing_pair) == (0.0, None)
    assert "no samples mix" in str(report)


def test_all_floating_inputs_and_outputs_are_looked_at():
    class Several(nn.Module):
        def forward(self, x, *, ids, extra, scale):
            mixed = extra["y"].cumsum(0)[:, None]
            return {"first": x * scale, "second": (ids, [mixed]), "loss": x.sum()}

    inputs = {"x": normal(5, 3), "ids": torch.arange(5), "extra": {"y": normal(5)}, "scale": torch.tensor(2.0)}
    report = probe(Several(), UserDict(inputs), mixing=True)
    assert report.mixing == 1.0
    assert report.mixing_pair[0] > report.mixing_pair[1]


def test_only_the_first_samples_of_a_large_batch_are_compared():
    sizes = []

    class Sizes(nn.Module):
        def forward(self, x):
            sizes.append(len(x))
            return x * 2

    report = probe(Sizes(), normal(100, 3), loss_fn=torch.mean, mixing=True, noise=False)
    assert report.mixing == 0.0
    assert sizes == [100, 100, 16]


@pytest.mark.parametrize(
    ("model", "inputs", "note"),
    [
        (nn.Embedding(5, 2), torch.arange(5), "no input is floating"),
        (nn.Linear(3, 2), torch.ones(1, 3), "at least two samples, not 1"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(0)), torch.ones(4, 3), "no output of a sample"),
    ],
)
def test_a_note_says_why_it_is_not_known_whether_samples_mix(model, inputs, note):
    report = probe(model, inputs, loss_fn=torch.mean, mixing=True, noise=False)
    assert (report.mixing, report.mixing_pair) == (None, None)
    assert [note in text for text in report.notes] == [True]


# what a batch and a loss are


class Sum(nn.Module):
    def forward(self, a, b=0.0):
        return a + b


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (torch.tensor([1.0, 3.0]), 2.0),
        ((torch.tensor([1.0, 3.0]),), 2.0),
        ([torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])], 4.0),
        ({"b": torch.tensor([2.0, 2.0]), "a": torch.tensor([1.0, 3.0])}, 4.0),
        (UserDict(a=torch.tensor([1.0, 3.0]), b=1.0), 3.0),
    ],
)
def test_a_batch_is_what_the_model_takes(inputs, expected):
    report = probe(Sum(), inputs, loss_fn=torch.mean)
    assert (report.train_loss, report.eval_loss) == (expected, expected)


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x)

    def loss(self, output, y):
        return (output - y).abs().mean() + self.linear.weight.pow(2).sum()


class Summary(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def of(self, output):
        return (output * self.scale).mean()


def test_a_method_of_another_module_may_be_the_loss():
    model, summary = nn.Linear(3, 1).double(), Summary().double()
    x = normal(4, 3)
    report = probe(model, x, loss_fn=summary.of)
    first, second = [
        np.append(2 * array(x)[half].mean(0), [2, array(model(x))[half].mean()]) for half in (slice(2), slice(2, 4))
    ]
    assert report.gradient_square == pytest.approx(first @ second)
    assert summary.scale.grad is None


def test_which_loss_is_measured():
    x, y = normal(4, 3, dtype=torch.float32), normal(4, 1, dtype=torch.float32)
    model = OwnLoss()
    plain = inspect(model)
    with pytest.warns(MonitorchWarning, match="two LossMetrics lenses"):
        known = inspect(model, lenses=[LossMetrics(), LossMetrics(loss_fn=nn.MSELoss())])
    squared, absolute = F.mse_loss(model(x), y).item(), F.l1_loss(model(x), y).item()
    assert known.probe(x, y).train_loss == squared
    assert known.probe(x, y, loss_fn=nn.L1Loss()).train_loss == absolute
    assert plain.probe(x, y, loss_fn=F.l1_loss).train_loss == absolute
    assert plain.probe(x, y, loss_fn=model.loss).train_loss == model.loss(model(x), y).item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the copy's own weights are in the copy's loss
    report = inspect(model, optimizer=optimizer).probe(x, y, loss_fn=model.loss, overfit=1)
    optimizer.zero_grad()
    model.loss(model(x), y).backward()
    optimizer.step()
    assert report.overfit == (model.loss(model(x), y).item(),)


def test_a_model_of_transformers_computes_its_own_loss():
    from transformers import GPT2Config, GPT2LMHeadModel  # not in every process that runs this file

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=6))
    ids = torch.arange(12).reshape(2, 6) % 11
    with watch(model, visualizer="dummy") as watched:
        report = watched.probe({"input_ids": ids, "labels": ids}, mixing=True, sharpness=True, iterations=2)
    assert report.eval_loss == pytest.approx(model.eval()(input_ids=ids, labels=ids).loss.item())
    assert report.noise_scale is not None
    assert report.sharpness != 0
    assert report.mixing is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "there is no loss to measure: pass loss_fn="),
        ({"loss_fn": "mse"}, "loss_fn takes a module or function"),
        ({"loss_fn": lambda output: output}, r"one number, not \(4, 1\)"),
        ({"loss_fn": lambda output: 3.0}, "one number, not float"),
        ({"loss_fn": lambda output: None}, "there is no loss"),
        ({"loss_fn": torch.mean, "overfit": -1}, "overfit=-1 must be a whole number, at least 0"),
        ({"loss_fn": torch.mean, "overfit": 1.5}, "overfit=1.5 must be"),
        ({"loss_fn": torch.mean, "overfit": True}, "overfit=True must be"),
        ({"loss_fn": torch.mean, "iterations": 0}, "iterations=0 must be a whole number, at least 1"),
        ({"loss_fn": torch.mean, "tolerance": 0}, "tolerance=0 must be a number between 0 and 1"),
        ({"loss_fn": torch.mean, "tolerance": math.nan}, "tolerance=nan must be"),
        ({"loss_fn": torch.mean, "sharpness": 3}, "sharpness=3 must be True or False"),
        ({"loss_fn": torch.mean, "mixing": "yes"}, "mixing='yes' must be"),
        ({"loss_fn": torch.mean, "noise": None}, "noise=None must be"),
    ],
)
def test_bad_arguments_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        probe(nn.Linear(3, 1), torch.ones(4, 3), **options)


# which models


def test_a_model_that_calls_itself_behind_the_back_of_its_copy_is_refused():
    model = normalised()
    optimizer, x = torch.optim.SGD(model.parameters()), normal(6, 3, dtype=torch.float32)
    inspector, before = inspect(model, optimizer=optimizer), everything(model, optimizer)
    with pytest.raises(UnsupportedModelError, match="something calls the original Sequential"):
        inspector.probe(x, loss_fn=lambda output: (output - model(x)).mean())
    assert everything(model, optimizer) == before
    forward = model.forward
    model.forward = lambda x: forward(x) * 2
    with pytest.raises(UnsupportedModelError, match="something calls the original Linear"):
        inspector.probe(x, loss_fn=torch.mean)
    model.forward = types.MethodType(lambda self, x: nn.Sequential.forward(self, x) * 2, model)
    assert inspector.probe(x, loss_fn=torch.mean).eval_loss == model.eval()(x).mean().item()


def test_a_model_that_cannot_be_copied_is_refused():
    model = nn.Linear(3, 1)
    model.frames = (frame for frame in ())
    with pytest.raises(UnsupportedModelError, match="Linear cannot be copied: cannot pickle 'generator'"):
        probe(model, torch.ones(2, 3), loss_fn=torch.mean)


def test_a_model_may_hold_its_own_watch_and_what_the_last_pass_has_left():
    model = nn.Linear(3, 1)
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(model)
    with watch(model, visualizer="dummy") as model.watched:
        model(torch.ones(2, 3)).sum().backward()
        assert not model.weight.is_leaf
        assert model.watched.probe(torch.ones(2, 3), loss_fn=torch.mean).noise_scale == pytest.approx(0.0, abs=1e-6)


def test_precisions_that_differ_by_operation_stay(monkeypatch):
    for backend, precision in ((torch.backends.cudnn.conv, "tf32"), (torch.backends.cudnn.rnn, "ieee")):
        monkeypatch.setattr(backend, "fp32_precision", precision)
    report = probe(Recurrent(), torch.ones(4, 3), loss_fn=torch.mean, sharpness=True, iterations=2, mixing=True)
    assert report.mixing == 0.0
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert torch.backends.cudnn.rnn.fp32_precision == "ieee"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.jit calls no hooks")
def test_a_model_with_scripted_parts_is_refused():
    model = nn.Sequential(nn.Linear(3, 2), torch.jit.script(nn.Linear(2, 1)))
    with pytest.raises(UnsupportedModelError, match="scripted parts cannot be trained, such as '1'"):
        probe(model, torch.ones(4, 3), loss_fn=torch.mean)


class Normed(nn.Sequential):
    """Its forward pass is not in torch's own files, which the compiler may leave out."""

    def forward(self, x):
        return super().forward(x)


def compile_whole(model):
    return torch.compile(model, backend="eager"), model


def compile_in_place(model):
    model.compile(backend="eager")
    return model, model


def compile_a_layer(model):
    model[0] = torch.compile(model[0], backend="eager")
    return model, model


def compile_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model, model


@pytest.mark.parametrize("how", [compile_whole, compile_in_place, compile_a_layer, compile_forward])
@pytest.mark.usefixtures("fresh_compiler")
def test_the_copies_of_a_compiled_model_run_as_they_are(how):
    plain = Normed(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x, y = normal(6, 3, dtype=torch.float32), normal(6, 1, dtype=torch.float32)
    expected = probe(copy.deepcopy(plain), x, y, loss_fn=F.mse_loss, mixing=True, sharpness=True)
    compiled, model = how(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = inspect(compiled, optimizer=optimizer)
    before = number_of_graphs()
    report = inspector.probe(x, y, loss_fn=F.mse_loss, mixing=True, sharpness=True)
    assert number_of_graphs() == before
    assert report == expected
    compiled(x).sum().backward()
    graphs, state = number_of_graphs(), everything(model, optimizer)
    assert graphs > before
    inspector.probe(x, y, loss_fn=F.mse_loss, **ALL)
    assert everything(model, optimizer) == state
    compiled(x)
    assert number_of_graphs() == graphs  # the graphs are still good


def ranks_probe(rank, folder):
    """Only the first process probes, a model under DDP and one with SyncBatchNorm; a sharded one is refused."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    found = {"expected": F.mse_loss(copy.deepcopy(model)(x), y).item()}
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    for name, watched in (("ddp", DistributedDataParallel(model)), ("sync", synchronised)):
        inspector = PyTorchInspector([], module=watched, visualizer="dummy", per_rank=True)
        if rank == 0:
            report = inspector.probe(x, y, loss_fn=nn.MSELoss(), mixing=True)
            found[name] = report.train_loss, report.noise_scale, report.mixing, report.notes
    found["class"] = type(synchronised[1]).__name__
    sharded = nn.Linear(4, 2)
    fully_shard(sharded)
    inspector = PyTorchInspector([], module=sharded, visualizer="dummy")
    try:
        inspector.probe(torch.ones(2, 4), loss_fn=torch.mean)
    except UnsupportedModelError as error:
        found["refused"] = str(error)
    return found


@pytest.mark.xdist_group("processes")
def test_with_several_processes_a_probe_is_of_one(run_ranks):
    first, second = run_ranks(ranks_probe)
    for name in ("ddp", "sync"):
        loss, noise, mixing, notes = first[name]
        assert loss == pytest.approx(first["expected"], rel=1e-6)
        assert noise > 0
        assert mixing == 0
        assert notes == ["these numbers are of this process and its batch alone"]
    assert first["class"] == "SyncBatchNorm"
    assert "sharded over processes cannot be probed" in first["refused"]
    assert first["refused"] == second["refused"]


# where it is called


def test_without_a_model_there_is_nothing_to_probe():
    inspector = PyTorchInspector([], visualizer="dummy")
    with pytest.raises(LifecycleError, match="no model to probe"):
        inspector.probe(torch.ones(2, 3))
    inspector.attach(model := nn.Linear(3, 1))
    assert inspector.probe(torch.ones(2, 3), loss_fn=torch.mean).train_loss == model(torch.ones(2, 3)).mean().item()
    inspector.detach()
    with pytest.raises(LifecycleError, match="no model to probe"):
        inspector.probe(torch.ones(2, 3))


def test_an_inspector_that_may_be_probed_does_not_keep_its_model_alive():
    inspector = inspect(nn.Linear(3, 1))
    gc.collect()
    with pytest.raises(LifecycleError, match="no model to probe"):
        inspector.probe(torch.ones(2, 3))


def test_an_inspector_that_is_off_measures_what_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    model = nn.Linear(3, 1)
    report = probe(model, torch.ones(2, 3), loss_fn=torch.mean)
    assert report.train_loss == model(torch.ones(2, 3)).mean().item()


def test_a_watch_probes_with_its_loss_and_optimizer():
    model, loss_fn = nn.Linear(3, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, loss_fn=loss_fn, visualizer="dummy") as watched:
        report = watched.probe(torch.ones(2, 3), torch.ones(2, 1), overfit=3)
    assert isinstance(report, ProbeReport)
    assert report.train_loss == loss_fn(model(torch.ones(2, 3)), torch.ones(2, 1)).item()
    assert len(report.overfit) == 3
    with pytest.raises(LifecycleError, match="no model to probe"):
        watched.probe(torch.ones(2, 3), torch.ones(2, 1))


def test_the_report_can_be_read():
    model = normalised()
    inspector = inspect(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    x, y = normal(8, 3, dtype=torch.float32), normal(8, 2, dtype=torch.float32)
    report = inspector.probe(x, y, loss_fn=F.mse_loss, **ALL)
    lines = str(dataclasses.replace(report, notes=("something",))).splitlines()
    titles = ["loss", "BatchNorm 1", "noise scale", "overfit", "sharpness", "mixing", "note"]
    assert [line[:11].strip() for line in lines] == titles
    assert f"{report.train_loss:.5g} in train mode, {report.eval_loss:.5g} in eval mode" in lines[0]
    assert lines[-1].endswith("  something")
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.train_loss = 0.0
    numbers = [*dataclasses.astuple(dataclasses.replace(report, batch_norms={}))[:2], report.noise_scale]
    assert {type(number) for number in numbers} == {float}
