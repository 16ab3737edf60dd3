"""The assertion for tests of models."""

import pytest
import torch
from torch import nn

import monitorch
from monitorch.errors import OptionError
from monitorch.store.types import layer_text
from monitorch.testing import assert_trains
from tests.unchanged import everything
from tests.watching.preflight.faults import FAULTS
from tests.watching.preflight.models import HEALTHY, mlp


@pytest.mark.parametrize("name", ["mlp", "convolutional", "two_heads"])
def test_healthy_models_pass(name):
    case = HEALTHY[name]()
    before = everything(case.model, case.optimizer, *case.batch)
    assert_trains(*case.all)
    assert everything(case.model, case.optimizer, *case.batch) == before


@pytest.mark.parametrize("name", ["detached", "dead", "not_in_the_optimizer"])
def test_the_error_holds_what_was_found_and_what_to_try(name):
    wanted = FAULTS[name]
    with pytest.raises(AssertionError) as caught:
        assert_trains(*wanted.make().all)
    title, first, remedy, *_ = str(caught.value).splitlines()
    assert title.endswith("will not train well:")
    assert wanted.symptom.replace("_", " ") in first
    assert f"in {layer_text(wanted.layer)}" in first
    assert remedy.startswith("  try: ")


def test_what_is_fine_here_can_be_ignored():
    case = FAULTS["not_in_the_optimizer"].make()
    for ignore in ("no_update", ["no_update"], {"no_update:2"}, ("input_scale", "no_update")):
        assert_trains(*case.all, ignore=ignore)
    with pytest.raises(AssertionError, match="no update in layer 2"):
        assert_trains(*case.all, ignore=["no_update:0"])


def test_what_follows_from_something_that_is_fine_is_fine():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    batch = 1000 + 500 * torch.randn(64, 4), torch.randn(64, 1)
    found = monitorch.preflight(model, batch, nn.MSELoss())
    assert [finding.symptom for finding in found if finding.caused_by is None] == ["input_scale"]
    assert [finding.caused_by for finding in found[1:]]
    assert_trains(model, batch, nn.MSELoss(), ignore="input_scale")


def test_the_least_severity_that_fails():
    warned, remarked = FAULTS["not_in_the_optimizer"].make(), HEALTHY["two_heads"]()
    assert_trains(*warned.all, fail_on="error")
    with pytest.raises(AssertionError, match="unused"):
        assert_trains(*remarked.all, fail_on="info")


def test_steps_of_the_fit_are_passed_on():
    torch.manual_seed(0)
    assert_trains(*FAULTS["rate_too_small"].make().all, fit_steps=0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fail_on": "never"}, "fail_on='never' is unknown; choose from 'info', 'warning', 'error'"),
        ({"ignore": ["dead"]}, "ignore='dead' is unknown; choose from 'no_update', "),
        ({"ignore": "dead units"}, "ignore='dead units' is unknown"),
        ({"fit_steps": -1}, "fit_steps=-1"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        assert_trains(*mlp().all, **options)


def test_a_batch_that_the_model_cannot_take_is_no_assertion():
    with pytest.raises(OptionError, match="the model raises"):
        assert_trains(nn.Linear(3, 1), (torch.ones(4, 2), torch.ones(4, 1)), nn.MSELoss())
