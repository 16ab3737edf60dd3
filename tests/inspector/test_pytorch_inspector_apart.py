"""Not all processes watch, tick or stay: training goes on as if nobody watched, and one warning says so."""

import time
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # makes the backend of that name known

import monitorch
from monitorch import PyTorchInspector
from monitorch.engine import meeting
from monitorch.errors import MonitorchWarning
from monitorch.inspector import inspector_state
from monitorch.lens import OutputNorm
from monitorch.store import list_runs
from monitorch.visualizer.record_sink import RecordSink

pytestmark = pytest.mark.xdist_group("processes")
STEPS, RANKS = 6, 2


class Numbers(RecordSink):
    """Keeps the mean norms of outputs, by tick and layer."""

    def __init__(self):
        super().__init__()
        self.lines = {}

    def write(self, records):
        wanted = [r for r in records if r.tag == "Output Norm" and r.statistic == "mean"]
        self.lines |= {f"{r.epoch} {r.layer}": r.value for r in wanted}


class Doubled(nn.Module):
    """Another class than that of the other models."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.layer(x)


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 1)).double()


def batch(step, rank):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(RANKS, 4, 3, generator=generator, dtype=torch.float64)[rank] * 3**rank


class Training:
    """Trains with DistributedDataParallel, and calls what it is given after each step."""

    def __init__(self, parallel=DistributedDataParallel):
        self.model = parallel(new_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self, after_step=lambda step: None, steps=STEPS):
        for step in range(steps):
            self.optimizer.zero_grad()
            self.model(batch(step, dist.get_rank())).square().mean().backward()
            self.optimizer.step()
            after_step(step)
        return [whole(parameter).tolist() for parameter in self.model.parameters()]


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


def watching(action):
    """What an action returns, and the warnings of ours that it leaves."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = action()
    return {"result": result, "warnings": [str(one.message) for one in found if one.category is MonitorchWarning]}


def only_the_first_watches(rank):
    training, numbers = Training(), Numbers()
    if rank == 0:
        monitorch.watch(training.model, training.optimizer, every=1, tick_every=2, visualizer=numbers)
    found = watching(training.run)
    return found | {"bare": Training().run(), "lines": numbers.lines}


def only_the_first_ticks(rank):
    training, numbers = Training(), Numbers()
    inspector = PyTorchInspector([OutputNorm(include=nn.Linear)], module=training.model, visualizer=numbers)
    found = watching(lambda: training.run(lambda _: inspector.tick_epoch() if rank == 0 else None))
    return found | {"bare": Training().run(), "lines": numbers.lines}


def one_ticks_more_often(rank):
    training, numbers = Training(), Numbers()
    watched = monitorch.watch(training.model, training.optimizer, every=1, tick_every=1 + rank, visualizer=numbers)

    def train_and_close():  # a process that shows nothing is told of a tick some time after it
        result = training.run()
        watched.close()
        return result

    return watching(train_and_close) | {"bare": Training().run(), "lines": numbers.lines}


def one_closes_earlier(rank):
    training, numbers, meeting.PATIENCE = Training(), Numbers(), 60.0
    watched = monitorch.watch(training.model, training.optimizer, every=1, tick_every=2, visualizer=numbers)
    found = watching(lambda: training.run(lambda step: watched.close() if rank and step == 3 else None))
    return found | {"bare": Training().run(), "lines": numbers.lines}


def first_comes_late(rank, folder):
    """To the first tick only; with no patience at all, the others would not wait for it at the next one either."""
    model, numbers, meeting.PATIENCE = new_model(), Numbers(), 0.0
    inspector = PyTorchInspector([OutputNorm(include=nn.Linear)], module=model, visualizer=numbers)
    ticked = [folder / f"ticked-{number}" for number in range(RANKS)]

    def two_ticks():
        model(batch(0, rank))
        if rank == 0:
            wait_for(ticked[1])
        inspector.tick_epoch()
        inspector.records()  # waits until the tick is shown
        ticked[rank].touch()
        wait_for(ticked[0])  # as for its gradients in the next step
        model(batch(1, rank))
        inspector.tick_epoch()
        inspector.detach()  # a process that shows nothing is told of a tick some time after it

    return watching(two_ticks) | {"lines": numbers.lines}


def wait_for(file):
    while not file.exists():
        time.sleep(0.001)


def attaches_again(rank):
    numbers = Numbers()
    inspector = PyTorchInspector([OutputNorm(include=nn.Linear)], visualizer=numbers)

    def twice():
        for step in range(2):
            model = new_model()
            inspector.attach(model)
            model(batch(step, rank))
            inspector.tick_epoch(epoch=step + 1)
            inspector.detach()

    return watching(twice) | {"lines": numbers.lines}


def first_watches_more(rank):
    """An inspector that the others do not have is made before the common one."""
    numbers, lens, found = Numbers(), OutputNorm(include=nn.Linear), {}
    if rank == 0:
        extra = PyTorchInspector([OutputNorm(include=nn.Linear)], module=Doubled(), visualizer="dummy")
        found = {"extra": watching(extra.tick_epoch)}
    meeting.PATIENCE, model = 60.0, new_model()
    inspector = PyTorchInspector([lens], module=model, visualizer=numbers)
    model(batch(0, rank))

    def tick():
        inspector.tick_epoch()
        inspector.records()  # waits until the tick is shown: the next scenario has less patience

    return found | watching(tick) | {"lines": numbers.lines}


def one_fails_alone(rank):
    """One process fails when the other has got all numbers; then both watch a model of the same class again."""
    meeting.PATIENCE, exchanges, run = 60.0, [], meeting.run

    def breaks(*arguments):
        exchanges.append(run(*arguments))
        raise RuntimeError("broken")

    meeting.run = breaks if rank else run
    found = watching(watch_once(rank, inspectors := []))
    meeting.run, numbers = run, Numbers()
    again = watching(watch_once(rank, inspectors, numbers))
    return found | {"again": again["warnings"], "lines": numbers.lines, "exchanges": len(exchanges)}


def watch_once(rank, kept, visualizer="dummy"):
    """Make an inspector for one tick, which stays."""

    def tick():
        model = new_model()
        inspector = PyTorchInspector([OutputNorm(include=nn.Linear)], module=model, visualizer=visualizer)
        kept.append(inspector)
        model(batch(0, rank))
        inspector.tick_epoch()
        inspector.records()  # waits until the tick is shown

    return tick


def first_stores_its_own(rank, folder):
    """With a file for each process: first of one process only, then of both."""
    training = Training()
    options = {"per_rank": True, "folder": folder / "runs", "every": 1, "tick_every": 2, "capture": False}
    found = {"only one": None}
    if rank == 0:
        with monitorch.watch(training.model.module, training.optimizer, run="alone", **options):
            found = watching(training.run)
    else:
        training.run()
    model = Doubled()
    with monitorch.watch(model, visualizer=None, run=f"chosen by {rank}", **options):
        model(torch.ones(2, 3))
    dist.barrier()
    return found | {"runs": sorted(run.name for run in list_runs(folder / "runs"))}


def only_the_first_watches_what_is_spread(rank):
    training, numbers = Training(fully_shard), Numbers()
    inspector_state.LONG_PATIENCE = 0.5

    def watch_and_train():
        if rank == 0:
            monitorch.watch(training.model, training.optimizer, every=1, tick_every=2, visualizer=numbers)
        return training.run()

    found = watching(watch_and_train)
    return found | {"bare": Training(fully_shard).run(), "lines": numbers.lines}


def group_comes_late(rank, folder):
    """The process group is initialised after watching began; scenarios after this one use the new group."""
    dist.destroy_process_group()
    training = Doubled()
    options = {"run": "late", "folder": folder / "late", "every": 1, "tick_every": 2, "capture": False}
    optimizer = torch.optim.SGD(training.parameters(), lr=0.1)
    watched = monitorch.watch(training, optimizer, **options)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    meeting.PATIENCE = 60.0

    def train():
        for _ in range(4):
            training(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        watched.close()

    found = watching(train) | {"run": watched.run}
    dist.barrier()
    return found | {"frames": {run.name: run.ticks for run in list_runs(folder / "late")}}


def scenarios(rank, folder):
    found = {"late group": group_comes_late(rank, folder), "again": attaches_again(rank)}
    for name, scenario in SCENARIOS.items():
        meeting.PATIENCE = 0.5
        found[name] = scenario(rank)
    return found | {"stores": first_stores_its_own(rank, folder), "late": first_comes_late(rank, folder)}


SCENARIOS = {
    "one watches": only_the_first_watches,
    "one ticks": only_the_first_ticks,
    "more often": one_ticks_more_often,
    "closes": one_closes_earlier,
    "more": first_watches_more,
    "fails": one_fails_alone,
    "spread": only_the_first_watches_what_is_spread,
}


@pytest.fixture(scope="module")
def ranks(run_ranks):
    return run_ranks(scenarios, RANKS)


def norms(steps, ranks):
    """The mean norm of the first layer's output in each step, for these ranks together."""
    model, found = new_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        batches = [batch(step, rank) for rank in range(RANKS)]
        seen = torch.cat([model[0](batches[rank]) for rank in ranks])
        found.append(float(seen.detach().norm(dim=1).mean()))
        optimizer.zero_grad()
        torch.stack([model(x).square().mean() for x in batches]).mean().backward()
        optimizer.step()
    return found


def by_tick(values, steps_of_a_tick):
    pairs = zip(*[iter(values)] * steps_of_a_tick, strict=True)
    return {f"{number} 0": pytest.approx(np.mean(pair)) for number, pair in enumerate(pairs, start=1)}


def of_first_layer(lines):
    return {name: value for name, value in lines.items() if name.endswith(" 0")}


@pytest.mark.parametrize("scenario", ["one watches", "one ticks", "more often", "closes", "spread"])
def test_training_is_the_same_where_not_all_processes_take_part(scenario, ranks):
    for found in ranks:
        assert found[scenario]["result"] == found[scenario]["bare"]


def test_a_process_that_watches_alone_shows_its_own_numbers_with_one_warning(ranks):
    (text,) = ranks[0]["one watches"]["warnings"]
    assert "rank 1 did not take part within 0.5 s" in text
    assert "shows only its own numbers" in text
    assert "watch the model in each of them" in text
    assert of_first_layer(ranks[0]["one watches"]["lines"]) == by_tick(norms(STEPS, [0]), 2)
    assert ranks[1]["one watches"]["warnings"] == []


def test_a_process_that_ticks_alone_shows_its_own_numbers_with_one_warning(ranks):
    assert ["did not take part" in text for text in ranks[0]["one ticks"]["warnings"]] == [True]
    assert of_first_layer(ranks[0]["one ticks"]["lines"]) == by_tick(norms(STEPS, [0]), 1)


def test_processes_that_tick_at_different_steps_show_their_own_numbers(ranks):
    assert [len(found["more often"]["warnings"]) for found in ranks] == [1, 1]
    assert of_first_layer(ranks[0]["more often"]["lines"]) == by_tick(norms(STEPS, [0]), 1)


def test_when_a_process_has_left_the_others_go_on_alone(ranks):
    assert ["could not be reached" in text for text in ranks[0]["closes"]["warnings"]] == [True]
    together, alone = norms(STEPS, [0, 1]), norms(STEPS, [0])
    assert of_first_layer(ranks[0]["closes"]["lines"]) == by_tick(together[:4] + alone[4:], 2)
    assert ranks[1]["closes"]["warnings"] == []


def test_a_process_that_was_late_once_is_waited_for_from_then_on(ranks):
    assert [len(found["late"]["warnings"]) for found in ranks] == [1, 1]
    assert "stopped waiting" in ranks[0]["late"]["warnings"][0]
    model = new_model()
    own = model[0](batch(0, 0)).norm(dim=1).mean().item()
    all_together = torch.cat([model[0](batch(1, rank)) for rank in range(RANKS)]).norm(dim=1).mean().item()
    assert of_first_layer(ranks[0]["late"]["lines"]) == pytest.approx({"1 0": own, "2 0": all_together})


def test_processes_that_attach_again_meet_again(ranks):
    model = new_model()
    steps = [torch.cat([model[0](batch(step, rank)) for rank in range(RANKS)]) for step in range(2)]
    expected = {f"{number} 0": x.norm(dim=1).mean().item() for number, x in enumerate(steps, start=1)}
    assert of_first_layer(ranks[0]["again"]["lines"]) == pytest.approx(expected)
    assert [found["again"]["warnings"] for found in ranks] == [[], []]


def test_an_inspector_that_others_do_not_have_does_not_disturb_the_common_one(ranks):
    assert len(ranks[0]["more"]["extra"]["warnings"]) == 1
    assert [found["more"]["warnings"] for found in ranks] == [[], []]
    model = new_model()
    whole = torch.cat([model[0](batch(0, rank)) for rank in range(RANKS)]).norm(dim=1).mean().item()
    assert of_first_layer(ranks[0]["more"]["lines"]) == pytest.approx({"1 0": whole})


def test_a_process_whose_exchange_has_failed_meets_the_others_with_the_next_inspector(ranks):
    assert [found["fails"]["exchanges"] for found in ranks] == [0, 1]
    assert ranks[0]["fails"]["warnings"] == []
    (text,) = ranks[1]["fails"]["warnings"]
    assert text.startswith("the other processes could not be reached: broken.")
    assert [found["fails"]["again"] for found in ranks] == [[], []]
    model = new_model()
    whole = torch.cat([model[0](batch(0, rank)) for rank in range(RANKS)]).norm(dim=1).mean().item()
    assert of_first_layer(ranks[0]["fails"]["lines"]) == pytest.approx({"1 0": whole})


def test_a_process_may_store_its_own_numbers_alone_and_all_agree_on_one_run(ranks):
    assert ranks[0]["stores"]["warnings"] == []
    for found in ranks:
        assert len(found["stores"]["runs"]) == 2
        assert found["stores"]["runs"][0] == "alone"


def test_of_parameters_spread_over_processes_one_alone_records_nothing_and_says_so(ranks):
    (text,) = ranks[0]["spread"]["warnings"]
    assert text.startswith("nothing is recorded: rank 1 did not take part within 0.5 s")
    assert "watch it in each of them" in text
    assert ranks[0]["spread"]["lines"] == {}


@pytest.mark.filterwarnings("ignore:rank 1 did not take part")
@pytest.mark.parametrize(
    ("per_rank", "passes", "ticks"),
    [
        (True, 5, 2),
        (False, 5, 1),  # the other process may still come, but not to a tick at the end
        (False, 9, 3),  # by now it is known that it does not
    ],
)
def test_the_last_steps_are_shown_at_the_end_of_a_program_where_nobody_is_waited_for(
    per_rank, passes, ticks, monkeypatch
):
    monkeypatch.setattr(meeting, "PATIENCE", 0.0)
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=RANKS)
    try:
        model = new_model()
        watched = monitorch.watch(model, lenses=[], visualizer="dummy", tick_every=4, per_rank=per_rank)
        for step in range(passes):
            model(batch(step, 0)).sum().backward()
        watched.end("finished")
        assert repr(watched) == f"Watch(Sequential, tick_every=4, ticks={ticks}, closed)"
    finally:
        dist.destroy_process_group()


def test_of_processes_that_are_started_after_watching_began_one_goes_on_to_store(ranks):
    first, second = (found["late group"] for found in ranks)
    assert first["warnings"] == []
    assert ["initialised after watching began" in text for text in second["warnings"]] == [True]
    assert first["frames"][first["run"]] > 0
    assert first["frames"][second["run"]] == 0
