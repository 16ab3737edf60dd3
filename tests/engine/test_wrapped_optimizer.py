"""What is inside the objects that other libraries hand out in the place of an optimizer."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from monitorch.engine.optimizers import takes_steps, unwrap_optimizer
from monitorch.errors import UnsupportedModelError
from monitorch.lens import ParameterUpdateGeometry
from tests.engine.optimizer_wrappers import (
    Accelerated,
    Lightning,
    Lookahead,
    OlderLightning,
    averaging,
    of_package,
    plain,
    zero_optimizer,
)

WRAPPERS = [Accelerated, Lightning, OlderLightning, averaging]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_what_only_passes_calls_on_is_unwrapped(wrap):
    optimizer = plain()
    assert unwrap_optimizer(wrap(optimizer)).optimizer is optimizer


@pytest.mark.parametrize("outer", [Accelerated, averaging])
@pytest.mark.parametrize("inner", WRAPPERS)
def test_wrappers_around_wrappers_are_unwrapped(outer, inner):
    optimizer = plain()
    assert unwrap_optimizer(outer(inner(optimizer))).optimizer is optimizer


@pytest.mark.parametrize("make", [plain, lambda: Lookahead(plain())])
def test_an_optimizer_by_itself_stays_what_it_is(make):
    optimizer = make()
    assert unwrap_optimizer(optimizer) == (optimizer, None)
    assert unwrap_optimizer(Accelerated(optimizer)).optimizer is optimizer


def test_the_scaler_of_the_innermost_wrapper_that_has_one_is_found():
    inner, outer = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
    assert unwrap_optimizer(Accelerated(plain(), inner)).scaler is inner
    assert unwrap_optimizer(Accelerated(Lightning(plain()), inner)).scaler is inner
    assert unwrap_optimizer(Accelerated(Accelerated(plain(), inner), outer)).scaler is inner
    assert unwrap_optimizer(Lightning(plain())).scaler is None


@pytest.mark.parametrize("thing", [None, "adam", SGD, 3, nn.Linear(1, 1), Accelerated(None), Accelerated("adam")])
def test_what_holds_no_optimizer_is_returned_as_it_is_and_takes_no_steps(thing):
    assert unwrap_optimizer(thing).optimizer is thing
    assert not takes_steps(thing)


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, Accelerated])
def test_optimizers_of_deepspeed_are_refused_by_name(wrap):
    with pytest.raises(UnsupportedModelError, match=r"DeepSpeedZeroOptimizer cannot be observed: .*use fully_shard"):
        unwrap_optimizer(wrap(zero_optimizer()))


def test_a_plain_optimizer_that_deepspeed_ships_is_one():
    fused = of_package("FusedAdam", "deepspeed.ops.adam.fused_adam", SGD)(nn.Linear(1, 1).parameters(), lr=0.1)
    assert unwrap_optimizer(fused).optimizer is fused


def test_the_lens_on_updates_takes_wrapped_optimizers():
    optimizer = plain()
    assert ParameterUpdateGeometry(Accelerated(optimizer)).optimizer is optimizer
