"""Processes that do not do the same: other experts, dropped layers, more micro-batches, death within a tick."""

import os
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.engine.meeting import Meeting
from monitorch.errors import MonitorchWarning
from monitorch.lens import ActivationHealth, OutputActivation, OutputNorm, ParameterNorm
from monitorch.visualizer.record_sink import RecordSink

pytestmark = pytest.mark.xdist_group("processes")
RANKS, TICKS, STEPS = 3, 2, 2
EXPERTS = ((0, 1, 2), (2,), (3, 4))
"""Which experts each process has."""
TOKENS = {(0, 0): 5, (0, 1): 2, (0, 2): 0, (1, 2): 4, (2, 3): 1, (2, 4): 7}
"""How many tokens of a batch go to an expert, by process and expert."""
MICRO_BATCHES = (2, 3, 1)


class Means(RecordSink):
    """Keeps mean norms, by tick and layer."""

    def __init__(self):
        super().__init__()
        self.lines = {}

    def write(self, records):
        wanted = [r for r in records if r.statistic == "mean" and r.tag in ("Output Norm", "Weight Norm")]
        self.lines |= {f"{r.tag} {r.epoch} {r.layer}": r.value for r in wanted}


class Experts(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.experts = nn.ModuleDict({str(number): scaled(number + 1.0) for number in numbers})

    def forward(self, tokens):
        return [expert(tokens[int(number)]) for number, expert in self.experts.items()]


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.sometimes = scaled(1.0), scaled(2.0)

    def forward(self, x, is_dropped):
        return self.always(x) if is_dropped else self.sometimes(self.always(x))


def scaled(factor):
    layer = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2) * factor)
    return layer


def batch(size, *seeds):
    generator = torch.Generator().manual_seed(hash(seeds) % 1000)
    return torch.randn(size, 2, generator=generator, dtype=torch.float64)


def watching(model, lenses=None):
    numbers = Means()
    lenses = [OutputNorm(include=nn.Linear), ParameterNorm()] if lenses is None else lenses
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], lr=0.0)  # to count steps
    options = {"visualizer": numbers, "on_error": "raise", "optimizer": optimizer}
    return PyTorchInspector(lenses, module=model, **options), numbers


def has_other_experts(rank):
    model = Experts(EXPERTS[rank])
    inspector, numbers = watching(model)
    for tick in range(TICKS):
        for step in range(STEPS):
            model({number: batch(TOKENS[rank, number], rank, number, tick, step) for number in EXPERTS[rank]})
        inspector.tick_epoch()
    return numbers.lines


def is_dropped(rank, tick, step):
    """In the second tick one process never runs the layer."""
    return (rank + step) % RANKS == 0 if tick == 0 else rank == 1


def drops_a_layer(rank):
    model = Dropping()
    inspector, numbers = watching(model)
    for tick in range(TICKS):
        for step in range(STEPS):
            model(batch(rank + 1, rank, tick, step), is_dropped(rank, tick, step))
            inspector.optimizers[0].step()
        inspector.tick_epoch()
    return numbers.lines


def accumulates(rank):
    model = nn.Sequential(scaled(1.0))
    inspector, numbers = watching(model)
    for tick in range(TICKS):
        for step in range(STEPS):
            for part in range(MICRO_BATCHES[rank]):
                model(batch(2, rank, tick, step, part))
            inspector.optimizers[0].step()
        inspector.tick_epoch()
    return numbers.lines


def has_exact_deaths(rank):
    """Each process has one active channel of its own in a layer that one of them skips once."""
    model = nn.Sequential(nn.Identity(), nn.ReLU())
    inspector, _ = watching(model, [OutputActivation(warning_plot=False, exact_death=True)])
    for step in range(STEPS):
        if (rank, step) != (1, 1):
            model(torch.eye(4)[rank][None])
        inspector.optimizers[0].step()
    inspector.tick_epoch()
    return [record.value for record in inspector.records() if record.statistic == "death_rate"]


def has_units_that_live_elsewhere(rank, exact):
    """Each process has one active unit of its own of four, in two windows; in the second tick there is none."""
    model, found = nn.Sequential(nn.Identity(), nn.ReLU()), []
    inspector, _ = watching(model, [ActivationHealth(exact_death=exact)])
    for steps in (2, 0):
        for _ in range(steps):
            model(torch.eye(4)[rank].expand(256, 4))
            inspector.optimizers[0].step()
        inspector.tick_epoch()
        found.append([r.value for r in inspector.records() if r.tag == "Activation Dead Units"])
    return found


def scenarios(rank, folder):
    return {
        "units": [has_units_that_live_elsewhere(rank, exact) for exact in (True, False)],
        "experts": has_other_experts(rank),
        "dropped": drops_a_layer(rank),
        "micro-batches": accumulates(rank),
        "deaths": has_exact_deaths(rank),
    }


def dies_in_a_tick(rank, folder):
    """The last process dies between two reductions of the second tick."""
    numbers, model = Means(), nn.Sequential(scaled(1.0))
    inspector = PyTorchInspector([OutputNorm(include=nn.Linear)], module=model, visualizer=numbers)
    reduce, calls = Meeting.reduce, []

    def may_die(meeting, *args):
        calls.append(1)
        if len(calls) == 2:
            (folder / f"result-{rank}.json").write_text("null")
            os._exit(0)
        return reduce(meeting, *args)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for tick in range(3):
            if tick == 1 and rank == RANKS - 1:
                Meeting.reduce = may_die
            model(batch(2, rank, tick))
            inspector.tick_epoch()
            inspector.records()  # waits until the tick is shown
    texts = [str(one.message) for one in found if one.category is MonitorchWarning]
    return {"lines": numbers.lines, "warnings": texts}


@pytest.fixture(scope="module")
def ranks(run_ranks):
    return run_ranks(scenarios, RANKS)


def mean_norm(*tensors):
    return torch.cat(tensors).norm(dim=1).mean().item()


def of_tick(lines, tick, tag="Output Norm"):
    begin = f"{tag} {tick + 1} "
    return {name.removeprefix(begin): value for name, value in lines.items() if name.startswith(begin)}


@pytest.mark.parametrize("tick", range(TICKS))
def test_experts_of_each_process_are_shown_and_those_of_several_are_put_together(tick, ranks):
    expected = {}
    for number in range(5):
        having = [rank for rank in range(RANKS) if TOKENS.get((rank, number))]
        means = [
            mean_norm(*(batch(TOKENS[rank, number], rank, number, tick, step) for rank in having)) * (number + 1)
            for step in range(STEPS)
        ]
        expected[f"experts.{number}"] = np.mean(means)
    # those that only others have cannot be shown by this process, which has no such layer
    expected = {name: value for name, value in expected.items() if int(name[-1]) in EXPERTS[0]}
    assert of_tick(ranks[0]["experts"], tick) == pytest.approx(expected, rel=1e-9)
    norms = {f"experts.{number}": 2**0.5 * (number + 1) for number in EXPERTS[0]}
    assert of_tick(ranks[0]["experts"], tick, "Weight Norm") == pytest.approx(norms)


@pytest.mark.parametrize("tick", range(TICKS))
def test_a_layer_that_some_processes_drop_is_that_of_the_others(tick, ranks):
    expected = {}
    for layer, factor in (("always", 1.0), ("sometimes", 2.0)):
        running = [
            [rank for rank in range(RANKS) if layer == "always" or not is_dropped(rank, tick, step)]
            for step in range(STEPS)
        ]
        means = [
            mean_norm(*(batch(rank + 1, rank, tick, step) for rank in having)) * factor
            for step, having in enumerate(running)
        ]
        expected[layer] = np.mean(means)
    assert of_tick(ranks[0]["dropped"], tick) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tick", range(TICKS))
def test_micro_batches_that_only_some_processes_have_count_as_passes_of_these(tick, ranks):
    passes = [
        mean_norm(*(batch(2, rank, tick, step, part) for rank in range(RANKS) if part < MICRO_BATCHES[rank]))
        for step in range(STEPS)
        for part in range(max(MICRO_BATCHES))
    ]
    assert of_tick(ranks[0]["micro-batches"], tick) == pytest.approx({"0": np.mean(passes)}, rel=1e-9)


def test_channels_are_dead_if_no_process_that_ran_the_layer_has_them_active(ranks):
    for found in ranks:
        assert found["deaths"] == pytest.approx([np.mean([1 / 4, 2 / 4])])


def test_units_are_dead_if_no_process_has_seen_them_active_or_on_average(ranks):
    for found in ranks:
        exact, mean = found["units"]
        assert exact == [[1 - RANKS / 4] * 3, []]  # mean, least and most
        assert mean == [[3 / 4] * 3, []]


def test_those_who_survive_a_death_in_the_middle_of_a_tick_show_their_own_numbers(run_ranks):
    first, second, _ = run_ranks(dies_in_a_tick, RANKS)
    together = mean_norm(*(batch(2, rank, 0) for rank in range(RANKS)))
    own = [mean_norm(batch(2, 0, tick)) for tick in (1, 2)]
    expected = {f"Output Norm {tick} 0": value for tick, value in enumerate([together, *own], start=1)}
    assert first["lines"] == pytest.approx(expected)
    for found in (first, second):
        (text,) = found["warnings"]
        assert "could not be reached" in text
