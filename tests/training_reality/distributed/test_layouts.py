"""Several processes: the numbers of all of them are those of one process with all batches."""

from functools import cache

import pytest
import torch
from torch import nn

from tests.training_reality.distributed.cases import LAYOUTS, PACES, QUICK, SLOW
from tests.training_reality.distributed.oracle import Whole
from tests.training_reality.distributed.rank import report
from tests.training_reality.distributed.training import RATE, STEPS, VARIANTS, Loss, batch, new_model

pytestmark = pytest.mark.xdist_group("processes")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ROWS = [
    pytest.param(
        *(layout, name, device, pace),
        id=f"{layout.key}-{name}-{device}",
        marks=[pytest.mark.slow] if pace == SLOW else [],
    )
    for device in DEVICES
    for layout in LAYOUTS
    for pace in PACES
    for name in layout.variants_on(device, pace)
]
SINGLE = {"rel": 1e-3, "abs": 1e-4}
OTHERS = ("Logged", "Parameter Checksum")
"""Speed, and what depends on the last bit."""
TOLERANCE = {"float32": SINGLE, "GradScaler": SINGLE}


@pytest.fixture(scope="module")
def started(run_ranks):
    """Start so many processes on a device, once for each pace; returns what each has found."""
    return cache(lambda processes, device, pace=QUICK: run_ranks(report, processes, device=device, pace=pace))


@pytest.mark.parametrize(("layout", "variant", "device", "pace"), ROWS)
def test_numbers_are_those_of_one_process_with_all_batches(layout, variant, device, pace, started):
    sees = {"sees_parts": layout.key == "ddp", "sees_growth": layout.key in ("ddp", "tp")}
    expected = Whole(layout.data_ranks, VARIANTS[variant], detour=layout.key == "ddp", **sees).run()
    tolerance = TOLERANCE.get(variant, {"rel": 1e-9, "abs": 1e-11})
    shown = [found[layout.key][variant]["shown"] for found in started(layout.processes, device, pace)]
    assert len(shown[0]) == len(expected) == 2
    for tick, numbers in enumerate(expected):
        compared = {key: value for key, value in numbers.items() if key[:2] not in layout.apart}
        for rank in shown:  # every process knows all numbers
            found = {(tag, layer, line): value for tag, layer, line, value in rank[tick] if tag not in OTHERS}
            assert found.keys() == numbers.keys()
            assert {key: found[key] for key in compared} == pytest.approx(compared, **tolerance)


@pytest.mark.parametrize(("layout", "variant", "device", "pace"), ROWS)
def test_training_does_not_notice(layout, variant, device, pace, started):
    for found in started(layout.processes, device, pace):
        assert found[layout.key][variant]["untouched"]
        assert (found[layout.key][variant]["graphs"] > 0) == VARIANTS[variant].compiled


@pytest.mark.slow
def test_second_moments_of_sharded_parameters_are_those_of_the_whole(started):
    model, loss_fn = new_model(torch.float64), Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [loss_fn(model(x), y) for x, y in (batch(step, rank, torch.float64) for rank in range(2))]
        torch.stack(losses).mean().backward()
        optimizer.step()
    second = {
        name: optimizer.state[own]["exp_avg_sq"] / (1 - 0.999**STEPS)
        for name, own in model.named_parameters()
        if own.grad is not None
    }
    sizes = {name: model.get_parameter(name).grad.square() / found.clamp(min=1e-16) for name, found in second.items()}
    expected = {name: found.mean().sqrt().item() for name, found in sizes.items()}
    assert expected
    for found in started(2, "cpu"):
        assert found["second moments"] == {key: pytest.approx(expected, rel=1e-9) for key in ("ddp", "fsdp")}


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_collectives_of_a_tick_do_not_depend_on_layers_and_lenses(device, started):
    for found in started(2, device):
        (own,) = {own for own, _ in found["collectives"]}
        assert own <= 8  # also those that count parts, in the first tick
        assert [of_training for _, of_training in found["collectives"]] == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_finite_on_one_rank_counts_once(device, started):
    for found in started(2, device):
        assert len(found["poisoned"]) > 5
        assert found["poisoned"] == dict.fromkeys(found["poisoned"], 1)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_neuron_that_is_active_on_one_rank_is_not_dead_where_that_is_asked_for(device, started):
    assert [found["deaths"] for found in started(2, device)] == [[0.5, 0.25]] * 2


@pytest.mark.slow
def test_whatever_the_placement_of_a_tensor_its_numbers_are_those_of_the_whole(started):
    torch.manual_seed(0)
    norm, columns = nn.LayerNorm(4).double(), nn.Linear(4, 6, bias=False).double()
    first = norm(torch.randn(8, 4, generator=torch.Generator().manual_seed(5)).double())
    second = columns(first)
    vector = second.mean(0)
    loss = second.square().mean() + vector.sum()
    gradients = zip(("norm", "columns", "vector"), torch.autograd.grad(loss, [first, second, vector]), strict=True)
    expected = {f"Output Gradient Norm {layer}": gradient.norm().item() for layer, gradient in gradients}
    expected |= {"Output Norm vector": vector.norm().item(), "Loss Loss": loss.item()}
    for found in started(2, "cpu"):
        for numbers in found["placements"]:
            assert {name: numbers[name] for name in expected} == pytest.approx(expected, rel=1e-4)
