"""Several gloo processes: one of them shows the numbers of all."""

import os
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from monitorch import PyTorchInspector
from monitorch.engine.meeting import Meeting
from monitorch.errors import ExchangeError, MonitorchWarning
from monitorch.inspector.agreements import LATENESS
from monitorch.inspector.module_tree import unwrap
from monitorch.lens import LossMetrics, OutputGradientGeometry, OutputNorm, ParameterNorm, ParameterUpdateGeometry
from monitorch.visualizer import PlayerVisualizer, RecorderVisualizer
from monitorch.visualizer.record_sink import RecordSink

pytestmark = pytest.mark.xdist_group("processes")
STEPS, RANKS = 3, 2


class Numbers(RecordSink):
    def __init__(self):
        super().__init__()
        self.lines = {}

    def write(self, records):
        self.lines |= {f"{r.epoch} {r.tag} {r.layer} {r.statistic}": r.value for r in records}


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def batches(step):
    """One batch for each rank, of very different size of numbers."""
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(4, 3, generator=generator, dtype=torch.float64) * 3**rank for rank in range(RANKS)]


def shows(inspector):
    return {"main": inspector.is_main_process, "visualizer": type(inspector.visualizer).__name__}


def visualises_on(rank, master_rank):
    inspector = PyTorchInspector([LossMetrics()], visualizer=Numbers(), master_rank=master_rank)
    inspector.push_loss(float(rank), train=True)
    inspector.tick_epoch()
    inspector.visualizer = numbers = Numbers()  # a rank that does not show keeps showing nothing
    inspector.push_loss(rank + 4.0, train=True)
    inspector.tick_epoch()
    return shows(inspector) | {"lines": numbers.lines, "loss": inspector.lenses[0].loss(train=True)}


def pushes_in_any_order(rank):
    inspector = PyTorchInspector([LossMetrics(metrics=["acc", "f1", "alone"])], visualizer=Numbers())
    pairs = [("acc", 0.1 + rank), ("f1", 0.9 + rank)]
    for name, value in reversed(pairs) if rank else pairs:
        inspector.push_metric(name, value, running=name == "acc")
    if rank:
        inspector.push_metric("alone", 7.0)
    inspector.log(lr=float(rank))
    inspector.tick_epoch()
    if rank:
        inspector.log(**{"only there": 3.0})
    inspector.tick_epoch()
    return getattr(inspector.visualizer, "lines", {})


def trains_with_ddp(rank):
    model = DistributedDataParallel(new_model())
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    lenses = [
        LossMetrics(loss_fn=loss_fn, loss_fn_inplace=False, loss_line=["median", "mean"], loss_range="Q1-Q3"),
        LossMetrics(separate_loss_and_metrics=False, metrics="seen"),
        OutputNorm(inplace=False, line_aggregation=["median", "max"], range_aggregation="Q1-Q3"),
        OutputGradientGeometry(inplace=False, line_aggregation="median", range_aggregation="min-max"),
        ParameterUpdateGeometry(optimizer, inplace=False, parameters="weight", range_aggregation=None),
    ]
    inspector = PyTorchInspector(lenses, module=model, visualizer=Numbers(), on_error="raise")
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batches(step)[rank]
        loss = loss_fn(model(x), x[:, :1])
        loss.backward()
        optimizer.step()
        inspector.push_loss(loss, train=True, running=False)
        inspector.push_metric("seen", step + 10 * rank, running=False)
    inspector.tick_epoch()
    same = unwrap(model) is model.module
    return {"unwrapped": same, "lines": getattr(inspector.visualizer, "lines", {})}


def losses_of_uneven_number(rank):
    inspector = PyTorchInspector([LossMetrics(loss_line=["mean", "std", "max"])], visualizer=Numbers())
    for loss in ((1.0, 2.0), (3.0, 7.0, 12.0))[rank]:
        inspector.push_loss(torch.tensor(loss, requires_grad=True), train=True)
    inspector.tick_epoch()
    return getattr(inspector.visualizer, "lines", {})


def identity():
    layer = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3))
    return nn.Sequential(layer)


def shows_its_own(rank):
    model = identity()
    lens = OutputNorm(include=nn.Linear)
    inspector = PyTorchInspector([lens], module=model, visualizer=Numbers(), per_rank=True, master_rank=1)
    model(batches(0)[rank])
    exchange, Meeting.exchange = Meeting.exchange, None
    inspector.tick_epoch()  # asks nobody
    Meeting.exchange = exchange
    ranks = sorted({record.rank for record in inspector.records()})
    return {"lines": inspector.visualizer.lines, "ranks": ranks}


def looks_at_more(rank):
    """Only the master rank looks at parameters."""
    model = identity()
    lenses = [OutputNorm(include=nn.Linear), *([] if rank else [ParameterNorm()])]
    inspector = PyTorchInspector(lenses, module=model, visualizer=Numbers())
    model(batches(0)[rank])
    inspector.tick_epoch()
    return getattr(inspector.visualizer, "lines", {})


def agrees_on_a_pace(rank):
    model = new_model()
    inspector = PyTorchInspector([OutputNorm()], module=model, visualizer="dummy", budget=0.1)
    state, cadence = inspector.state, inspector.state.cadence
    first = [cadence.common_n, cadence.has_agreed]
    cadence.affordable_n = lambda *_: 5 + 2 * rank  # what their costs may come to
    state.wished_tick = 40 - 10 * rank
    agreed = []
    for _ in range(LATENESS + 1):
        inspector.tick_epoch()
        agreed.append([cadence.common_n, cadence.has_agreed, state.steps_to_next_tick])
    del cadence.affordable_n
    state.step = 77
    cadence.cost.spend(100.0 * rank)
    state.load_state_dict(state.state_dict())
    return {"first": first, "agreed": agreed, "later": [int(cadence.phase(step)) for step in range(78, 400)]}


def survives(rank, folder):
    """The other one dies after the first tick."""
    strict, inspector = (
        PyTorchInspector([LossMetrics()], visualizer=Numbers(), on_error=mode) for mode in ("raise", "warn")
    )
    for one in (strict, inspector):
        one.push_loss(1.0 + rank, train=True)
        one.tick_epoch()
        one.records()  # waits until the tick is shown
    if rank:
        (folder / "result-1.json").write_text("null")
        os._exit(0)
    for _ in range(2):
        with pytest.raises(ExchangeError, match="could not be reached"):
            strict.tick_epoch()
    inspector.push_loss(3.0, train=True)
    with pytest.warns(MonitorchWarning, match="shows only its own numbers"):
        inspector.tick_epoch()
    inspector.push_loss(4.0, train=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inspector.tick_epoch()
    return inspector.visualizer.lines


def records_into_one_file(rank, folder):
    recorder = RecorderVisualizer(folder / "run.jsonl")
    inspector = PyTorchInspector([LossMetrics()], visualizer=recorder)
    for epoch in inspector.range(2):
        inspector.push_loss(float(epoch + rank), train=True)
    return (folder / "run.jsonl").exists() if rank == 0 else str(folder)


def sketches_its_part(rank):
    """Each process holds a part of the parameter, and sketches that."""
    torch.manual_seed(0)
    model, stream = fully_shard(nn.Linear(200, 300, bias=False)), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    lenses = [
        ParameterUpdateGeometry(optimizer, inplace=False, parameters="weight", correlation=how)
        for how in ("sketch", "exact")
    ]
    inspector = PyTorchInspector(lenses, module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 200, generator=stream)).pow(2).sum().backward()
        optimizer.step()
    inspector.tick_epoch()
    inspector.records()  # waits until the tick is shown
    return [[record.value for record in lens.records(1) if record.statistic == "mean"] for lens in lenses]


def scenarios(rank, folder):
    """Everything in one pair of processes: starting them takes longer than running them."""
    return {
        "default": visualises_on(rank, 0),
        "second": visualises_on(rank, 1),
        "pushes": pushes_in_any_order(rank),
        "ddp": trains_with_ddp(rank),
        "recording": records_into_one_file(rank, folder),
        "losses": losses_of_uneven_number(rank),
        "own": shows_its_own(rank),
        "uneven": looks_at_more(rank),
        "pace": agrees_on_a_pace(rank),
        "sketches": sketches_its_part(rank),
    }


@pytest.fixture(scope="module")
def ranks(run_ranks):
    return run_ranks(scenarios, RANKS)


@pytest.mark.parametrize(("scenario", "master"), [("default", 0), ("second", 1)])
def test_the_master_rank_shows_the_numbers_of_all(scenario, master, ranks):
    for rank, found in enumerate(result[scenario] for result in ranks):
        kind = "Numbers" if rank == master else "DummyVisualizer"
        assert (found["main"], found["visualizer"], found["loss"]) == (rank == master, kind, 4.5)
        assert found["lines"].get("2 Loss Loss train_loss mean") == (4.5 if rank == master else None)


def test_metrics_are_merged_by_name_not_by_order(ranks):
    lines = ranks[0]["pushes"]
    assert lines["1 Metrics Metrics acc mean"] == pytest.approx(0.6)
    assert lines["1 Metrics Metrics f1 mean"] == pytest.approx(1.4)
    assert lines["1 Logged Logged lr mean"] == 0.5


def test_metric_pushed_on_one_rank_only_is_shown(ranks):
    assert ranks[0]["pushes"]["1 Metrics Metrics alone mean"] == 7.0


@pytest.fixture(scope="module")
def whole():
    """What one process sees that trains on the batches of all ranks at once."""
    model, losses, norms, updates, slopes = new_model(), [], [], [], []
    for step in range(STEPS):
        x = torch.cat(batches(step))
        first = model[0](x)
        hidden = model[1](first)
        norms.append(hidden.detach().norm(dim=1).mean().item())
        loss = (model[2](hidden) - x[:, :1]).pow(2).mean()
        losses.append(loss.item())
        slope, *gradients = torch.autograd.grad(loss, [first, *model.parameters()])
        slopes.append(slope.norm().item())
        updates.append(0.1 * gradients[0].norm().item())
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return {"losses": losses, "norms": norms, "updates": updates, "slopes": slopes}


def test_in_memory_lenses_under_ddp_see_what_one_process_would(ranks, whole):
    lines = ranks[0]["ddp"]["lines"]
    expected = {
        "1 Output Norm 1 median": np.median(whole["norms"]),
        "1 Output Norm 1 max": np.max(whole["norms"]),
        "1 Output Norm 1 Q1": np.quantile(whole["norms"], 0.25),
        "1 Output Gradient Norm 0 median": np.median(whole["slopes"]),
        "1 Output Gradient Norm 0 max": np.max(whole["slopes"]),
        "1 Weight Update Norm 0 mean": np.mean(whole["updates"]),
    }
    assert {name: lines[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert ranks[0]["ddp"]["unwrapped"]
    assert ranks[1]["ddp"] == {"unwrapped": True, "lines": {}}


def test_two_loss_lenses_under_ddp_both_see_the_loss_of_the_whole_batch(ranks, whole):
    lines = ranks[0]["ddp"]["lines"]
    expected = {
        "1 Loss Loss train_loss median": np.median(whole["losses"]),
        "1 Loss Loss train_loss mean": np.mean(whole["losses"]),
        "1 Loss Loss train_loss Q3": np.quantile(whole["losses"], 0.75),
        "1 Loss & Metrics Loss & Metrics train_loss mean": np.mean(whole["losses"]),
        "1 Loss & Metrics Loss & Metrics seen mean": 6.0,
    }
    assert {name: lines[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_losses_are_averaged_step_by_step_and_the_rest_is_pooled(ranks):
    means = [(1.0 + 3.0) / 2, (2.0 + 7.0) / 2, 12.0]
    lines = ranks[0]["losses"]
    assert lines["1 Loss Loss train_loss std"] == pytest.approx(np.std(means))
    assert lines["1 Loss Loss train_loss max"] == 12.0
    assert lines["1 Loss Loss train_loss mean"] == pytest.approx(np.mean(means))


def test_what_only_another_rank_logs_is_shown(ranks):
    assert ranks[0]["pushes"]["2 Logged Logged only there mean"] == 3.0


def test_with_per_rank_each_shows_its_own_numbers(ranks):
    for rank, found in enumerate(result["own"] for result in ranks):
        own = [r.norm(dim=1).mean().item() for r in batches(0)][rank]
        assert found["lines"]["1 Output Norm 0 mean"] == pytest.approx(own)
        assert found["ranks"] == [rank]


def test_ranks_with_other_lenses_do_not_disturb_each_other(ranks):
    whole_norm = torch.cat(batches(0)).norm(dim=1).mean().item()
    assert ranks[0]["uneven"]["1 Output Norm 0 mean"] == pytest.approx(whole_norm)
    assert ranks[0]["uneven"]["1 Weight Norm 0 mean"] == pytest.approx(3**0.5)


def test_all_ranks_observe_the_steps_that_the_slowest_can_afford(ranks):
    for pace in (result["pace"] for result in ranks):
        assert pace["first"] == [1, False]
        assert pace["agreed"] == [[1, False, None]] * LATENESS + [[7, True, 40]]


def test_all_ranks_observe_the_same_steps_also_after_a_checkpoint_whatever_each_has_spent(ranks):
    first, second = (result["pace"]["later"] for result in ranks)
    assert first == second
    assert first.count(2) > 10


def test_sketches_of_parts_are_those_of_the_whole_parameter(ranks):
    (norm, cosine), (true_norm, true_cosine) = ranks[0]["sketches"]
    assert norm == pytest.approx(true_norm, rel=0.03)
    assert norm != pytest.approx(true_norm, rel=1e-9)  # else nothing was estimated
    assert cosine == pytest.approx(true_cosine, abs=5 * 0.022)


def test_a_rank_that_dies_does_not_hold_up_the_others(run_ranks):
    survivor, _ = run_ranks(survives)
    losses = {name: value for name, value in survivor.items() if name.endswith("train_loss mean")}
    assert losses == {f"{tick} Loss Loss train_loss mean": loss for tick, loss in ((1, 1.5), (2, 3.0), (3, 4.0))}


def test_recorder_built_on_every_rank_writes_one_playable_recording(ranks):
    assert ranks[0]["recording"] is True
    player = PlayerVisualizer(f"{ranks[1]['recording']}/run.jsonl", Numbers())
    player.playback()
    assert len(player.sessions()) == 1
    assert player.visualizer.lines["2 Loss Loss train_loss mean"] == 1.5
