"""A run that goes on from a checkpoint records what an uninterrupted one does."""

import io
import warnings
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.engine import allocation
from monitorch.errors import OptionError
from monitorch.gatherer import feed_forward_gatherer
from monitorch.inspector import inspector_state, pytorch_inspector, step_counter
from monitorch.inspector.cadence import Cadence, Phase
from monitorch.lens import (
    Attribute,
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
    UpdateRatio,
)
from monitorch.observe import EMAReducer
from tests.inspector.fake_time import Time
from tests.marks import slow

STEPS, PARTING = 12, 5
LAYERS = (nn.Linear, nn.ReLU)
WIDE = 80  # weights of 80 x 80 are larger than a sketch


class Training:
    """A model in training, with everything that has to survive."""

    def __init__(self, given=True, inplace=False, correlation="exact", width=6, compiled=False, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 1))
        self.called = torch.compile(self.model, backend="aot_eager") if compiled else self.model
        self.loss_fn = nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        common = {"inplace": inplace, "correlation": correlation}
        lenses = [
            LossMetrics(loss_fn=self.loss_fn, loss_fn_inplace=inplace),
            OutputNorm(inplace=inplace, include=LAYERS),
            OutputActivation(inplace=inplace, include=LAYERS),
            OutputGradientGeometry(**common),
            ParameterGradientGeometry(**common),
            ParameterGradientActivation(inplace=inplace),
            ParameterUpdateGeometry(self.optimizer, **common),
            UpdateRatio(self.optimizer, inplace, updates=correlation),
            ParameterNorm(),
        ]
        if not compiled:  # it would end the graph
            lenses.append(Attribute("0.weight", EMAReducer(1.0, 0.5), inplace=inplace))
        if given:
            options["optimizer"] = self.optimizer
        self.inspector = PyTorchInspector(lenses, module=self.called, visualizer="dummy", on_error="raise", **options)

    def run(self, first, last, tick_after=()):
        """Train, and return the records of all ticks."""
        records = []
        for number in range(first, last):
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
            self.optimizer.zero_grad()
            self.loss_fn(self.called(x), x.sum(1, keepdim=True)).backward()
            self.optimizer.step()
            self.inspector.log(number=number)
            if number in tick_after:
                self.inspector.tick_epoch()
                records += self.inspector.records()
        return records

    def saved(self):
        return {part: getattr(self, part).state_dict() for part in ("model", "optimizer", "inspector")}

    def load(self, saved):
        for part, state in saved.items():
            getattr(self, part).load_state_dict(state)


def through_a_file(saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file)  # only data: no code runs when it is read


def comparable(records):
    """Numbers by what they are; speed is never the same, and the gradients of outputs have one cosine less."""
    return {
        (r.step, r.epoch, r.lens, r.layer, r.tag, r.statistic): r.value
        for r in records
        if "per second" not in r.statistic and "Output Gradient Correlation" not in r.tag
    }


CASES = {
    "moments": {"inplace": True},
    "every sample": {},
    "sketches": {"correlation": "sketch", "width": WIDE},
    "copies of some": {"correlation": "auto", "width": WIDE},
    "steps of the model": {"given": False},
    "some steps": {"every": 3},
    "parted between a lead step and what it leads": {"every": 6},
    "chosen steps of the model": {"every": lambda step: step in (3, 6, 7), "given": False},
}


@pytest.mark.parametrize("ticks", [(4, 8, 11), (11,)], ids=["between ticks", "inside a tick"])
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_records_the_same(case, ticks, monkeypatch):
    monkeypatch.setattr(allocation, "MOST_COPIES", 2 * WIDE * WIDE * 4)  # not enough for all
    whole = Training(**CASES[case])
    expected = whole.run(0, STEPS, ticks)
    before = Training(**CASES[case])
    records = before.run(0, PARTING, ticks)
    saved = through_a_file(before.saved())
    after = Training(**CASES[case])
    torch.manual_seed(1)
    after.load(saved)
    records += after.run(PARTING, STEPS, ticks)
    assert comparable(records) == pytest.approx(comparable(expected), nan_ok=True, rel=1e-12)
    assert after.inspector.state.counter == whole.inspector.state.counter
    assert after.inspector.state.step == STEPS


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf", "ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("correlation", ["exact", "sketch"])
def test_the_first_output_gradient_after_a_break_is_compared_only_if_a_sketch_was_kept(correlation, compiled):
    torch.compiler.reset()
    how = {"correlation": correlation, "compiled": compiled, "width": 2000}
    before = Training(**how)
    before.run(0, 3)
    state = through_a_file(before.inspector.state_dict())
    torch.compiler.reset()
    after = Training(**how)
    after.inspector.load_state_dict(state)
    after.run(3, 6)
    norms, cosines = after.inspector.lenses[3]._preprocessors[0].value["2"]
    assert (len(norms), len(cosines)) == (6, 6 if correlation == "sketch" else 5)


def test_a_saved_state_does_not_change_while_training_goes_on():
    training = Training()
    training.run(0, 3)
    saved = training.inspector.state_dict()
    kept = through_a_file(saved)
    training.run(3, 6)
    meters = zip(saved["engine"]["meters"].values(), kept["engine"]["meters"].values(), strict=True)
    for now, then in meters:
        assert (now["previous"] is None) == (then["previous"] is None)
        assert now["previous"] is None or torch.equal(now["previous"], then["previous"])


def test_passes_before_a_checkpoint_are_not_ones_in_which_layers_were_missed_or_gradients_too_small(monkeypatch):
    monkeypatch.setattr("monitorch.engine.compilation.number_of_graphs", lambda: 1)
    before, after = Training(), Training()
    before.run(0, 3)
    after.inspector.load_state_dict(through_a_file(before.inspector.state_dict()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after.inspector.tick()  # no layer was called yet
        after.inspector._steps._preparation._average_over(2)  # nor was any gradient measured
        after.run(3, 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: {"a": 1}, "not the state of an inspector"),
        (lambda state: {**state, "version": 99}, "version 99, this release reads version 3"),
        (lambda state: {**state, "version": 2}, "version 2, this release reads version 3"),
        (lambda state: {**state, "lenses": state["lenses"][1:]}, "use the same lenses in the same order"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(make, message):
    training = Training()
    with pytest.raises(OptionError, match=message):
        training.inspector.load_state_dict(make(training.inspector.state_dict()))


@pytest.mark.parametrize(  # from 22 on the next steps are a pair
    "parting", [slow(20), *range(21, 27), *map(slow, range(27, 32))]
)
@pytest.mark.parametrize("given", [True, False], ids=["optimizer", "passes"])
def test_a_resumed_run_keeps_its_account_and_parts_no_pair(given, parting, monkeypatch):
    time = Time()
    monkeypatch.setattr(pytorch_inspector, "Cadence", partial(Cadence, clock=time))
    for room in (inspector_state, feed_forward_gatherer, step_counter):
        monkeypatch.setattr(room, "perf_counter", time)

    def training():
        made = Training(given=given, budget=0.2, head_start=4.0)
        state = made.inspector.state

        def take_time(*_):
            phases.append(state.phase)
            time.now += 1.0 + 0.5 * state.phase

        made.model.register_forward_hook(take_time)
        return made

    phases = []
    before = training()
    before.run(0, parting)
    saved = through_a_file(before.saved())
    after = training()
    after.load(saved)
    cost = before.inspector.state.cadence.cost
    cost.settle()
    again = after.inspector.state.cadence.cost
    assert (again.spent, again.bare) == (cost.spent, cost.bare)
    assert cost.spent > 4.0
    assert after.inspector.state.phase == before.inspector.state.phase
    after.run(parting, 120)
    assert {later for earlier, later in pairwise(phases) if earlier == Phase.BASELINE} == {Phase.OBSERVE}
    spent, allowed = sum(0.5 * phase for phase in phases), 4.0 + 0.2 * len(phases)
    # prices are learnt anew: up to seven steps are observed before one is idle, and one more was promised
    assert allowed - 2.0 <= spent <= allowed + 8.0


def test_a_state_needs_a_model():
    training = Training()
    state = training.inspector.state_dict()
    training.inspector.detach()
    with pytest.raises(OptionError, match="attach"):
        training.inspector.load_state_dict(state)
