"""A model that is wrapped, sharded, tuned or frozen between watching it and training it."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import monitorch
from monitorch import PyTorchInspector
from monitorch.errors import MonitorchWarning
from monitorch.lens import LossMetrics, OutputGradientGeometry, OutputNorm, ParameterGradientGeometry

pytestmark = pytest.mark.xdist_group("processes")
STEPS, RANKS = 2, 2


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def batch(step, rank):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(RANKS, 4, 3, generator=generator, dtype=torch.float64)[rank] * 3**rank


def compiled(model):
    return torch.compile(model, backend="aot_eager")


def part_of_it(model):
    model[0] = DistributedDataParallel(model[0])
    model[2] = DistributedDataParallel(model[2])
    return model


WAYS = {"wrapped": DistributedDataParallel, "in parts": part_of_it, "sharded": fully_shard}
COMPILED = {
    "compiled and wrapped": lambda model: DistributedDataParallel(compiled(model)),
    "wrapped and compiled": lambda model: compiled(DistributedDataParallel(model)),
}


def shown(rank, prepare, first_passes=0):
    """Numbers of a model that is watched first, and then prepared for training."""
    model = new_model()
    lenses = [OutputGradientGeometry(), ParameterGradientGeometry()]
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise")
    for _ in range(first_passes):
        model(batch(0, rank)).square().mean().backward()
    model.zero_grad()
    called = prepare(model)
    optimizer = torch.optim.SGD(called.parameters(), lr=0.1)
    inspector.state.settle()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(STEPS):
            optimizer.zero_grad()
            called(batch(step, rank)).square().mean().backward()
            optimizer.step()
    inspector.tick_epoch()
    found = {f"{r.tag} {r.layer}": r.value for r in inspector.records() if r.statistic == "mean"}
    processes = inspector._steps.run_statistics.processes
    ours = [str(one.message) for one in told if one.category is MonitorchWarning]
    return {"numbers": found, "processes": processes, "warnings": ours}


def scenarios(rank, folder):
    found = {name: shown(rank, prepare) for name, prepare in WAYS.items()}
    return found | {"too late": shown(rank, DistributedDataParallel, first_passes=1)}


def compiled_scenarios(rank, folder):
    return {name: shown(rank, prepare) for name, prepare in COMPILED.items()}


@pytest.fixture(scope="module")
def ranks(run_ranks):
    return run_ranks(scenarios, RANKS)


@pytest.fixture(scope="module")
def compiled_ranks(run_ranks):
    return run_ranks(compiled_scenarios, RANKS)


@pytest.fixture(scope="module")
def whole():
    """What one process finds that trains on the mean of the losses of all."""
    model, slopes, gradients = new_model(), [], []
    for step in range(STEPS):
        first = [model[0](batch(step, rank)) for rank in range(RANKS)]
        loss = torch.stack([model[2](model[1](x)).square().mean() for x in first]).mean()
        *slope, gradient, _, _, _ = found = torch.autograd.grad(loss, [*first, *model.parameters()])
        slopes.append(torch.cat(slope).norm().item())
        gradients.append(gradient.norm().item())
        with torch.no_grad():
            for parameter, own in zip(model.parameters(), found[RANKS:], strict=True):
                parameter -= 0.1 * own
    return {"Output Gradient Norm 0": np.mean(slopes), "Weight Gradient Norm 0": np.mean(gradients)}


def assert_those_of_the_whole(found, whole):
    assert {name: found["numbers"][name] for name in whole} == pytest.approx(whole, rel=1e-9)
    assert found["processes"] == RANKS
    assert found["warnings"] == []


@pytest.mark.parametrize("way", WAYS)
def test_a_model_made_parallel_after_it_was_watched_shows_the_numbers_of_the_whole(way, ranks, whole):
    for found in ranks:
        assert_those_of_the_whole(found[way], whole)


@pytest.mark.slow
@pytest.mark.parametrize("way", COMPILED)
def test_a_model_made_parallel_and_compiled_after_it_was_watched_shows_them_too(way, compiled_ranks, whole):
    for found in compiled_ranks:
        assert_those_of_the_whole(found[way], whole)


def test_passes_before_a_model_was_made_parallel_are_told_of(ranks):
    for found in ranks:
        (text,) = found["too late"]["warnings"]
        assert "made parallel after 1 passes were watched" in text


# of one process


class Tuned(nn.Module):
    """A layer as PEFT replaces one: the old one is frozen, two small ones train."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, 1, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(1, layer.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def tune(model):
    model.requires_grad_(False)
    model[0] = Tuned(model[0])


def small_model():
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def train(model, steps=2):
    for _ in range(steps):
        model(torch.ones(4, 2)).square().mean().backward()


FROZEN = "all watched parameters are frozen.*get_peft_model"


@pytest.mark.parametrize("lenses", ["standard", [ParameterGradientGeometry()]])
def test_a_model_that_was_tuned_after_it_was_watched_is_told_of_once(lenses):
    model = small_model()
    with monitorch.watch(model, lenses=lenses, visualizer="dummy", every=1, tick_every=3):
        tune(model)
        with pytest.warns(MonitorchWarning, match=FROZEN) as told:
            train(model)
    assert len([one for one in told if one.category is MonitorchWarning]) == 1


def tuned_first():
    model = small_model()
    tune(model)
    return model, None


def all_frozen():
    return small_model().requires_grad_(False), None


def trained_by_turns():
    """The critic of a GAN, while the generator trains."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters())
    return model.requires_grad_(False), optimizer


@pytest.mark.parametrize("make", [tuned_first, all_frozen, trained_by_turns, lambda: (small_model(), None)])
@pytest.mark.parametrize("lenses", [[ParameterGradientGeometry()], [LossMetrics(), OutputNorm(include=nn.Linear)]])
def test_nothing_is_told_where_watched_parameters_train_or_none_does(make, lenses):
    model, optimizer = make()
    x = torch.ones(4, 2, requires_grad=True)
    with monitorch.watch(model, optimizer, lenses=lenses, visualizer="dummy", every=1):
        model(x).sum().backward()


def test_lenses_without_gradients_tell_nothing_of_frozen_parameters():
    model = small_model()
    with monitorch.watch(model, lenses=[OutputNorm(include=nn.Linear)], visualizer="dummy", every=1):
        tune(model)
        train(model)


@pytest.mark.parametrize(("mark", "text"), [("ds_id", "DeepSpeed keeps"), ("main_grad", "Megatron adds")])
def test_a_model_that_is_taken_over_after_it_was_watched_is_not_recorded(mark, text):
    model = small_model()
    with monitorch.watch(
        model, lenses=[OutputNorm(include=nn.Linear)], visualizer="dummy", every=1, tick_every=1
    ) as watched:
        setattr(model[0].weight, mark, 0)
        with pytest.warns(MonitorchWarning, match=f"nothing is recorded any more: {text}"):
            train(model)
        assert watched.inspector.records() == []


def test_a_model_that_is_attached_after_one_that_could_not_be_recorded_is():
    taken, other = small_model(), small_model()
    inspector = PyTorchInspector([OutputNorm(include=nn.Linear)], module=taken, visualizer="dummy")
    taken[0].weight.ds_id = 0
    with pytest.warns(MonitorchWarning, match="nothing is recorded any more"):
        train(taken)
    inspector.attach(other)
    train(other)
    inspector.tick_epoch()
    assert {record.layer for record in inspector.records()} > {"0", "2"}


def test_what_goes_wrong_while_looking_does_not_reach_training(monkeypatch):
    model = small_model()
    with monitorch.watch(model, visualizer="dummy", every=1):
        monkeypatch.setattr("monitorch.inspector.preparation.taken_over", lambda _: 1 / 0)
        with pytest.warns(MonitorchWarning, match="how the model is trained failed: ZeroDivisionError"):
            train(model)


FOREIGN_TRAINER = """
def train(model, watch=None):
    watched = None if watch is None else watch(model)
    for _ in range(3):
        model(torch.ones(4, 2)).square().mean().backward()
    return watched
"""


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_trainer_that_a_watch_cannot_see_into_is_told_of_unless_it_began_the_watch(is_inside):
    names = {"__name__": "transformers.trainer", "torch": torch}
    exec(FOREIGN_TRAINER, names)
    model = small_model()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if is_inside:
            names["train"](model, lambda one: monitorch.watch(one, visualizer="dummy")).close()
        else:
            with monitorch.watch(model, visualizer="dummy"):
                names["train"](model)
    texts = [str(one.message) for one in told]
    assert [("callbacks=[MonitorchCallback()]" in text) for text in texts] == [True] * (not is_inside)
