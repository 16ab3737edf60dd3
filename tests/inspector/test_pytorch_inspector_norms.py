"""Norms at every step with several processes: each keeps its own part, and none waits for the others."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from monitorch import PyTorchInspector
from monitorch.engine import step_norms
from monitorch.lens import GradientNorm, OutputNorm

pytestmark = pytest.mark.xdist_group("processes")
STEPS, RANKS, FAULT = 30, 2, 26


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def batches(step):
    """One batch for each rank."""
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(4, 4, generator=generator) for _ in range(RANKS)]


def train(model, rank, lenses, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = PyTorchInspector(lenses, module=model, optimizer=optimizer, visualizer="dummy", **options)
    inspector.state.engine.norms.keep()
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batches(step)[rank]).square().mean().backward()
        yield step + 1
        optimizer.step()
    inspector.tick()
    inspector.records()  # waits for the tick
    yield inspector


def adds_up_in_one_process(rank):
    """Only the second process has found that it is cheap."""
    step_norms.SHARE = math.inf if rank else 0.0
    lens = GradientNorm(inplace=False, line_aggregation="median", range_aggregation="min-max")
    *_, inspector = train(DistributedDataParallel(new_model()), rank, [lens], every=10, on_error="raise")
    norms = inspector.state.engine.norms
    found = [record.value for record in inspector.records() if record.lens == "GradientNorm"]
    return found, norms._price.is_low


def keeps_its_part(rank):
    """A part of a sharded parameter breaks in one process, in a step that is not observed."""
    step_norms.SHARE, step_norms.is_kept_on = math.inf, lambda device: True
    model = new_model()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    found = []
    for one in train(fully_shard(model), rank, [OutputNorm(), GradientNorm()], every=100, on_error="raise"):
        if isinstance(one, int):
            own = [parameter.grad.to_local() for parameter in model.parameters()]
            if one == FAULT and rank == 1:
                own[2].view(-1)[0] = math.nan
            found.append([np.linalg.norm(part.double().numpy()) for part in own])
    inspector = one
    _, names, numbers = inspector.state.engine.norms.read()
    origin, events = inspector.first_not_finite, inspector.events()
    return {
        "expected": found[: FAULT - 1],
        "kept": numbers[: FAULT - 1, 0].tolist(),
        "names": names,
        "origin": None if origin is None else origin[:5],
        "events": [(event.step, event.layer) for event in events],
    }


def scenarios(rank, folder):
    return {"sums": adds_up_in_one_process(rank), "parts": keeps_its_part(rank)}


@pytest.fixture(scope="module")
def ranks(run_ranks):
    return run_ranks(scenarios, RANKS)


def test_it_is_enough_that_one_process_adds_up_what_all_have(ranks):
    model, norms = new_model(), []
    for step in range(STEPS):
        model.zero_grad()
        model(torch.cat(batches(step))).square().mean().backward()
        norms.append(math.sqrt(sum(float(own.grad.double().square().sum()) for own in model.parameters())))
        with torch.no_grad():
            for own in model.parameters():
                own -= 0.1 * own.grad
    found, is_low = ranks[0]["sums"]
    assert (is_low, ranks[1]["sums"][1]) == (False, True)
    known = [norms[begin:] + [norms[9]] * (begin > 9) for begin in range(4, 15)]  # from when it was found to be cheap
    expected = [pytest.approx([np.median(some), min(some), max(some)], rel=1e-5) for some in known]
    assert found in expected


def test_each_keeps_the_norms_of_its_parts(ranks):
    for result in ranks:
        found = result["parts"]
        assert found["names"] == [[layer, name] for layer in "02" for name in ("weight", "bias")]
        assert np.array(found["kept"]) == pytest.approx(np.array(found["expected"]), rel=1e-6)


def test_a_part_that_breaks_in_one_process_is_known_in_the_one_that_shows(ranks):
    first, second = (result["parts"] for result in ranks)
    assert second["origin"] == [FAULT, "backward", "gradient", "2", "weight"]
    assert [FAULT, "2"] in first["events"]
