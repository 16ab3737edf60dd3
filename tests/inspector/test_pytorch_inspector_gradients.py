"""With an optimizer given, gradients are shown as it consumes them."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.lens import ParameterGradientGeometry


def loss_of(model, number):
    stream = torch.Generator().manual_seed(number)
    return model(torch.randn(6, 3, generator=stream)).pow(2).mean()


@pytest.fixture
def watch(model):
    kept = []

    def build(*optimizers, **options):
        lens = ParameterGradientGeometry(parameters="weight", line_aggregation=("mean", "min", "max"))
        options = {"module": model, "visualizer": "dummy", "on_error": "raise", **options}
        kept.append(PyTorchInspector([lens], optimizer=optimizers or None, **options))
        return kept[-1]

    return build


def samples(inspector):
    """Weight gradient norms by layer, of a tick that has one sample of each."""
    inspector.tick_epoch()
    found = [record for record in inspector.records() if record.tag == "Weight Gradient Norm"]
    by_layer = {record.layer: [r.value for r in found if r.layer == record.layer] for record in found}
    assert all(max(values) == min(values) for values in by_layer.values())
    return {layer: values[0] for layer, values in by_layer.items()}


def norms(model):
    return {name: np.linalg.norm(model[int(name)].weight.grad.double().numpy()) for name in ("0", "2")}


def test_micro_batches_are_one_sample_of_their_sum(model, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch(optimizer)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            loss_of(model, 2 * step + part).backward()
        expected = norms(model)
        optimizer.step()
        assert samples(inspector) == pytest.approx(expected, rel=1e-6)


def test_without_an_optimizer_each_backward_is_a_sample(model, watch):
    inspector = watch()
    for part in range(2):
        loss_of(model, part).backward()
    inspector.tick_epoch()
    found = {r.statistic: r.value for r in inspector.records() if (r.tag, r.layer) == ("Weight Gradient Norm", "0")}
    assert found["min"] < found["max"]


def test_gradients_are_those_after_clipping(model, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch(optimizer)
    loss_of(model, 0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    expected = norms(model)
    optimizer.step()
    assert samples(inspector) == pytest.approx(expected, rel=1e-6)
    assert max(expected.values()) <= 1e-3


@pytest.mark.parametrize("every", [1, 2, 3])
def test_gradients_before_clipping_are_those_of_the_observed_steps(model, watch, every):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch(optimizer, gradient="before_clip", every=every)
    for step in range(1, 7):
        optimizer.zero_grad()
        for part in range(2):
            loss_of(model, 2 * step + part).backward()
        expected = norms(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        assert samples(inspector) == (pytest.approx(expected, rel=1e-6) if step % every == 0 else {})


def test_a_step_without_a_backward_before_it_has_nothing_before_clipping(model, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch(optimizer, gradient="before_clip")
    loss_of(model, 0).backward()
    optimizer.step()
    assert samples(inspector).keys() == {"0", "2"}
    optimizer.step()
    assert samples(inspector) == {}


def test_parameters_in_no_optimizer_are_seen_at_backward(model, watch):
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    inspector = watch(optimizer)
    loss_of(model, 0).backward()
    at_backward = norms(model)
    assert samples(inspector) == pytest.approx({"2": at_backward["2"]}, rel=1e-6)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    clipped = norms(model)
    optimizer.step()
    assert samples(inspector) == pytest.approx({"0": clipped["0"]}, rel=1e-6)


def test_each_optimizer_has_its_own_steps(model, watch):
    first, second = (torch.optim.SGD(model[place].parameters(), lr=0.1) for place in (0, 2))
    inspector = watch(first, second)
    loss_of(model, 0).backward()
    expected = norms(model)
    second.step()
    assert samples(inspector) == pytest.approx({"2": expected["2"]}, rel=1e-6)
    model[0].weight.grad.mul_(3)
    first.step()
    assert samples(inspector) == pytest.approx({"0": 3 * expected["0"]}, rel=1e-6)


def test_parameters_added_to_the_optimizer_later_are_seen_at_its_steps(model, watch):
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    inspector = watch(optimizer)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, 0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        expected = norms(model)
        optimizer.step()
        assert samples(inspector) == pytest.approx(expected, rel=1e-6)


def test_a_closure_shows_its_last_evaluation(model, watch):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    inspector, evaluated = watch(optimizer), []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        evaluated.append(norms(model))
        return loss

    optimizer.step(closure)
    assert len(evaluated) > 1
    assert samples(inspector) == pytest.approx(evaluated[-1], rel=1e-6)


def test_a_parameter_without_gradient_has_no_sample(model, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch(optimizer)
    model[0].weight.grad = torch.ones(4, 3)
    optimizer.step()
    assert samples(inspector) == pytest.approx({"0": np.sqrt(12)})


@pytest.mark.parametrize("options", [{}, {"gradient": "before_clip"}, None], ids=["at step", "before clip", "backward"])
def test_a_backward_pass_that_fails_does_not_end_it(model, watch, options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch() if options is None else watch(optimizer, **options)

    def fail(gradient):
        raise ArithmeticError("gradients of the last layer are there, those of the first are not")

    out = model[0](torch.ones(2, 3))
    out.register_hook(fail)
    with pytest.raises(ArithmeticError):
        model[2](model[1](out)).sum().backward()
    inspector.tick_epoch()
    for number in range(2):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        expected = norms(model)
        optimizer.step()
        assert samples(inspector) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"gradient": "before_clip"}, None])
def test_gradients_go_on_when_tensors_are_swapped(options, model, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = watch() if options is None else watch(optimizer, **options)
    for step in range(4):
        if step == 2:
            for parameter in list(model.parameters()):  # torch refuses it where somebody has a weak reference
                torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach() * 2))
        loss_of(model, step).backward()
        expected = norms(model)
        optimizer.step()
        optimizer.zero_grad()
        assert samples(inspector) == pytest.approx(expected, rel=1e-6)
