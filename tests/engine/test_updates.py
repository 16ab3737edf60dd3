"""How far steps move parameters: N steps are N updates, each measured from where the parameter really was."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from monitorch import MonitorchWarning
from monitorch.engine.columns import LARGEST, NONFINITE
from monitorch.gatherer import OptimizerStepParameterGatherer
from monitorch.inspector.cadence import Phase
from monitorch.preprocessor import ParameterDifferenceGeometry


class Made(TorchDispatchMode):
    """Notes how many bytes each tensor has that is made inside the block."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        taken = {x.untyped_storage().data_ptr() for x in tree_iter(args) if isinstance(x, torch.Tensor)}
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in taken:
            self.sizes.append(made.nbytes)
        return made


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
    assert sketched.value["weight"][0] == pytest.approx(exact.value["weight"][0], rel=5 * 0.011)
    assert sketched.value["weight"][1] == pytest.approx(exact.value["weight"][1], abs=5 * 0.022)
    kept = [meter.comparison.previous.nbytes for meter in measured.engine.updates(optimizer).meters]
    assert kept == [2 * 4096 * 8, 100 * 100 * 4]


SHAPE = 300, 500


def _sparse():
    way = torch.zeros(SHAPE)
    way.view(-1)[torch.randperm(way.numel())[:200]] = 1.0
    return way


WAYS = {
    "rank 1": lambda weight: torch.outer(torch.randn(SHAPE[0]), torch.randn(SHAPE[1])),
    "constant": lambda weight: torch.ones(SHAPE),
    "sparse": lambda weight: _sparse(),
    "signs": lambda weight: torch.randn(SHAPE).sign(),
    "random": lambda weight: torch.randn(SHAPE),
    "weight decay": lambda weight: -weight,
}


@pytest.fixture
def step_by(measured):
    """Steps of a wide layer; ``read`` returns lengths and cosines as they were measured, and the true lengths."""

    def build(dtype=torch.float32, **options):
        layer, geometries, truth = nn.Linear(*SHAPE[::-1], bias=False).to(dtype), geometry(**options), []
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        OptimizerStepParameterGatherer(layer, optimizer, "weight", [geometries], "weight", measured)

        def step(way):
            before = layer.weight.detach().double().clone()
            layer.weight.grad = -way.to(dtype)
            optimizer.step()
            truth.append(np.linalg.norm((layer.weight.detach().double() - before).numpy()))

        step.layer, step.optimizer = layer, optimizer
        step.read = lambda: (*geometries.value["weight"], truth)
        return step

    return build


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", WAYS)
def test_sketched_norms_are_near_the_truth_however_small_a_step_is(name, dtype, step_by):
    torch.manual_seed(0)
    step = step_by(dtype, comparison="sketch")
    for ratio in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        weight = step.layer.weight.detach().double()
        way = WAYS[name](weight)
        step(way * (ratio * weight.norm() / way.norm()))
    lengths, _, truth = step.read()
    assert truth[0] > 0  # short floats do not move in the last ones
    assert lengths == pytest.approx(truth, rel=0.03, abs=0)


def test_a_step_that_moves_nothing_is_exactly_zero(step_by):
    step = step_by(comparison="sketch")
    step(torch.randn(SHAPE))
    step(torch.zeros(SHAPE))
    lengths, cosines, _ = step.read()
    assert (lengths[1], cosines[1]) == (0.0, 0.0)


@pytest.mark.parametrize("correlation", [True, False])
def test_with_sketches_no_copy_of_a_parameter_is_kept(correlation, step_by, measured):
    step = step_by(correlation=correlation, comparison="sketch")
    step.layer.weight.grad = torch.ones(SHAPE)
    with Made() as made:
        step.optimizer.step()
    (meter,) = measured.engine.updates(step.optimizer).meters
    assert meter.comparison.previous.nbytes == 2 * 4096 * 8
    assert meter.before is None
    assert not [size for size in made.sizes if size >= step.layer.weight.nbytes]
    assert measured.engine.allowance.taken[torch.device("cpu")] == 0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_sketches_of_what_is_not_finite_give_samples_that_are_not(number, step_by):
    step = step_by(comparison="sketch")
    for first in (0.0, number, 0.0):
        way = torch.ones(SHAPE)
        way[3, 4] = first
        step(way)
    lengths, cosines, _ = step.read()
    assert np.isfinite(lengths).tolist() == np.isfinite(cosines).tolist() == [True, False, False]


def test_what_a_sketch_cannot_know_is_not_zero(step_by, measured):
    step_by(comparison="sketch")(torch.ones(SHAPE))
    (chunk,) = measured.engine.take()
    assert np.isnan(chunk.rows[:, [NONFINITE, LARGEST]]).tolist() == [[True, True]]


def test_a_sketch_of_another_shape_is_not_compared(step_by):
    step = step_by(comparison="sketch")
    step(torch.ones(SHAPE))
    with torch.no_grad():
        step.layer.weight = step.optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.randn(400, 200))
    for _ in range(2):
        step(torch.ones(400, 200))
    lengths, cosines, truth = step.read()
    assert lengths == pytest.approx(truth, rel=0.05)
    assert cosines == pytest.approx([0.0, 1.0], abs=1e-6)  # the first of the run; none across the change of shape


def test_a_parameter_whose_memory_is_rearranged_during_a_step_has_no_sample(measured):
    layer, geometries = nn.Linear(*SHAPE[::-1], bias=False), geometry(comparison="sketch")

    class Rearranging(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            layer.weight.data = layer.weight.data.T.contiguous().T

    optimizer = Rearranging(layer.parameters(), lr=1.0)
    OptimizerStepParameterGatherer(layer, optimizer, "weight", [geometries], "weight", measured)
    layer.weight.grad = torch.ones(SHAPE)
    with pytest.warns(MonitorchWarning, match="the layout of its memory has changed during a step"):
        optimizer.step()
    layer.weight.grad = torch.ones(SHAPE)
    optimizer.step()  # now it stays as it is
    assert geometries.value["weight"][0] == pytest.approx([np.sqrt(np.prod(SHAPE))], rel=0.05)


def test_sketched_baselines_show_nothing_and_are_compared_with(step_by, measured):
    step = step_by(comparison="sketch")
    way = torch.randn(SHAPE)
    for phase, size in ((Phase.IDLE, 9), (Phase.BASELINE, -2), (Phase.OBSERVE, 3)):
        measured._enter(phase)
        step(size * way)
    lengths, cosines, truth = step.read()
    assert lengths == pytest.approx(truth[2:], rel=0.05)
    assert cosines == pytest.approx([-1.0])


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
