"""Counts of what is not finite, in outputs, parameters and gradients; and the check of steps that are not observed."""

import math

import pytest
import torch
from torch import nn

from monitorch.errors import OptionError
from monitorch.lens import NonFinite, OutputNorm, ParameterGradientGeometry

TAGS = ["Non-Finite Outputs", "Non-Finite Output Gradients", "Non-Finite Gradients", "Non-Finite Parameters"]


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def counts(shown, tag):
    return {layer: lines["max"] for layer, lines in shown.values(tag).items()}


def test_each_element_that_is_not_finite_counts(model, shown, watch):
    inspector = watch(model, NonFinite())
    with torch.no_grad():
        model[2].weight[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    output = model(torch.ones(5, 3))
    output.backward(torch.ones(5, 2))
    inspector.tick_epoch()
    assert list(shown.tags) == TAGS
    assert counts(shown, TAGS[0]) == {"0": 0, "1": 0, "2": 5}
    assert counts(shown, TAGS[3]) == {"0.weight": 0, "0.bias": 0, "2.weight": 3, "2.bias": 0}
    gradients = {name: int((~own.grad.isfinite()).sum()) for name, own in model.named_parameters()}
    assert counts(shown, TAGS[2]) == gradients
    assert gradients["0.bias"] > 0 == gradients["2.bias"]
    assert counts(shown, TAGS[1]) == {"0": 5 * gradients["0.bias"], "2": 0}


def test_the_largest_count_of_a_tick_is_shown(model, shown, watch):
    inspector = watch(model, NonFinite())
    for broken in (1, 4, 0, 2):
        inputs = torch.ones(5, 3)
        inputs[:broken] = math.nan
        model(inputs).sum().backward()
    inspector.tick_epoch()
    assert counts(shown, TAGS[0]) == {"0": 16, "1": 16, "2": 8}
    model(torch.ones(5, 3)).sum().backward()
    inspector.tick_epoch()
    assert counts(shown, TAGS[0]) == {"0": 0, "1": 0, "2": 0}


def test_what_other_lenses_measure_is_not_read_again(model, watch):
    lenses = [OutputNorm(include=nn.Linear), ParameterGradientGeometry(parameters="all")]
    alone = watch(model, *lenses).state.engine
    meters = [meter for meter in alone.meters if meter.kind in ("output", "gradient")]
    both = watch(nn.Sequential(*model), *lenses, NonFinite()).state.engine
    assert len([meter for meter in both.meters if meter.kind in ("output", "gradient")]) == len(meters)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, "adam", 1])
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(OptionError, match=r"is not a torch\.optim\.Optimizer object: pass None"):
        NonFinite(optimizer)


@pytest.mark.parametrize("every", [1, 4])
def test_the_check_of_every_step_changes_neither_training_nor_what_is_shown(every, watch, shown, hooks_on):
    states, kept = [], []
    for checks in (None, False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        optimizer = torch.optim.Adam(model.parameters())
        if checks is not None:
            inspector = watch(model, NonFinite(optimizer if checks else None), optimizer=optimizer, every=every)
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
        if checks is not None:
            inspector.tick_epoch()
            kept.append([call[1:] for call in shown.calls if call[1] in TAGS])
            shown.calls.clear()
            assert inspector.first_not_finite is None
            inspector.detach()
            assert not hooks_on(model, optimizer)
        states.append([*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()])
    for state in states[1:]:
        assert all(torch.equal(*pair) for pair in zip(states[0], state, strict=True))
    assert kept[0] == kept[1]


def test_a_lens_that_is_removed_checks_no_more(model, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lens = NonFinite(optimizer)
    inspector = watch(model, OutputNorm(), lens, optimizer=optimizer, every=100)
    inspector.lenses = [inspector.lenses[0]]
    inspector.tick()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    assert inspector.first_not_finite is None


def test_a_step_that_a_fused_optimizer_skips_is_no_fault_though_it_is_not_observed(model, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    inspector = watch(model, NonFinite(optimizer), optimizer=optimizer, grad_scaler=scaler, every=100)
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(5, 3)).square().sum()).backward()
        if step == 3:
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    assert inspector.first_not_finite is None
    with torch.no_grad():
        model[2].bias[0] = math.inf
    scaler.scale(model(torch.ones(5, 3)).square().sum()).backward()
    optimizer.step()
    assert inspector.first_not_finite.step == 7
