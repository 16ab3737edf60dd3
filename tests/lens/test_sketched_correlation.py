"""Correlations from sketches: near the exact ones, and without a copy of what they compare."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.engine import allocation
from monitorch.errors import OptionError
from monitorch.lens import OutputGradientGeometry, ParameterGradientGeometry, ParameterUpdateGeometry

WIDTH, BATCH = 70, 64  # weights of the middle layer and outputs of the first two are larger than a sketch
STANDARD_ERROR, NORM_ERROR = 0.022, 0.011
SKETCH_BYTES = {"Weight Gradient": 2 * 4096 * 4, "Weight Update": 2 * 4096 * 8, "Output Gradient": 2 * 4096 * 4}

LENSES = {
    "Weight Gradient": lambda optimizer, **options: ParameterGradientGeometry(parameters="weight", **options),
    "Weight Update": lambda optimizer, **options: ParameterUpdateGeometry(optimizer, parameters="weight", **options),
    "Output Gradient": lambda optimizer, **options: OutputGradientGeometry(**options),
}
LARGE = {"Weight Gradient": {"1"}, "Weight Update": {"1"}, "Output Gradient": {"0", "1"}}


@pytest.fixture
def task():
    model = nn.Sequential(nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, after=lambda tensors: None):
    """Steps on ever other data; ``after`` gets gradients, updates and output gradients by layer."""
    outputs, stream = {}, torch.Generator().manual_seed(0)
    for name, layer in model.named_children():
        layer.register_forward_hook(
            lambda _, __, output, name=name: output.retain_grad() or outputs.update({name: output})
        )
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.randn(BATCH, 3, generator=stream)) - 1).pow(2).mean().backward()
        weights = {name: layer.weight.detach().clone() for name, layer in model.named_children()}
        optimizer.step()
        tensors = {"Output Gradient": {name: output.grad for name, output in outputs.items()}}
        tensors["Weight Gradient"] = {name: layer.weight.grad for name, layer in model.named_children()}
        tensors["Weight Update"] = {name: layer.weight - weights[name] for name, layer in model.named_children()}
        after({what: {k: v.detach().double().numpy() for k, v in found.items()} for what, found in tensors.items()})


@pytest.mark.parametrize("what", LENSES)
def test_sketches_are_near_the_truth_and_exact_for_small_tensors(what, task, watch, shown):
    model, optimizer = task
    inspector = watch(model, LENSES[what](optimizer, correlation="sketch"))
    arrays, found = defaultdict(list), defaultdict(list)

    def keep(tensors):
        inspector.tick_epoch()
        for layer, line in shown.values(f"{what} Correlation").items():
            found[layer].append(line["mean"])
            arrays[layer].append(tensors[what][layer])
        for layer, line in shown.values(f"{what} Norm").items():
            is_estimate = what == "Weight Update" and layer in LARGE[what]
            allowed = 3 * NORM_ERROR if is_estimate else 1e-4
            assert line["mean"] == pytest.approx(np.linalg.norm(tensors[what][layer]), rel=allowed)

    train(model, optimizer, keep)
    assert set(found) == {"0", "1", "2"}
    for layer, correlations in found.items():
        pairs = zip(arrays[layer], arrays[layer][1:], strict=False)
        truth = [0.0, *((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs)]
        is_large = layer in LARGE[what]
        assert correlations == pytest.approx(truth, abs=5 * STANDARD_ERROR if is_large else 1e-4)
        assert is_large == (correlations != pytest.approx(truth, abs=1e-4))


@pytest.mark.parametrize("what", LENSES)
def test_no_copy_is_kept_where_a_sketch_is_smaller(what, task, watch):
    model, optimizer = task
    inspector = watch(model, LENSES[what](optimizer, correlation="sketch"))
    train(model, optimizer)
    engine = inspector.state.engine
    taps = [
        engine.gradients,
        engine.updates(optimizer),
        *(engine.output(layer, name) for name, layer in model.named_children()),
    ]
    meters = {meter.name: meter for tap in taps for meter in tap.meters}
    kept = {name: meter.comparison.previous.nbytes for name, meter in meters.items()}
    assert {name for name, size in kept.items() if size == SKETCH_BYTES[what]} == LARGE[what]
    assert all(size < 4096 * 4 for name, size in kept.items() if name not in LARGE[what])
    assert {name for name, meter in meters.items() if meter.before is not None}.isdisjoint(LARGE[what])


@pytest.mark.parametrize("what", LENSES)
def test_other_ways_to_compare_are_refused(what, task):
    with pytest.raises(OptionError, match="correlation='rough' is unknown; choose from 'exact', 'sketch', 'auto'"):
        LENSES[what](task[1], correlation="rough")


def stated(what, task, watch, **options):
    """What records say about their error, by tag."""
    model, optimizer = task
    inspector = watch(model, LENSES[what](optimizer, **options))
    train(model, optimizer)
    inspector.tick_epoch()
    return {(record.tag, record.error) for record in inspector.records() if record.tag.startswith(what)}


@pytest.mark.parametrize("what", LENSES)
@pytest.mark.parametrize(
    ("correlation", "room", "is_estimate"),
    [("sketch", 1 << 30, True), ("exact", 0, False), ("auto", 0, True), ("auto", 1 << 30, False)],
)
def test_records_of_estimates_state_their_error(what, correlation, room, is_estimate, task, watch, monkeypatch):
    monkeypatch.setattr(allocation, "MOST_COPIES", room)
    cosine, norm = (STANDARD_ERROR, NORM_ERROR) if is_estimate else (None, None)
    expected = {(f"{what} Correlation", cosine), (f"{what} Norm", norm if what == "Weight Update" else None)}
    assert stated(what, task, watch, correlation=correlation) == expected


def test_norms_of_updates_can_be_estimated_alone(task, watch):
    found = stated("Weight Update", task, watch, correlation="sketch", compute_correlation=False)
    assert found == {("Weight Update Norm", NORM_ERROR)}


@pytest.mark.parametrize("what", LENSES)
def test_tensors_that_are_smaller_than_a_sketch_are_no_estimates(what, watch):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    task = model, torch.optim.SGD(model.parameters(), lr=0.01)
    assert {error for _, error in stated(what, task, watch, correlation="sketch")} == {None}


def test_copies_of_all_lenses_share_the_room(task, watch, monkeypatch):
    model, optimizer = task
    weight = model[1].weight.nbytes
    outputs = 2 * BATCH * WIDTH * 4 + BATCH * 4
    monkeypatch.setattr(allocation, "MOST_COPIES", outputs + 3 * weight)
    inspector = watch(model, *(make(optimizer, correlation="auto") for make in LENSES.values()), optimizer=optimizer)
    train(model, optimizer)
    inspector.tick_epoch()
    errors = {record.tag: record.error for record in inspector.records()}
    assert errors["Output Gradient Correlation"] is None
    assert errors["Weight Update Correlation"] is None  # parameters are kept before the step,
    assert errors["Weight Gradient Correlation"] == STANDARD_ERROR  # gradients are measured at it
    (taken,) = inspector.state.engine.allowance.taken.values()
    assert taken <= allocation.MOST_COPIES
