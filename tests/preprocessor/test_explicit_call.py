import gc
import math
import weakref

import pytest
import torch

from monitorch.numerical import RunningMeanVar
from monitorch.preprocessor import ExplicitCall


@pytest.fixture
def call():
    return ExplicitCall("train_loss", "val_loss")


def test_value_and_state_are_one(call):
    call.push_running("x", 1.0)
    assert call.value is call.state
    assert (call.train_loss_str, call.non_train_loss_str) == ("train_loss", "val_loss")


@pytest.mark.parametrize(("train", "name"), [(True, "train_loss"), (False, "val_loss")])
@pytest.mark.parametrize("running", [True, False])
def test_losses_go_under_their_name(call, train, name, running):
    call.push_loss(1.0, train=train, running=running)
    call.push_loss(torch.tensor(3.0), train=train, running=running)
    expected = RunningMeanVar(2, 2.0, 1.0, 1.0, 3.0) if running else [1.0, 3.0]
    assert call.value == {name: expected}


def test_losses_run_by_default(call):
    call.push_loss(1.0, train=True)
    assert isinstance(call.value["train_loss"], RunningMeanVar)


def test_the_first_push_decides_the_container(call):
    call.push_memory("list", 1.0)
    call.push_running("list", 2.0)
    call.push_running("moments", 1.0)
    call.push_memory("moments", 2.0)
    assert call.value["list"] == [1.0, 2.0]
    assert call.value["moments"].count == 2


@pytest.mark.parametrize("push", ["push_running", "push_memory"])
def test_a_pushed_tensor_leaves_its_graph_behind(call, push):
    hidden = torch.ones(3, requires_grad=True) * 2
    graph = weakref.ref(hidden)
    getattr(call, push)("x", hidden.sum())
    del hidden
    gc.collect()
    assert graph() is None
    assert max(call.value["x"]) == 6.0 if push == "push_memory" else call.value["x"].mean == 6.0


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (torch.ones(2), ValueError, r"one number, not a tensor of shape \(2,\)"),
        ("high", ValueError, "high"),
        (None, TypeError, "NoneType"),
    ],
)
@pytest.mark.parametrize("push", ["push_running", "push_memory"])
def test_what_is_no_number_is_refused_and_leaves_no_name(call, push, bad, error, text):
    with pytest.raises(error, match=text):
        getattr(call, push)("x", bad)
    assert call.value == {}
    call.push_memory("x", 1.0)
    assert call.value == {"x": [1.0]}


def test_bad_numbers_are_counted(call):
    for number in (1.0, math.nan, torch.tensor(math.inf)):
        call.push_running("x", number)
    assert (call.value["x"].mean, call.value["x"].count, call.value["x"].nonfinite) == (1.0, 1, 2)


def test_reset_forgets_all_names(call):
    call.push_running("x", 1.0)
    before = call.value
    call.reset()
    assert call.value == {}
    assert before["x"].count == 1


def test_ranks_together_keep_the_kind_of_each_name(call):
    other = ExplicitCall("train_loss", "val_loss")
    for each, number in ((call, 1.0), (other, 3.0)):
        each.push_running("moments", number)
        each.push_memory("list", number)
    other.push_memory("only there", 5.0)
    call.merge_ranks({0: call.payload(), 1: other.payload()})
    assert call.value == {"moments": RunningMeanVar(2, 2.0, 1.0, 1.0, 3.0), "list": [1.0, 3.0], "only there": [5.0]}


def test_a_name_that_ranks_keep_in_different_ways_has_moments(call):
    other = ExplicitCall("train_loss", "val_loss")
    call.push_memory("x", 1.0)
    other.push_running("x", 3.0)
    call.merge_ranks({0: call.payload(), 1: other.payload()})
    assert call.value == {"x": RunningMeanVar(2, 2.0, 1.0, 1.0, 3.0)}
