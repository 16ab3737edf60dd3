"""Gradients of parameters: one row for each and each backward pass, or for each step of an optimizer."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.gatherer import ParameterGradientGatherer
from monitorch.inspector.cadence import Phase
from monitorch.preprocessor import GradientActivation, GradientGeometry


def geometry(**options):
    return GradientGeometry(**{"correlation": True, "normalize": False, "inplace": False, "eps": 0.0, **options})


def rates(eps=1e-8):
    return GradientActivation(death=True, inplace=False, eps=eps)


@pytest.fixture
def follow(linear, measured):
    def gather(preprocessor, parameter="weight", module=linear):
        return ParameterGradientGatherer(parameter, module, [preprocessor], parameter, measured, follow=True)

    return gather


def backward(module, inputs):
    """One pass whose weight gradient has the same numbers in each row."""
    module.zero_grad()
    module(torch.as_tensor(inputs)).sum().backward()
    return np.tile(np.asarray(inputs, dtype=np.float64).sum(0), (module.out_features, 1))


def cosine(first, second):
    return (first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second))


def test_length_direction_and_rates_come_from_one_pass(linear, measured, rows_of, follow):
    geometries, activations = geometry(), rates(eps=0.7)
    for name in ("weight", "bias"):
        follow(geometries, name)
        follow(activations, name)
    inputs = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    gradients = [backward(linear, x) for x in inputs]
    assert sorted(rows_of(measured)) == ["bias"] * 4 + ["weight"] * 4
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx([np.linalg.norm(gradient) for gradient in gradients], rel=1e-6)
    expected = [0.0, *(cosine(*pair) for pair in pairwise(gradients))]
    assert correlations == pytest.approx(expected, abs=1e-6)
    active, dead = activations.value["weight"]
    assert active == pytest.approx([(abs(gradient) > 0.7).mean() for gradient in gradients])
    assert dead == pytest.approx([(abs(gradient) <= 0.7).all(axis=1).mean() for gradient in gradients])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 10.0])
def test_eps_is_added_to_the_true_lengths_whatever_the_dtype_and_from_tick_to_tick(dtype, eps, measured):
    linear, geometries = nn.Linear(3, 2).to(dtype), geometry(eps=eps)
    gatherer = ParameterGradientGatherer("weight", linear, [geometries], "weight", measured, follow=True)
    inputs = np.random.default_rng(0).normal(size=(4, 5, 3)) * np.array([1e-3, 1.0, 50.0, 0.1])[:, None, None]
    found = []
    gradients = [backward(linear, torch.as_tensor(inputs[0], dtype=dtype))]
    found += list(geometries.value["weight"][1])
    geometries.reset()
    gradients += [backward(linear, torch.as_tensor(x, dtype=dtype)) for x in inputs[1:]]
    found += list(geometries.value["weight"][1])
    pairs = [((a * b).sum(), np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairwise(gradients)]
    assert found == pytest.approx([0.0, *(dot / (lengths + eps) for dot, lengths in pairs)], rel=1e-5)
    gatherer.detach()


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (geometry(), geometry(normalize=True), 1),
        (geometry(correlation=False), geometry(), 1),
        (geometry(), geometry(comparison="sketch"), 2),
        (rates(), geometry(comparison="sketch"), 2),
        (rates(), rates(), 1),
        (rates(0.1), rates(0.2), 2),
    ],
)
def test_only_equal_wishes_share_a_pass(first, second, rows, linear, measured, rows_of, follow):
    follow(first)
    follow(second)
    backward(linear, torch.ones(2, 3))
    assert len(rows_of(measured)) == rows


def test_one_that_leaves_does_not_take_the_other_along(linear, measured, count_hooks, follow):
    leaving, staying = geometry(), rates()
    gatherers = [follow(leaving), follow(staying)]
    gatherers[0].detach()
    backward(linear, torch.ones(2, 3))
    assert staying.value["weight"] == ([1.0], [0.0])
    assert not leaving.value
    gatherers[1].detach()
    measured.engine.refresh()
    assert count_hooks(linear, linear.weight) == 0


def test_accumulated_gradients_are_measured_as_they_grow(linear, follow):
    geometries = geometry()
    follow(geometries)
    for _ in range(3):
        linear(torch.ones(1, 3)).sum().backward()
    lengths, _ = geometries.value["weight"]
    assert lengths == pytest.approx(np.sqrt(6) * np.arange(1, 4))


def test_frozen_replaced_and_shapeless_parameters_are_found_when_they_train(linear, measured, count_hooks, follow):
    geometries, lazy = geometry(), nn.LazyLinear(2)
    linear.requires_grad_(False)
    follow(geometries, "weight")
    follow(geometries, "bias", lazy)
    assert count_hooks(linear.weight) == 0
    linear.weight.requires_grad_()
    measured.engine.gradients.refresh()
    backward(linear, torch.ones(2, 3))
    old, linear.weight = linear.weight, nn.Parameter(torch.ones(2, 3))
    measured.engine.gradients.refresh()
    assert count_hooks(old) == 0
    backward(linear, torch.ones(2, 3))
    lazy(torch.ones(2, 3)).sum().backward()
    assert len(geometries.value["weight"][0]) == 2
    assert geometries.value["bias"][0] == pytest.approx([np.sqrt(8)])


def test_sparse_gradients_are_measured_like_dense_ones(measured):
    embedding, geometries = nn.Embedding(5, 2, sparse=True), geometry()
    ParameterGradientGatherer("weight", embedding, [geometries], "weight", measured, follow=True)
    for indices in ([0, 0, 1], [0, 2, 2]):
        embedding.zero_grad()
        embedding(torch.tensor(indices)).sum().backward()
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx([np.sqrt(10)] * 2)
    assert correlations == pytest.approx([0.0, 4 / 10])


def test_parameters_of_an_optimizer_are_measured_at_its_step_only(linear, measured, rows_of, follow):
    geometries = geometry()
    follow(geometries, "weight")
    follow(geometries, "bias")
    mine, other = torch.optim.SGD([linear.weight], lr=0.1), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    measured.engine.gradients.follow([mine])
    backward(linear, torch.ones(2, 3))
    assert rows_of(measured) == ["bias"]
    linear.weight.grad.mul_(10)
    measured.engine.gradients.take_step(other)
    assert rows_of(measured) == ["bias"]
    measured.engine.gradients.take_step(mine)
    assert geometries.value["weight"][0] == pytest.approx([10 * np.sqrt(24)])


def test_nothing_is_compared_across_a_time_without_recording(linear, measured, follow):
    geometries = geometry()
    follow(geometries)
    for paused in (False, False, True, False, False):
        measured.paused = paused
        backward(linear, torch.ones(2, 3))
    lengths, correlations = geometries.value["weight"]
    assert (len(lengths), correlations) == (4, pytest.approx([0.0, 1.0, 1.0]))


def test_a_baseline_step_measures_only_what_is_compared_and_shows_nothing(linear, measured, rows_of, follow):
    geometries, activations = geometry(), rates()
    follow(geometries, "weight")
    follow(activations, "bias")
    for phase in (Phase.IDLE, Phase.BASELINE, Phase.OBSERVE):
        measured._enter(phase)
        backward(linear, torch.full((2, 3), float(phase)))
    assert sorted(rows_of(measured)) == ["bias", "weight", "weight"]
    lengths, correlations = geometries.value["weight"]
    assert (lengths, correlations) == (pytest.approx([4 * np.sqrt(6)]), pytest.approx([1.0]))
    assert activations.value["bias"] == ([1.0], [0.0])


def test_an_error_is_told_once_and_the_others_go_on(linear, measured, follow, cracked):
    first, second, fine = geometry(), rates(), rates()
    for preprocessor, name in ((first, "weight"), (second, "weight"), (fine, "bias")):
        follow(preprocessor, name)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    measured.engine.gradients.follow([optimizer])
    linear.weight.grad, linear.bias.grad = cracked(2, 3), torch.ones(2)
    with pytest.warns(MonitorchWarning, match=r"stops watching layer 'weight': RuntimeError: it fell apart") as told:
        measured.engine.gradients.take_step(optimizer)
    assert len(told) == 1
    assert "(shapes: (2, 3))" in str(told[0].message)
    measured.engine.gradients.take_step(optimizer)
    assert not first.value
    assert not second.value
    assert fine.value["bias"] == ([1.0] * 2, [0.0] * 2)


@pytest.fixture
def listen(linear, measured):
    """What a listener is told of the weight: its gradient before, and what is added."""
    told = []

    def note(parameter, gradient):
        assert parameter is linear.weight
        told.append((None if parameter.grad is None else parameter.grad.tolist(), gradient.tolist()))

    handle = measured.engine.gradients.listen(linear, "weight", note)
    return told, handle


def test_a_listener_is_told_what_each_pass_adds_before_it_is_added(linear, listen):
    told, _ = listen
    for factor in (1.0, 2.0):
        linear(torch.full((1, 3), factor)).sum().backward()
    ones = np.ones((2, 3))
    assert told == [(None, ones.tolist()), (ones.tolist(), (2 * ones).tolist())]
    assert linear.weight.grad.tolist() == (3 * ones).tolist()


@pytest.mark.parametrize(
    ("act", "is_told"),
    [
        (lambda linear, loss: torch.autograd.grad(loss, [linear.weight]), False),
        (lambda linear, loss: torch.autograd.grad(loss, [linear.weight], create_graph=True), False),
        (lambda linear, loss: torch.autograd.grad(loss, [linear.bias]), False),
        (lambda linear, loss: loss.backward(inputs=[linear.bias]), False),
        (lambda linear, loss: loss.backward(inputs=[linear.weight]), True),
        (lambda linear, loss: loss.backward(create_graph=True), True),
    ],
)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_listener_is_told_only_of_what_is_added(act, is_told, linear, listen):
    told, _ = listen
    act(linear, linear(torch.ones(1, 3)).square().sum())
    assert bool(told) == is_told
    linear.zero_grad()


def test_a_listener_is_not_told_while_nothing_is_recorded_nor_after_it_has_left(linear, measured, listen, count_hooks):
    told, handle = listen
    measured._enter(Phase.IDLE)
    backward(linear, torch.ones(2, 3))
    assert count_hooks(linear.weight) == 0
    measured._enter(Phase.OBSERVE)
    backward(linear, torch.ones(2, 3))
    assert len(told) == 1
    handle.remove()
    backward(linear, torch.ones(2, 3))
    assert len(told) == 1
    measured.engine.refresh()
    assert count_hooks(linear.weight) == 0


def test_a_listener_that_fails_is_told_of_and_training_goes_on(linear, measured):
    measured.engine.gradients.listen(linear, "weight", lambda *_: 1 / 0)
    with pytest.warns(MonitorchWarning, match="looking at what backward adds to the gradient of 'weight'"):
        backward(linear, torch.ones(2, 3))
    assert linear.weight.grad is not None


def test_a_listener_alone_has_nothing_measured_and_takes_no_scaled_gradient(linear, measured, listen, rows_of):
    backward(linear, torch.ones(2, 3))
    assert rows_of(measured) == []
    assert not measured.engine.takes_scaled_gradients


def test_closing_leaves_no_hook(linear, measured, count_hooks, follow):
    follow(geometry(), "weight")
    follow(geometry(), "bias")
    assert count_hooks(linear.weight, linear.bias) == 2
    measured.engine.close()
    assert count_hooks(linear, linear.weight, linear.bias) == 0
    assert measured.engine.gradients.meters == []
