"""Programs run, faults spoil them, remedies put them right."""

import re
from inspect import signature

import pytest
import torch
from torch import nn

from bench.diagnosis.case import sgd, vectors
from bench.diagnosis.cases import CASES, HEALTHY
from bench.diagnosis.remedies import ACTIONS, apply, treated
from bench.diagnosis.rules import forward_order
from bench.diagnosis.runs import Task
from monitorch.diagnosis.finding import ACTIONS as VOCABULARY

pytestmark = pytest.mark.filterwarnings("ignore")  # faulty programs warn, and that is theirs to do


def run(program, steps=None):
    if steps is not None:
        program.steps = steps
    assert list(program.run()) == list(range(program.steps))
    return program


@pytest.mark.parametrize("name", [*CASES, *HEALTHY])
def test_every_program_runs(name):
    case = CASES.get(name) or HEALTHY[name]
    for faulty in (True, False) if name in CASES else (False,):
        program = run(case.build(0, faulty), 2)
        assert 0 <= program.evaluate() <= 1
        assert 0 < program.target < 1


@pytest.mark.parametrize("name", CASES)
def test_truth_names_layers_that_there_are(name):
    case = CASES[name]
    program = case.build(0)
    known = dict(program.model.named_modules())
    assert set(case.layers) <= known.keys()
    assert case.onset < program.steps
    if case.layers and "" not in case.layers:
        order = forward_order(program)
        assert any(leaf == layer or leaf.startswith(f"{layer}.") for leaf in order for layer in case.layers)


def test_every_symptom_has_a_case():
    from monitorch.diagnosis import SYMPTOMS

    assert {case.symptom for case in CASES.values()} == {getattr(one, "id", one) for one in SYMPTOMS}


def test_there_are_enough_of_all():
    families = [case.family for case in CASES.values()]
    assert min(families.count("MLP"), families.count("Transformer")) >= 20
    assert families.count("port") == 6
    assert len(HEALTHY) >= 60
    assert sum(case.onset > 0 for case in CASES.values()) >= 10


@pytest.mark.parametrize("name", ["dead-late", "healthy-dropout", "transformer-spike"])
def test_programs_are_the_same_for_the_same_seed(name):
    first, second = (run(Task(name, 1, "fault", None).build(), 3) for _ in range(2))
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_fault_is_there_from_its_onset_on():
    case = CASES["dead-late"]
    before, after = (run(case.build(0), case.onset + more) for more in (0, 1))
    twin = run(case.build(0, faulty=False), case.onset)
    assert torch.equal(before.model[4].bias, twin.model[4].bias)
    assert float(after.model[4].bias.max()) < -15


def test_remedies_are_the_vocabulary():
    assert ACTIONS.keys() == VOCABULARY.keys()
    for name, text in VOCABULARY.items():
        assert set(re.findall(r"``(\w+)``", text)) <= signature(ACTIONS[name]).parameters.keys(), name


def made(**options):
    options = {"optimizer": sgd(0.1, weight_decay=0.2)} | options
    return vectors(0, (20, 8, 8, 10), **options)


def has_rate(program, rate):
    return [group["lr"] for group in program.groups] == [pytest.approx(rate)]


REMEDIES = {
    "scale_lr": ({"factor": 0.5}, lambda p: has_rate(p, 0.05)),
    "set_group_lr": ({"parameters": ["2.weight"], "lr": 0.3}, lambda p: has_rate(p, 0.3)),
    "zero_grad": ({}, lambda p: p.zeroes_gradients),
    "clip": ({"max_norm": 2.0}, lambda p: p.max_norm == 2),
    "reinit": ({"layers": ["2"], "gain": 1.0}, lambda p: not p.model[2].bias.any() and p.model[0].bias.any()),
    "replace_activation": ({"layers": ["1"], "by": "GELU"}, lambda p: isinstance(p.model[1], nn.GELU)),
    "standardise_input": ({}, lambda p: p.train[0].std(0).allclose(torch.ones(20))),
    "shuffle": ({}, lambda p: p.shuffled),
    "scale_weight_decay": ({"factor": 0.1}, lambda p: p.groups[0]["weight_decay"] == pytest.approx(0.02)),
    "grad_scaler": ({}, lambda p: p.scaler is not None),
}


@pytest.mark.parametrize("action", REMEDIES)
def test_remedies_do_what_they_say(action):
    arguments, is_done = REMEDIES[action]
    program = made()
    program.zeroes_gradients = program.shuffled = False
    assert not is_done(program)
    assert is_done(apply(program, action, arguments))
    run(program, 2)


def test_activation_next_to_a_named_layer_is_replaced():
    program = apply(made(), "replace_activation", {"layers": ["0"], "by": "Tanh"})
    assert [type(module) for module in program.model[1::2]] == [nn.Tanh, nn.ReLU]
    everywhere = apply(made(), "replace_activation", {"by": "Tanh"})
    assert [type(module) for module in everywhere.model[1::2]] == [nn.Tanh, nn.Tanh]


def test_last_activation_is_dropped_whether_it_is_named_or_its_layer():
    for arguments in ({}, {"layer": "5"}, {"layer": "4"}):
        program = made(change_model=lambda model: model.append(nn.Softmax(-1)))
        assert isinstance(apply(program, "drop_output_activation", arguments).model[5], nn.Identity)


def test_forgotten_parameters_are_added_once():
    program = CASES["not-in-optimizer"].build(0)
    for _ in range(2):
        apply(program, "add_to_optimizer", {"parameters": ["4.weight", "4"]})
    assert sum(len(group["params"]) for group in program.groups) == len(list(program.model.parameters()))


@pytest.mark.parametrize(
    ("action", "arguments"),
    [
        ("add_to_optimizer", {"parameters": ["nowhere"]}),
        ("reinit", {"layers": ["1"]}),
        ("replace_activation", {"layers": ["4"], "by": "ReLU"}),
        ("replace_activation", {"by": "NoSuchActivation"}),
        ("scale_lr", {}),
        ("pray", {}),
    ],
)
def test_remedy_that_does_not_fit_is_an_error(action, arguments):
    with pytest.raises((ValueError, AttributeError, TypeError, KeyError)):
        apply(made(), action, arguments)


def test_late_fault_is_treated_after_it():
    case = CASES["rate-high-late"]
    program = run(treated(case, 0, "scale_lr", {"factor": 1 / 300}), case.onset + 1)
    assert has_rate(program, 1e-3)
    untreated = run(case.build(0), case.onset + 1)
    assert has_rate(untreated, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.cure])
def test_cures_heal(name):
    case = CASES[name]
    twin = run(case.build(0, faulty=False)).evaluate()
    assert run(treated(case, 0, *case.cure)).evaluate() >= 0.95 * twin


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *HEALTHY])
def test_healthy_programs_reach_their_targets(name):
    case = CASES.get(name) or HEALTHY[name]
    for seed in range(3):
        program = run(case.build(seed, False))
        assert program.evaluate() >= program.target, f"seed {seed}"
