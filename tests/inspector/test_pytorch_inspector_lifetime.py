"""Attaching, detaching and dropping an inspector: which hooks there are, and what is remembered."""

import gc
import math

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import LifecycleError, OptionError
from monitorch.lens import (
    LossMetrics,
    NonFinite,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)


@pytest.fixture
def setup(model, all_lenses, shown):
    """Everything that may get hooks, and how to watch it with every lens."""

    class Setup:
        optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
        things = (model, loss_fn, optimizer)
        lenses = all_lenses(optimizer, loss_fn)

        def watch(self, **options):
            return PyTorchInspector(self.lenses, module=model, **{"visualizer": shown} | options)

    return Setup()


def test_detach_leaves_no_hook(setup, model, train, count_hooks):
    inspector = setup.watch()
    train(model, setup.optimizer, setup.loss_fn)
    assert count_hooks(*setup.things) > 0
    inspector.tick_epoch()
    assert inspector.detach() is inspector
    assert count_hooks(*setup.things) == 0


def test_dropped_inspector_takes_its_hooks_along(setup, model, train, count_hooks):
    inspector = setup.watch()
    train(model, setup.optimizer, setup.loss_fn)
    inspector.log(anything=1.0)
    inspector.tick_epoch()
    del inspector
    gc.collect()
    assert count_hooks(*setup.things) == 0


def test_inspector_dropped_between_forward_and_backward_is_safe(setup, model, count_hooks):
    inspector = setup.watch()
    loss = setup.loss_fn(model(torch.ones(4, 3)), torch.ones(4, 1))
    del inspector
    gc.collect()
    loss.backward()
    setup.optimizer.step()
    assert count_hooks(*setup.things) == 0
    assert model[0].weight.grad is not None


def test_dropping_an_inspector_leaves_its_lenses_with_their_next_one(model, train, new_shown):
    lenses = [OutputNorm(), ParameterNorm()]
    inspector = PyTorchInspector(lenses, module=nn.Sequential(nn.Linear(3, 3), nn.ReLU()), visualizer=new_shown())
    inspector = PyTorchInspector(lenses, module=model, visualizer=new_shown())
    gc.collect()
    train(model)
    inspector.tick_epoch()
    assert inspector.visualizer.layers_of("Output Norm") == {"1"}
    assert inspector.visualizer.layers_of("Weight Norm") == {"0", "2"}


def test_detaching_the_earlier_inspector_leaves_its_lenses_with_their_next_one(model, train, new_shown):
    lenses = [OutputNorm()]
    first, second = (PyTorchInspector(lenses, module=model, visualizer=new_shown()) for _ in range(2))
    first.detach()
    train(model)
    second.tick_epoch()
    assert second.visualizer.layers_of("Output Norm") == {"1"}


@pytest.mark.parametrize("error", [LifecycleError, AssertionError])
def test_detaching_twice_is_an_error(error, setup):
    inspector = setup.watch()
    inspector.detach()
    with pytest.raises(error, match="nothing to detach from"):
        inspector.detach()


def test_second_model_starts_clean(model, train, shown):
    lens = LossMetrics(metrics=["acc"])
    inspector = PyTorchInspector([lens, OutputNorm(), ParameterGradientGeometry()], module=model, visualizer=shown)
    for _ in inspector.range(2):
        train(model)
        inspector.push_loss(9.0, train=False)
    inspector.push_metric("acc", 0.9)
    train(model)
    shown.calls.clear()
    second = nn.Sequential()
    second.add_module("other", nn.Linear(3, 2))
    second.add_module("tanh", nn.Tanh())
    inspector.attach(second)
    assert shown.resets == 1
    with pytest.raises(KeyError, match="there are no numbers yet"):
        lens.loss(train=False)
    for _ in inspector.range(2):
        train(second)
        inspector.push_loss(1.0, train=True)
    assert shown.labels() == [1, 2]
    assert shown.layers == ["", "other", "tanh"]
    assert shown.layers_of("Output Norm") == {"tanh"}
    assert shown.layers_of("Weight Gradient Norm") == {"other"}
    assert shown.layers_of("Metrics") == set()
    assert math.isnan(lens.loss(train=False))


def test_attaching_to_another_model_leaves_the_first_without_hooks(setup, model, count_hooks):
    inspector = setup.watch()
    inspector.attach(other := nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    assert count_hooks(model) == 0
    assert count_hooks(other) > 0


def test_a_refused_model_leaves_the_watched_one_watched(model, train, shown):
    inspector = PyTorchInspector([OutputNorm()], module=model, visualizer=shown)
    with pytest.raises(OptionError, match="not str"):
        inspector.attach("another model")
    train(model)
    inspector.tick_epoch()
    assert shown.layers_of("Output Norm") == {"1"}


def test_loss_fn_may_be_called_before_there_is_an_inspector(count_hooks):
    loss_fn = nn.MSELoss()
    lens = LossMetrics(loss_fn=loss_fn)
    loss_fn(torch.ones(1), torch.zeros(1))
    assert count_hooks(loss_fn) == 0
    inspector = PyTorchInspector([lens], visualizer="dummy")
    loss_fn(torch.full((1,), 2.0, requires_grad=True), torch.zeros(1))
    inspector.tick_epoch()
    assert lens.loss(train=True) == 4.0


def test_loss_fn_is_heard_again_after_attaching_again(model, train, count_hooks):
    loss_fn = nn.MSELoss()
    lens = LossMetrics(loss_fn=loss_fn)
    inspector = PyTorchInspector([lens], visualizer="dummy", module=model)
    inspector.detach()
    assert count_hooks(loss_fn) == 0
    inspector.attach(model)
    loss = train(model, loss_fn=loss_fn, steps=1)
    inspector.tick_epoch()
    assert lens.loss(train=True) == pytest.approx(loss)
    assert count_hooks(loss_fn) == 1


def test_parameter_that_is_replaced_after_attaching_is_followed(model, train, shown):
    inspector = PyTorchInspector([ParameterGradientGeometry(parameters="weight")], module=model, visualizer=shown)
    train(model, steps=1)
    inspector.tick_epoch()
    model[0].weight = nn.Parameter(torch.ones(4, 3))
    train(model, steps=1)
    inspector.tick_epoch()
    norm = model[0].weight.grad.double().norm().item()
    assert shown.line("Weight Gradient Norm", "0")[2] == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("value", ["off", "OFF"])
def test_switched_off_by_the_environment_nothing_is_attached(value, setup, model, train, count_hooks, monkeypatch):
    monkeypatch.setenv("MONITORCH", value)
    inspector = setup.watch(visualizer="matplotlib")
    assert count_hooks(*setup.things) == 0
    for _ in inspector.range(2):
        train(model, setup.optimizer, setup.loss_fn)
        inspector.push_loss(1.0, train=False)
        inspector.push_metric("acc", 1.0)
        inspector.log(lr=0.1)
    assert math.isnan(setup.lenses[0].loss(train=True))
    assert inspector.visualizer.show_fig().get_size_inches().size == 2
    inspector.lenses.append(ParameterGradientGeometry())
    inspector.tick_epoch()
    assert count_hooks(*setup.things) == 0
    inspector.detach().attach(model)
    assert count_hooks(*setup.things) == 0


def test_other_values_in_the_environment_mean_on(setup, count_hooks, monkeypatch):
    monkeypatch.setenv("MONITORCH", "on")
    inspector = setup.watch()
    assert inspector.state.is_active
    assert count_hooks(*setup.things) > 0


def test_lens_taken_out_of_the_list_is_left_at_the_next_tick(model, train, shown, count_hooks):
    norms, gradients = ParameterNorm(), ParameterGradientGeometry()
    inspector = PyTorchInspector([norms, gradients], module=model, visualizer=shown)
    train(model)
    inspector.tick_epoch()
    inspector.lenses.remove(gradients)
    train(model)
    inspector.tick_epoch()
    assert {tag for epoch, tag, _ in shown.calls if epoch == 2} <= {tag for tag in shown.tags if "Gradient" not in tag}
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_a_lens_that_fails_at_attach_leaves_no_model_half_watched(model, count_hooks, shown):
    class Failing(ParameterNorm):
        def finish_attach(self):
            raise RuntimeError("no")

    inspector = PyTorchInspector([OutputNorm(), Failing()], visualizer=shown)
    with pytest.raises(RuntimeError, match="no"):
        inspector.attach(model)
    assert count_hooks(model) == 0
    assert not inspector.state.attached


def kept(inspector):
    """The bytes of tensors that others are compared with, and what the engine thinks that these take."""
    engine = inspector.state.engine
    tensors = [meter.comparison.previous for meter in engine.meters if meter.comparison.previous is not None]
    return sum(tensor.nbytes for tensor in tensors), sum(engine.allowance.taken.values())


def test_lenses_that_leave_give_their_memory_back():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inspector = PyTorchInspector([], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    engine, steps, held = inspector.state.engine, inspector.state.engine.steps(optimizer), []
    listeners = []
    for _ in range(3):
        lenses = [ParameterGradientGeometry(), ParameterUpdateGeometry(optimizer), NonFinite(optimizer)]
        inspector.lenses.extend(lenses)
        inspector.tick_epoch()  # they are attached
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
        held.append(kept(inspector))
        inspector.lenses[:] = []
        inspector.tick_epoch()
        assert kept(inspector) == (0, 0)
        assert not engine._subscribers
        assert not engine._step_checks
        listeners.append((len(steps.before), len(steps.after)))
    assert len(set(held)) == len(set(listeners)) == 1
    assert held[0][0] > 0


def test_layers_that_are_replaced_give_their_memory_back():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    inspector = PyTorchInspector(
        [OutputGradientGeometry(), ParameterGradientGeometry()], module=model, visualizer="dummy"
    )
    held = []
    for _ in range(3):
        model[0] = nn.Linear(16, 16)
        inspector.tick_epoch()
        model(torch.ones(2, 16)).sum().backward()
        held.append(kept(inspector))
    assert len(set(held)) == 1
