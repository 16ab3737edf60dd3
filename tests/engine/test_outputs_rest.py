"""Taps leave their modules while nothing is wanted, and come back in time."""

import copy
import pickle

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import MonitorchWarning
from monitorch.lens import OutputActivation, OutputGradientGeometry, OutputNorm, ParameterGradientGeometry

EVERY = 4
LAYERS = (nn.Linear, nn.ReLU)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


@pytest.fixture
def inspector(model):
    lenses = [OutputNorm(inplace=False, record_eval=True, include=LAYERS), OutputGradientGeometry(inplace=False)]
    return PyTorchInspector(lenses, module=model, visualizer="dummy", every=EVERY, on_error="raise")


def step(model):
    model(torch.ones(2, 3)).sum().backward()


def steps(model, count):
    for _ in range(count):
        step(model)


def hooks(model):
    return [len(layer._forward_hooks) for layer in model]


def samples(inspector):
    return inspector.lenses[0]._preprocessors[0].value


def test_idle_steps_run_without_hooks(model, inspector):
    seen = []
    for _ in range(2 * EVERY):
        step(model)
        seen.append(hooks(model))
    # the first idle step sends taps away, the step before an observed one calls them back
    assert seen == [[0] * 3, [0] * 3, [1] * 3, [1] * 3] * 2
    assert {name: len(norms) for name, norms in samples(inspector).items()} == {"0": 2, "1": 2, "2": 2}


def test_hooks_keep_their_places(model, inspector):
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("user"))
    tap = next(iter(model[0]._forward_hooks.values()))
    for _ in range(2 * EVERY):
        step(model)
    assert next(iter(model[0]._forward_hooks.values())) is tap
    assert len(calls) == 2 * EVERY


def test_hooks_that_somebody_has_cleared_do_not_keep_others_from_resting(model, inspector):
    for number in range(3 * EVERY):
        if number == EVERY - 1:
            model[0]._forward_hooks.clear()
        step(model)
    assert hooks(model) == [1] * 3
    assert {name: len(norms) for name, norms in samples(inspector).items()} == {"0": 2, "1": 3, "2": 3}


def test_hooks_that_only_look_where_channels_are_rest_until_something_is_observed(model):
    lens = OutputActivation(dropout=False, inplace=False)
    options = {"every": lambda number: number == 4, "visualizer": "dummy", "on_error": "raise"}
    inspector = PyTorchInspector([lens], module=model, **options)
    for _ in range(2):
        step(model)
        assert hooks(model) == [0, 0, 0]
    for _ in range(3):
        step(model)
    assert hooks(model) == [0, 0, 0]
    active = model[0](torch.ones(2, 3)).relu() > 0
    assert lens._preprocessors[0].value["1"] == ([active.float().mean()], [1 - active.any(dim=0).float().mean()])
    inspector.detach()


def test_an_evaluation_in_an_idle_step_changes_nothing(model, inspector):
    step(model)
    with torch.no_grad():
        model.eval()(torch.ones(2, 3))
    model.train()
    for _ in range(EVERY - 1):
        step(model)
    assert hooks(model) == [1] * 3
    assert all(len(norms) == 1 for norms in samples(inspector).values())


def test_a_pause_sends_taps_away_until_it_ends(model):
    inspector = PyTorchInspector([OutputNorm(inplace=False, include=LAYERS)], module=model, visualizer="dummy")
    with inspector.paused():
        step(model)
        assert hooks(model) == [0] * 3
    assert hooks(model) == [1] * 3
    step(model)
    assert all(len(norms) == 1 for norms in samples(inspector).values())


def test_an_answer_that_may_change_at_any_time_keeps_taps_in_place(model):
    active = []
    inspector = PyTorchInspector(
        [OutputNorm(inplace=False, include=LAYERS)],
        module=model,
        visualizer="dummy",
        is_active_fn=lambda _: bool(active),
    )
    step(model)
    assert hooks(model) == [1] * 3
    active.append(True)
    step(model)
    assert all(len(norms) == 1 for norms in samples(inspector).values())


def test_detaching_while_taps_rest_leaves_nothing(model, inspector):
    step(model)
    inspector.detach()
    for _ in range(EVERY):
        step(model)
    assert hooks(model) == [0] * 3


def test_layers_that_are_called_without_the_model_come_back_with_the_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = [OutputNorm(inplace=False, include=LAYERS)]
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", optimizer=optimizer, every=2)
    for _ in range(4):
        model[0](torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert len(samples(inspector)["0"]) == 2


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_model_compiled_while_taps_rest_is_seen(model, inspector):
    step(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.warns(MonitorchWarning, match="made graphs while no step was observed"):
        steps(compiled, EVERY - 1)
    for _ in range(EVERY):
        step(compiled)
    assert {name: len(norms) for name, norms in samples(inspector).items()} == {"0": 2, "1": 2, "2": 2}


def compile_something():
    """Make a graph that has nothing to do with the model."""
    torch.compile(torch.sin, backend="eager")(torch.ones(2))


@pytest.mark.usefixtures("fresh_compiler")
def test_graphs_from_before_the_model_was_watched_do_not_keep_hooks_awake(model):
    compile_something()
    inspector = PyTorchInspector([OutputNorm(include=LAYERS)], module=model, visualizer="dummy", every=EVERY)
    step(model)
    assert hooks(model) == [0] * 3
    inspector.detach()


@pytest.mark.usefixtures("fresh_compiler")
def test_graphs_of_others_cost_the_rest_but_no_number(model, inspector):
    step(model)
    compile_something()
    with pytest.warns(MonitorchWarning, match="made graphs while no step was observed"):
        steps(model, EVERY - 1)
    for _ in range(EVERY):
        step(model)
        assert hooks(model) == [1] * 3  # the model might be inside of other graphs
    assert {name: len(norms) for name, norms in samples(inspector).items()} == {"0": 2, "1": 2, "2": 2}


def test_copies_hold_no_tap_and_send_none_to_rest(model, inspector):
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        step(twin)
    assert hooks(model) == [1] * 3
    for _ in range(EVERY):
        step(model)
    assert all(len(norms) == 1 for norms in samples(inspector).values())


@pytest.mark.parametrize(("gradient", "on_parameters"), [("before_clip", 4), ("at_step", 0)])
def test_hooks_come_off_when_an_observed_step_has_ended(model, gradient, on_parameters):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = [OutputNorm(inplace=False, include=LAYERS), ParameterGradientGeometry(inplace=False)]
    options = {"optimizer": optimizer, "every": EVERY, "gradient": gradient}
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", **options)
    seen = []
    for _ in range(2 * EVERY):
        step(model)
        optimizer.step()
        seen.append((sum(hooks(model)), sum(map(has_hooks, model.parameters())), inspector.state.engine.is_awake))
    idle, awake = (0, 0, False), (3, on_parameters, True)
    # put on when the step before the baseline step has ended, and off when the observed one has
    assert seen == [idle, awake, awake, idle] * 2


def has_hooks(parameter):
    return bool(parameter._post_accumulate_grad_hooks)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_once_a_model_is_compiled_taps_stay_where_they_are(model, inspector):
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    seen = []
    for _ in range(2 * EVERY):
        step(compiled)
        seen.append(hooks(model))
    assert seen == [[1] * 3] * (2 * EVERY)
    assert {name: len(norms) for name, norms in samples(inspector).items()} == {"0": 2, "1": 2, "2": 2}


def test_a_pause_between_forward_and_backward_hides_no_gradient(model):
    lens = ParameterGradientGeometry(inplace=False)
    inspector = PyTorchInspector([lens], module=model, visualizer="dummy")
    loss = model(torch.ones(2, 3)).sum()
    with inspector.paused():
        assert not any(map(has_hooks, model.parameters()))
    loss.backward()
    inspector.tick_epoch()
    found = {record.layer: record.value for record in inspector.records() if record.tag == "Weight Gradient Norm"}
    assert set(found) == {"0", "2"}


def test_every_hook_tells_the_clock_when_it_begins_and_ends(model, monkeypatch):
    lenses = [OutputNorm(include=LAYERS), OutputGradientGeometry(), ParameterGradientGeometry()]
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", every=EVERY)
    clock, calls = inspector.state.clock, []
    enter, leave = clock.enter, clock.leave
    monkeypatch.setattr(clock, "enter", lambda: calls.append(1) or enter())
    monkeypatch.setattr(clock, "leave", lambda begin: calls.append(-1) or leave(begin))
    counts = []
    for _ in range(2 * EVERY):
        step(model)
        assert sum(calls) == 0
        counts.append(len(calls) // 2)
        calls.clear()
    # the pass; three outputs and two of their gradients, which stay in a baseline step; the parameters together
    assert counts[-EVERY:] == [1, 1, 1 + 3 + 2 + 1, 1 + 3 + 2 + 1]
