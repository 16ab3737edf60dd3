"""Parts of a step's gradient: found whatever happens to gradients, and left out where they are no parts."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from monitorch import PyTorchInspector
from monitorch.engine import gradient_parts
from monitorch.engine.gradient_parts import GradientParts
from monitorch.lens import SignalToNoise


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 1)
        self.reentrant = None

    def forward(self, x):
        if self.reentrant is None:
            return self.second(torch.tanh(self.first(x)))
        hidden = checkpoint(self.first, x, use_reentrant=self.reentrant)
        return checkpoint(lambda h: self.second(torch.tanh(h)), hidden, use_reentrant=self.reentrant)


class Run:
    """Trains with micro-batches; knows the gradient of each by autograd alone."""

    def __init__(self, trained=slice(None), **options):
        self.model, self.samples = Net(), []
        self.optimizer = torch.optim.SGD(list(self.model.parameters())[trained], lr=0.01)
        self.lens = SignalToNoise(self.optimizer)
        self.lens._noise.process_parts = self.samples.append
        known = {"optimizer": self.optimizer} | options
        self.inspector = PyTorchInspector([self.lens], module=self.model, visualizer="dummy", on_error="raise", **known)
        self.stream = torch.Generator().manual_seed(1)

    def loss(self):
        x = torch.randn(8, 4, generator=self.stream)
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def gradient(self, loss):
        found = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True, allow_unused=True)
        return np.concatenate([np.zeros(0), *(g.double().numpy().ravel() for g in found if g is not None)])

    def backward(self):
        self.loss().backward()


def of_parts(parts):
    """The mean of the squared norms, and the squared norm of the mean."""
    return np.mean(np.sum(np.square(parts), axis=1)), np.sum(np.mean(parts, axis=0) ** 2)


def micro_batches(run, number=3, scale=1.0):
    parts = []
    for _ in range(number):
        loss = run.loss() * scale
        parts.append(run.gradient(loss))
        loss.backward()
    return parts


def check(run, expected):
    assert [sample.parts for sample in run.samples] == [len(parts) for parts in expected]
    for sample, parts in zip(run.samples, expected, strict=True):
        assert [float(sample.mean_square), float(sample.square_of_mean)] == pytest.approx(of_parts(parts), rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1 / 3])
@pytest.mark.parametrize("empty", [{}, {"set_to_none": True}, {"set_to_none": False}])
def test_parts_are_micro_batches_and_autograd_grad_in_between_is_none(scale, empty):
    run, expected = Run(), []
    for _ in range(3):
        run.optimizer.zero_grad(**empty)
        expected.append(micro_batches(run, scale=scale))
        run.optimizer.step()
    check(run, expected)


def test_clipping_does_not_change_the_parts():
    run = Run()
    parts = micro_batches(run)
    nn.utils.clip_grad_norm_(run.model.parameters(), 1e-3)
    run.optimizer.step()
    check(run, [parts])


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpointing_does_not_change_the_parts(reentrant):
    run = Run()
    plain, state = micro_batches(run), run.stream.get_state()
    run.optimizer.zero_grad()
    run.optimizer.step()
    run.samples.clear()
    run.model.reentrant = reentrant
    run.stream.manual_seed(1)
    for _ in range(3):
        x = torch.randn(8, 4, generator=run.stream, requires_grad=False)
        (run.model(x.requires_grad_()) - x.detach().sum(1, keepdim=True)).square().mean().backward()
    run.optimizer.step()
    assert torch.equal(run.stream.get_state(), state)
    check(run, [plain])


def test_a_loss_scale_is_in_both_numbers():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = Run(grad_scaler=scaler)
    scaler.scale(torch.zeros(1))
    parts = []
    for _ in range(2):
        loss = run.loss()
        parts.append(run.gradient(loss))
        scaler.scale(loss).backward()
    scaler.step(run.optimizer)
    scaler.update()
    check(run, [np.array(parts) * 1024])


def test_one_part_tells_nothing():
    run = Run()
    for _ in range(2):
        run.optimizer.zero_grad()
        run.backward()
        run.optimizer.step()
    assert run.samples == []


@pytest.mark.parametrize("empty", [{"set_to_none": True}, {"set_to_none": False}])
def test_what_was_dropped_before_the_step_is_no_part(empty):
    run = Run()
    run.backward()
    run.optimizer.zero_grad(**empty)
    parts = micro_batches(run, 2)
    run.optimizer.step()
    if empty["set_to_none"]:
        check(run, [parts])
    else:  # nobody knows that without looking at all gradients
        assert run.samples == []


def test_leftovers_of_the_step_before_leave_no_estimate():
    run = Run()
    micro_batches(run)
    run.optimizer.step()
    micro_batches(run)
    run.optimizer.step()
    assert [bool(torch.isnan(sample.mean_square)) for sample in run.samples] == [False, True]


def test_a_gradient_that_was_left_but_gets_no_part_does_not_matter():
    run = Run()
    run.model.first.weight.grad = torch.ones_like(run.model.first.weight)
    run.model.first.weight.requires_grad_(False)
    expected = []
    for _ in range(2):
        loss, rest = run.loss(), [own for own in run.model.parameters() if own.requires_grad]
        slopes = torch.autograd.grad(loss, rest, retain_graph=True)
        expected.append(np.concatenate([slope.double().numpy().ravel() for slope in slopes]))
        loss.backward()
    run.optimizer.step()
    check(run, [expected])


def test_gradients_are_measured_together_at_the_end_of_backward(monkeypatch):
    run, sizes = Run(), []
    norms = gradient_parts._norms
    monkeypatch.setattr(gradient_parts, "_norms", lambda own: sizes.append(len(own)) or norms(own))
    run.backward()
    assert sizes == [4]  # of all parameters together
    run.backward()
    assert sorted(sizes) == [1] * 4 + [4] * 2
    run.optimizer.step()
    assert [sample.parts for sample in run.samples] == [2]
    sizes.clear()
    run.optimizer.zero_grad(set_to_none=False)
    run.backward()
    assert sizes == [4, 4]  # what was there before, and what is there now


def test_a_pass_that_adds_twice_leaves_no_estimate():
    run = Run()
    loss = run.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    run.backward()
    run.optimizer.step()
    assert run.samples == []


@pytest.mark.parametrize("change", [lambda grad: grad.mul_(0.5), lambda grad: grad.clamp_(-1e-3, 1e-3)])
def test_a_sum_that_was_changed_between_parts_leaves_no_estimate(change):
    run = Run()
    run.backward()
    change(run.model.first.weight.grad)
    run.backward()
    run.optimizer.step()
    assert run.samples == []


def test_only_parameters_of_the_optimizer_count_and_those_that_some_parts_skip_do():
    run = Run(trained=slice(2, None))
    model, parts = run.model, []
    for skips in (False, True):
        x = torch.randn(8, 4, generator=run.stream)
        loss = model(x).square().mean() if not skips else (model(x) * 0).sum() + model.second.bias.square().sum()
        slopes = torch.autograd.grad(loss, [model.second.weight, model.second.bias], retain_graph=True)
        parts.append(np.concatenate([slope.double().numpy().ravel() for slope in slopes]))
        loss.backward()
    run.optimizer.step()
    check(run, [parts])


def test_only_observed_steps_are_measured_and_only_where_all_their_passes_were():
    run, expected = Run(every=3), []
    for step in range(1, 8):
        run.optimizer.zero_grad()
        parts = micro_batches(run, 2)
        run.optimizer.step()
        expected += [parts] if step in (3, 6) else []
    check(run, expected)
    alone = Run(every=3, optimizer=None)  # each pass is a step, and every third one is observed
    for _ in range(6):
        alone.optimizer.zero_grad()
        micro_batches(alone, 2)
        alone.optimizer.step()
    assert alone.samples == []


def test_an_exception_in_backward_does_not_spoil_later_steps():
    run, expected = Run(), []
    hidden = {}
    run.model.first.register_forward_hook(lambda _, args, out: hidden.update(out=out))
    loss = run.loss()
    handle = hidden["out"].register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    run.optimizer.zero_grad()
    run.optimizer.step()
    run.samples.clear()
    for _ in range(2):
        run.optimizer.zero_grad()
        expected.append(micro_batches(run, 2))
        run.optimizer.step()
    check(run, expected)


def test_removed_parts_leave_the_optimizer_and_the_parameters():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = PyTorchInspector([], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    engine, received = inspector.state.engine, []
    parts = GradientParts(engine, optimizer, received.append)
    handles = parts.watch(model, "weight")
    for _ in range(2):
        model(torch.ones(1, 2)).backward()
    optimizer.step()
    assert [sample.parts for sample in received] == [2]
    for handle in handles:
        handle.remove()
    parts.remove()
    engine.refresh()
    assert not model.weight._backward_hooks
    for _ in range(2):
        model(torch.ones(1, 2)).backward()
    optimizer.step()
    assert len(received) == 1
    inspector.detach()
