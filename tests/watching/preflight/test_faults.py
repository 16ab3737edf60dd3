"""Each mistake is found first, at the right place, with a remedy that helps."""

import math
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from monitorch import preflight
from monitorch.diagnosis import Finding
from monitorch.watching.preflight.batch_fit import BatchFit
from monitorch.watching.preflight.fit_checks import check_fit

from .faults import FAULTS
from .models import Case, classes, layers

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")  # what torch says to one of them


@cache
def found_in(name, **options):
    torch.manual_seed(0)
    return preflight(*FAULTS[name].make().all, **options)


@pytest.mark.parametrize("name", FAULTS)
def test_the_mistake_comes_first_and_explains_the_rest(name):
    wanted, (first, *others) = FAULTS[name], found_in(name)
    assert (first.symptom, first.caused_by) == (wanted.symptom, None)
    assert first.severity in ("warning", "error")
    assert wanted.layer is None or first.layer == wanted.layer
    assert wanted.action is None or first.remedy.action == wanted.action
    assert {other.caused_by for other in others if other.severity != "info"} <= {first.id}
    assert (first.step, first.detected_at) == (0, 0)


@pytest.mark.parametrize("name", FAULTS)
def test_findings_are_plain_data(name):
    found = found_in(name)
    assert [Finding.from_json(finding.to_json()).to_json() for finding in found] == [one.to_json() for one in found]
    assert len({finding.id for finding in found}) == len(found)
    for finding in found:
        assert len(finding.explanation.split(". ")) >= 2
        assert all(math.isfinite(one.threshold) for one in finding.evidence if one.threshold is not None)


@pytest.mark.parametrize(
    "name",
    ["not_in_the_optimizer", "detached", "double_softmax", "mean_of_the_batch", "exploding", "dead", "large_head"],
)
def test_most_is_found_without_a_fit(name):
    assert found_in(name, fit_steps=0)[0].symptom == FAULTS[name].symptom


def test_all_missing_parameters_are_named_and_giving_them_to_the_optimizer_heals():
    case = FAULTS["not_in_the_optimizer"].make()
    (finding,) = preflight(*case.all)
    assert finding.remedy.arguments == {"parameters": ["2.weight", "2.bias"]}
    own = dict(case.model.named_parameters())
    case.optimizer.add_param_group({"params": [own[name] for name in finding.remedy.arguments["parameters"]]})
    assert preflight(*case.all) == []


def test_some_groups_with_a_rate_of_zero_are_a_warning():
    x = torch.randn(32, 20)
    case = Case(layers(20, 32, 4), x, classes(x))
    first, last = case.model[0].parameters(), case.model[2].parameters()
    case.optimizer = torch.optim.SGD([{"params": first, "lr": 0.0}, {"params": last}], lr=0.1)
    (finding,) = preflight(*case.all)
    assert (finding.symptom, finding.severity, finding.layer) == ("no_update", "warning", "0")
    assert finding.remedy.arguments == {"parameters": ["0.weight", "0.bias"], "lr": 0.1}


def test_layers_before_a_cut_hang_under_the_last_one():
    last, first = found_in("detached")
    assert (last.layer, last.caused_by) == ("b", None)
    assert (first.layer, first.caused_by) == ("a", last.id)


@pytest.mark.parametrize(("name", "numbers"), [("large_head", ("1.39",)), ("sigmoid_before_cross_entropy", ("1.46",))])
def test_explanations_hold_the_numbers(name, numbers):
    assert all(number in found_in(name)[0].explanation for number in numbers)


def test_a_rate_that_is_too_small_is_multiplied_by_what_makes_steps_usual():
    (finding,) = found_in("rate_too_small")
    assert finding.remedy.arguments["factor"] in (100.0, 1000.0)
    (curve,) = finding.evidence
    assert len(curve.values) == 31


@pytest.mark.parametrize(("factor", "severity"), [(2.5, "info"), (12.0, "warning")])
def test_a_first_loss_that_is_a_bit_too_large_is_worth_an_info(factor, severity):
    torch.manual_seed(0)
    x = torch.randn(64, 20)
    case = Case(layers(20, 32, 4), x, classes(x))
    with torch.no_grad():
        output = case.model(x)
        wanted = factor * math.log(4)
        scale = next(s for s in range(1, 1000) if nn.functional.cross_entropy(output * s, case.batch[1]) > wanted)
        case.model[2].weight *= scale
        case.model[2].bias *= scale
    (first, *_) = preflight(*case.all, fit_steps=0)
    assert (first.symptom, first.severity) == ("bad_initial_loss", severity)


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        ([2.5, 4.5, 10.0, 1.4, 2.0, 1.0, 0.8, 0.6, 0.5], "info"),  # first steps overshoot, and it is back
        ([2.5, 4.5, 10.0, 1.4, 2.0, 2.1, 1.9, 2.0, 2.0], "error"),  # it is not
        ([2.5, 4.5, 99.0, 1.4, 2.0, 1.0, 0.8, 0.6, 0.5], "error"),  # by far too much
        ([2.5, 4.5, 10.0, 1.4, 2.0, 1.0, 0.8, 0.6, math.nan], "error"),
        ([2.5, 2.6, 3.0, 1.4, 2.0, 1.0, 0.8, 0.6, 0.5], None),
    ],
)
def test_a_loss_that_overshoots(losses, severity):
    fit = BatchFit(losses, updates={"0.weight": 0.2})
    facts = SimpleNamespace(fit=fit, is_fitted=False, fit_steps=len(losses) - 1, optimizers=(object(),))
    assert [(one.symptom, one.severity) for one in check_fit(facts)] == [("step_too_large", severity)] * bool(severity)


class Sharing(nn.Module):
    """The same layer is dead in its first use, and alive in its second."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(20, 20), nn.Linear(20, 4)

    def forward(self, x):
        return self.head(self.layer(x).relu() + self.layer(-x).relu())


def test_a_layer_that_is_used_twice():
    x = torch.randn(64, 20)
    assert preflight(*Case(Sharing(), x, classes(x)).all) == []
