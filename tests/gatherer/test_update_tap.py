"""How far steps move parameters: N steps are N updates, and parameters are copied only where they have to be."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.gatherer import OptimizerStepParameterGatherer
from monitorch.inspector.cadence import Phase
from monitorch.preprocessor import ParameterDifferenceGeometry


def geometry(**options):
    defaults = {"correlation": True, "normalize": False, "inplace": False, "eps": 0.0}
    return ParameterDifferenceGeometry(**{**defaults, **options})


@pytest.fixture
def optimizer(linear):
    return torch.optim.SGD(linear.parameters(), lr=1.0)


@pytest.fixture
def follow(linear, optimizer, housed):
    def gather(preprocessor, parameter="weight", optimizer=optimizer):
        return OptimizerStepParameterGatherer(linear, optimizer, parameter, [preprocessor], parameter, housed)

    return gather


@pytest.fixture
def move(linear, optimizer):
    """Steps that move every weight by these sizes; returns the ways as arrays."""

    def steps(*sizes):
        ways = []
        for size in sizes:
            before = linear.weight.detach().double().numpy()
            for parameter in linear.parameters():
                parameter.grad = torch.full_like(parameter, -float(size))
            optimizer.step()
            ways.append(linear.weight.detach().double().numpy() - before)
        return ways

    return steps


def site_of(housed, optimizer):
    [site] = housed.house.updates(optimizer).sites
    return site


def test_each_step_is_one_update(follow, move, housed, rows_of):
    geometries = geometry()
    follow(geometries)
    follow(geometries, "bias")
    ways = move(1, 2, -6)
    assert rows_of(housed) == ["weight", "bias"] * 3
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx([np.linalg.norm(way) for way in ways], rel=1e-5)
    assert correlations == pytest.approx([0.0, 1.0, -1.0])


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (geometry(), geometry(normalize=True), 1),
        (geometry(), geometry(correlation=False), 1),
        (geometry(), geometry(sketch=True), 2),
    ],
)
def test_only_equal_wishes_share_a_pass(first, second, rows, follow, move, housed, rows_of):
    follow(first)
    follow(second)
    move(1)
    assert len(rows_of(housed)) == rows


def test_parameters_are_copied_only_after_somebody_else_changed_them(linear, follow, move, housed, optimizer):
    geometries = geometry()
    follow(geometries)
    move(1, 2)
    site = site_of(housed, optimizer)
    copy, copies = site.before, site.before._version  # measuring writes through an array and counts no version
    move(3, 4)
    assert (site.before, site.before._version) == (copy, copies)
    with torch.no_grad():
        linear.weight.mul_(100.0)  # as clamping or a restored checkpoint does
    move(5)
    assert (site.before is copy, site.before._version) == (True, copies + 1)
    assert geometries.value["weight"][0] == pytest.approx(np.sqrt(6) * np.arange(1, 6), rel=1e-4)


def test_a_replaced_parameter_is_copied_anew(linear, follow, move, housed, optimizer):
    geometries = geometry()
    follow(geometries)
    move(1)
    linear.weight = nn.Parameter(torch.ones(4, 3))
    optimizer.add_param_group({"params": [linear.weight]})
    move(2, 3)
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx([np.sqrt(6), 2 * np.sqrt(12), 3 * np.sqrt(12)])
    assert correlations == pytest.approx([0.0, 1.0])  # the run's first one; nothing to compare with after a new shape


def test_updates_are_measured_from_the_step_before_also_after_a_gap(follow, move, housed):
    geometries = geometry()
    follow(geometries)
    for paused, size in ((False, 1), (False, 2), (True, 50), (True, 50), (False, 3), (False, 4)):
        housed.paused = paused
        move(size)
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx(np.sqrt(6) * np.array([1, 2, 3, 4]), rel=1e-5)
    assert correlations == pytest.approx([0.0, 1.0, 1.0])


def test_lead_steps_show_nothing_and_are_compared_with(follow, move, housed):
    geometries, lengths_only = geometry(), geometry(correlation=False)
    follow(geometries)
    follow(lengths_only, "bias")
    for phase, size in ((Phase.IDLE, 9), (Phase.LEAD, -2), (Phase.OBSERVE, 3)):
        housed._enter(phase)
        move(size)
    lengths, correlations = geometries.value["weight"]
    assert (lengths, correlations) == (pytest.approx([3 * np.sqrt(6)]), pytest.approx([-1.0]))
    assert lengths_only.value["bias"] == pytest.approx([3 * np.sqrt(2)])


def test_parameters_of_another_optimizer_are_left_alone(linear, follow, housed, rows_of):
    other = torch.optim.SGD([linear.bias], lr=1.0)
    follow(geometry(), "weight", other)
    linear.bias.grad = torch.ones(2)
    other.step()
    assert rows_of(housed) == []


def test_sketches_of_large_updates_are_near_the_truth(housed):
    layer, sketched, exact = nn.Linear(100, 100), geometry(sketch=True), geometry()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for preprocessor in (sketched, exact):
        OptimizerStepParameterGatherer(layer, optimizer, "weight", [preprocessor], "weight", housed)
    stream, shared = np.random.default_rng(0), 0.0
    for _ in range(4):
        shared = stream.normal(size=(100, 100)) + shared
        layer.weight.grad = torch.tensor(shared, dtype=torch.float32)
        optimizer.step()
    assert sketched.value["weight"][0] == pytest.approx(exact.value["weight"][0])
    assert sketched.value["weight"][1] == pytest.approx(exact.value["weight"][1], abs=5 * 0.022)
    kept = [site.previous.nbytes for site in housed.house.updates(optimizer).sites]
    assert kept == [2 * 4096 * 4, 100 * 100 * 4]


def test_an_error_is_told_once_and_the_others_go_on(linear, follow, cracked, housed):
    linear.weight = nn.Parameter(cracked(2, 3))
    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
    geometries, also, fine = geometry(), geometry(normalize=True), geometry()
    follow(geometries, "weight", optimizer)
    follow(also, "weight", optimizer)
    follow(fine, "bias", optimizer)
    linear(torch.ones(1, 3)).sum().backward()
    with pytest.warns(MonitorchWarning, match="stops watching layer 'weight': RuntimeError: it fell apart") as told:
        optimizer.step()
    assert len(told) == 2
    optimizer.step()
    assert not geometries.value
    assert fine.value["bias"][0] == pytest.approx([np.sqrt(2)] * 2)
    assert linear.weight.sum().item() == pytest.approx(6 - 2 * 6)


def test_leaving_removes_the_hooks(follow, housed, optimizer, count_hooks):
    gatherers = [follow(geometry(), name) for name in ("weight", "bias")]
    before = count_hooks(optimizer)
    gatherers[0].detach()
    housed.house.refresh()
    assert count_hooks(optimizer) == before > 0
    gatherers[1].detach()
    housed.house.refresh()
    assert count_hooks(optimizer) == 0
