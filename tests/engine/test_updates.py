"""How far steps move parameters: N steps are N updates, each measured from where the parameter really was."""

from itertools import pairwise

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
def follow(linear, optimizer, measured):
    def gather(preprocessor, parameter="weight", optimizer=optimizer):
        return OptimizerStepParameterGatherer(linear, optimizer, parameter, [preprocessor], parameter, measured)

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


def test_each_step_is_one_update(follow, move, measured, rows_of):
    geometries = geometry()
    follow(geometries)
    follow(geometries, "bias")
    ways = move(1, 2, -6)
    assert rows_of(measured) == ["bias", "weight"] * 3  # small ones first
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx([np.linalg.norm(way) for way in ways], rel=1e-5)
    assert correlations == pytest.approx([0.0, 1.0, -1.0])


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (geometry(), geometry(normalize=True), 1),
        (geometry(), geometry(correlation=False), 1),
        (geometry(), geometry(comparison="sketch"), 2),
    ],
)
def test_only_equal_wishes_share_a_pass(first, second, rows, follow, move, measured, rows_of):
    follow(first)
    follow(second)
    move(1)
    assert len(rows_of(measured)) == rows


@pytest.mark.parametrize("change", [lambda w: w.mul_(100.0), lambda w: w.data.mul_(100.0)], ids=["seen", "unseen"])
def test_what_others_do_to_a_parameter_between_steps_is_no_update(change, linear, follow, move):
    geometries = geometry()
    follow(geometries)
    move(1, 2)
    with torch.no_grad():
        change(linear.weight)  # clamping through .data changes no version
    move(3)
    assert geometries.value["weight"][0] == pytest.approx(np.sqrt(6) * np.arange(1, 4), rel=1e-4)


def test_steps_that_change_no_version_are_measured_like_others(linear, follow, measured):
    optimizer = torch.optim.AdamW(linear.parameters(), lr=0.1, fused=True)
    geometries = geometry()
    follow(geometries, optimizer=optimizer)
    ways = []
    for step in range(8):
        measured._enter(Phase.OBSERVE if step % 4 == 3 else Phase.BASELINE if step % 4 == 2 else Phase.IDLE)
        before, version = linear.weight.detach().double().numpy().copy(), linear.weight._version
        linear.weight.grad = torch.full_like(linear.weight, float(step - 3))
        optimizer.step()
        ways.append(linear.weight.detach().double().numpy() - before)
        assert linear.weight._version == version  # else this tests nothing
    lengths, cosines = geometries.value["weight"]
    assert lengths == pytest.approx([np.linalg.norm(ways[step]) for step in (3, 7)], rel=1e-5)
    expected = [(a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) for a, b in (ways[2:4], ways[6:8])]
    assert cosines == pytest.approx(expected, abs=1e-5)


def test_a_parameter_replaced_by_one_of_the_same_shape_and_version_is_another_one(linear, follow, move, optimizer):
    geometries = geometry()
    follow(geometries)
    move(1)
    twin = nn.Parameter(torch.full((2, 3), 50.0))
    while twin._version < linear.weight._version:
        with torch.no_grad():
            twin.add_(0.0)
    assert twin._version == linear.weight._version
    linear.weight = optimizer.param_groups[0]["params"][0] = twin
    move(2)
    assert geometries.value["weight"][0] == pytest.approx([np.sqrt(6), 2 * np.sqrt(6)])


def test_a_parameter_that_grows_is_followed_under_its_name(linear, follow, move, optimizer):
    """As when points are added to a scene: module and optimizer get a larger parameter instead of the old one."""
    geometries = geometry()
    follow(geometries)
    move(1, 2)
    linear.weight = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(5, 3))
    move(3, 4)
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx([np.sqrt(6), 2 * np.sqrt(6), 3 * np.sqrt(15), 4 * np.sqrt(15)])
    assert correlations == pytest.approx([0.0, 1.0, 1.0])  # none across the change of shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_of_short_floats_are_subtracted_in_float32(dtype, measured):
    layer, geometries = nn.Linear(40, 30, bias=False).to(dtype), geometry()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    OptimizerStepParameterGatherer(layer, optimizer, "weight", [geometries], "weight", measured)
    stream, ways = torch.Generator().manual_seed(0), []
    for _ in range(4):
        before = layer.weight.detach().double()
        layer.weight.grad = (torch.randn(30, 40, generator=stream) * 0.05).to(dtype)
        optimizer.step()
        ways.append((layer.weight.detach().double() - before).numpy())
    lengths, cosines = geometries.value["weight"]
    assert lengths == pytest.approx([np.linalg.norm(way) for way in ways], rel=1e-6)
    expected = [(a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairwise(ways)]
    assert cosines[1:] == pytest.approx(expected, abs=1e-6)


def test_a_replaced_parameter_is_copied_anew(linear, follow, move, measured, optimizer):
    geometries = geometry()
    follow(geometries)
    move(1)
    linear.weight = nn.Parameter(torch.ones(4, 3))
    optimizer.add_param_group({"params": [linear.weight]})
    move(2, 3)
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx([np.sqrt(6), 2 * np.sqrt(12), 3 * np.sqrt(12)])
    assert correlations == pytest.approx([0.0, 1.0])  # the run's first one; nothing to compare with after a new shape


def test_updates_are_measured_from_the_step_before_also_after_a_gap(follow, move, measured):
    geometries = geometry()
    follow(geometries)
    for paused, size in ((False, 1), (False, 2), (True, 50), (True, 50), (False, 3), (False, 4)):
        measured.paused = paused
        move(size)
    lengths, correlations = geometries.value["weight"]
    assert lengths == pytest.approx(np.sqrt(6) * np.array([1, 2, 3, 4]), rel=1e-5)
    assert correlations == pytest.approx([0.0, 1.0, 1.0])


def test_baseline_steps_show_nothing_and_are_compared_with(follow, move, measured):
    geometries, lengths_only = geometry(), geometry(correlation=False)
    follow(geometries)
    follow(lengths_only, "bias")
    for phase, size in ((Phase.IDLE, 9), (Phase.BASELINE, -2), (Phase.OBSERVE, 3)):
        measured._enter(phase)
        move(size)
    lengths, correlations = geometries.value["weight"]
    assert (lengths, correlations) == (pytest.approx([3 * np.sqrt(6)]), pytest.approx([-1.0]))
    assert lengths_only.value["bias"] == pytest.approx([3 * np.sqrt(2)])


def test_parameters_of_another_optimizer_are_left_alone(linear, follow, measured, rows_of):
    other = torch.optim.SGD([linear.bias], lr=1.0)
    follow(geometry(), "weight", other)
    linear.bias.grad = torch.ones(2)
    other.step()
    assert rows_of(measured) == []


def test_sketches_of_large_updates_are_near_the_truth(measured):
    layer, sketched, exact = nn.Linear(100, 100), geometry(comparison="sketch"), geometry()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for preprocessor in (sketched, exact):
        OptimizerStepParameterGatherer(layer, optimizer, "weight", [preprocessor], "weight", measured)
    stream, shared = np.random.default_rng(0), 0.0
    for _ in range(4):
        shared = stream.normal(size=(100, 100)) + shared
        layer.weight.grad = torch.tensor(shared, dtype=torch.float32)
        optimizer.step()
    assert sketched.value["weight"][0] == pytest.approx(exact.value["weight"][0])
    assert sketched.value["weight"][1] == pytest.approx(exact.value["weight"][1], abs=5 * 0.022)
    kept = [meter.comparison.previous.nbytes for meter in measured.engine.updates(optimizer).meters]
    assert kept == [2 * 4096 * 4, 100 * 100 * 4]


def test_an_error_is_told_once_and_the_others_go_on(linear, follow, cracked, measured):
    linear.weight = nn.Parameter(cracked(2, 3))
    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
    geometries, also, fine = geometry(), geometry(normalize=True), geometry()
    follow(geometries, "weight", optimizer)
    follow(also, "weight", optimizer)
    follow(fine, "bias", optimizer)
    linear(torch.ones(1, 3)).sum().backward()
    with pytest.warns(MonitorchWarning, match="stops watching layer 'weight': RuntimeError: it fell apart") as told:
        optimizer.step()
    assert len(told) == 1
    optimizer.step()
    assert not geometries.value
    assert fine.value["bias"][0] == pytest.approx([np.sqrt(2)] * 2)
    assert linear.weight.sum().item() == pytest.approx(6 - 2 * 6)


def test_leaving_removes_the_hooks(follow, measured, optimizer, count_hooks):
    gatherers = [follow(geometry(), name) for name in ("weight", "bias")]
    before = count_hooks(optimizer)
    gatherers[0].detach()
    measured.engine.refresh()
    assert count_hooks(optimizer) == before > 0
    gatherers[1].detach()
    measured.engine.refresh()
    assert count_hooks(optimizer) == 0
