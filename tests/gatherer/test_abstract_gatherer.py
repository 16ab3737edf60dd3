"""What all gatherers share: gaps, errors that never reach training, letting go."""

import warnings

import pytest
import torch
from torch import nn

from monitorch.engine.tensors import first_input
from monitorch.errors import MonitorchWarning, SkippedSample
from monitorch.gatherer import (
    AbstractGatherer,
    BackwardGatherer,
    CallParameterGatherer,
    EpochModuleGatherer,
    FeedForwardGatherer,
    OptimizerStepParameterGatherer,
    ParameterGradientGatherer,
)

# positional orders are public: each gatherer by (module, optimizer, preprocessors, name, state)
ALL = {
    "feed forward": lambda m, o, p, n, s: FeedForwardGatherer(m, p, n, s),
    "backward": lambda m, o, p, n, s: BackwardGatherer(m, p, n, s),
    "parameter gradient": lambda m, o, p, n, s: ParameterGradientGatherer("weight", m, p, n, s),
    "epoch module": lambda m, o, p, n, s: EpochModuleGatherer(m, p, n, s),
    "call parameter": lambda m, o, p, n, s: CallParameterGatherer(m, "weight", p, n, s),
    "optimizer step": lambda m, o, p, n, s: OptimizerStepParameterGatherer(m, o, "weight", p, n, s),
}
BY_HAND = ("epoch module", "call parameter")


class Bench:
    """A module in training under one gatherer."""

    def __init__(self, kind, preprocessor, state):
        self.module = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
        self.gatherer = ALL[kind](self.module, self.optimizer, [preprocessor], "layer", state)
        self._call = self.gatherer if kind in BY_HAND else lambda: None

    def train(self, steps=1):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.module(torch.ones(4, 3)).pow(2).sum().backward()
            self.optimizer.step()
            self._call()

    def things(self):
        return self.module, self.module.weight, self.module.bias, self.optimizer


@pytest.fixture(params=ALL)
def bench(request, keeper, state):
    return Bench(request.param, keeper, state)


def test_one_sample_per_step_under_the_given_name(bench, keeper):
    bench.train(steps=3)
    assert [call[0] for call in keeper.calls] == ["layer"] * 3


def test_inactive_state_hands_over_nothing_and_tells_of_the_gap_once(bench, keeper, state):
    bench.train()
    state.paused = True
    bench.train(steps=2)
    assert (len(keeper.calls), keeper.gaps) == (1, ["layer"])
    state.paused = False
    bench.train()
    assert (len(keeper.calls), keeper.gaps) == (2, ["layer"])
    state.paused = True
    bench.train()
    assert (len(keeper.calls), keeper.gaps) == (2, ["layer", "layer"])


def test_detach_removes_every_hook(bench, keeper, count_hooks):
    bench.gatherer.detach()
    assert count_hooks(*bench.things()) == 0
    bench._call = lambda: None
    bench.train()
    assert keeper.calls == []


def test_detached_gatherer_raises_when_called(bench):
    bench.train()
    gatherer, module = bench.gatherer, bench.module
    gatherer.detach()
    arguments = {
        FeedForwardGatherer: (module, (), {}, None),
        BackwardGatherer: (module, (), (None,)),
        ParameterGradientGatherer: (module.weight,),
    }
    with pytest.raises(AttributeError, match="detached from 'layer'"):
        gatherer(*arguments.get(type(gatherer), ()))


def test_failing_preprocessor_warns_once_and_training_is_bit_identical(bench, keeper):
    torch.manual_seed(1)
    bare = nn.Linear(3, 2)
    bare.load_state_dict(bench.module.state_dict())
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    bench.gatherer.owner = "MyLens"
    keeper.error = ArithmeticError("seven is odd")
    with pytest.warns(MonitorchWarning, match=r"MyLens stops watching layer 'layer': ArithmeticError: seven is odd"):
        bench.train()
    keeper.error = None
    bench.train()  # a second warning would be an error
    assert keeper.calls == []
    for _ in range(2):
        optimizer.zero_grad()
        bare(torch.ones(4, 3)).pow(2).sum().backward()
        optimizer.step()
    assert torch.equal(bare.weight, bench.module.weight)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("feed forward", r"\(4, 3\), \(4, 2\)"),
        ("backward", r"\(4, 2\)"),
        ("parameter gradient", r"\(2, 3\)"),
        ("optimizer step", r"\(2, 3\)"),
    ],
)
def test_the_warning_names_the_shapes_and_the_cure(kind, shapes, keeper, state):
    keeper.error = ValueError("no")
    with pytest.warns(MonitorchWarning, match=rf"\(shapes: {shapes}\).*on_error='raise'"):
        Bench(kind, keeper, state).train()


def test_the_warning_says_nothing_of_shapes_where_there_are_no_tensors(keeper, state):
    keeper.error = ValueError("no")
    with pytest.warns(MonitorchWarning, match=r"ValueError: no\. Training goes on.*on_error='raise'"):
        Bench("epoch module", keeper, state).train()


def test_an_error_switches_off_only_its_own_layer(keeper, state):
    class FailsOnFirst(type(keeper)):
        def process_fw(self, name, *data):
            if name == "first":
                raise ValueError("bad layer")
            super().process_fw(name, *data)

    picky = FailsOnFirst()
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    gatherers = [FeedForwardGatherer(m, [picky], n, state) for m, n in zip(model, ["first", "second"], strict=True)]
    with pytest.warns(MonitorchWarning, match="'first'"):
        model(torch.ones(2, 3))
    for _ in range(2):
        model(torch.ones(2, 3))  # a second warning would be an error
    assert [call[0] for call in picky.calls] == ["second"] * 3
    assert gatherers[0].owner == "FailsOnFirst"


@pytest.mark.parametrize("kind", ALL)
def test_errors_reach_the_user_who_asks_for_them(kind, keeper, strict_state):
    bench = Bench(kind, keeper, strict_state)
    keeper.error = ArithmeticError("seven is odd")
    with pytest.raises(ArithmeticError, match="seven is odd"):
        bench.train()


def test_skipped_sample_warns_once_and_the_layer_stays_watched(bench, keeper):
    keeper.error = SkippedSample("it is empty")
    with pytest.warns(MonitorchWarning, match="leaves out a sample of layer 'layer': it is empty"):
        bench.train()
    bench.train()  # skipped again, without a word
    keeper.error = None
    bench.train()
    assert len(keeper.calls) == 1


def test_an_error_on_hearing_of_a_gap_does_not_break_training(keeper, state):
    class Deaf(type(keeper)):
        def interrupt(self, name):
            raise ValueError("what gap?")

    module = nn.Linear(3, 2)
    gatherer = FeedForwardGatherer(module, [Deaf()], "layer", state)
    state.paused = True
    with pytest.warns(MonitorchWarning, match="'layer': ValueError: what gap"):
        module(torch.ones(1, 3))
    gatherer.detach()


def test_gatherer_of_ones_own_can_ask_for_an_active_state(state):
    class Mine(AbstractGatherer):
        calls = 0

        @AbstractGatherer.requires_active_inspector_state
        def __call__(self):
            self.calls += 1
            return "done"

    mine = Mine(state)
    assert mine() == "done"
    state.paused = True
    assert mine() is None
    assert mine.calls == 1
    mine.detach()
    with pytest.raises(AttributeError):
        mine()


def test_gatherer_without_preprocessors_only_listens(state):
    module = nn.Linear(3, 2)
    gatherer = FeedForwardGatherer(module, [], "layer", state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.ones(1, 3))
    assert gatherer.owner == "FeedForwardGatherer"


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"), [((1, 2), {"x": 3}, 1), ((), {"x": 3, "y": 4}, 3), ((), {}, None)]
)
def test_first_input(args, kwargs, expected):
    assert first_input(args, kwargs) == expected
