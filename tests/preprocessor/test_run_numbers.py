"""Numbers of the run as a whole, pushed ones among them."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch

from monitorch.engine.ranks import merged
from monitorch.numerical import RunningMeanVar
from monitorch.preprocessor import ExplicitCall, LossModule, run_numbers
from monitorch.preprocessor.run_numbers import RunNumbers


@pytest.fixture
def numbers():
    return RunNumbers()


def moments(*samples):
    return RunningMeanVar(len(samples), np.mean(samples), np.var(samples), min(samples), max(samples))


def test_numbers_of_earlier_steps_are_kept_apart(numbers):
    for step, value in ((None, 1.0), (3, 2.0), (3, 4.0), (5, 7.0), (None, 3.0)):
        numbers.push("a", value, step)
    numbers.push("b", torch.tensor(9.0), 5)
    assert numbers.value == numbers.at(None) == {"a": moments(1.0, 3.0)}
    assert numbers.at(3) == {"a": moments(2.0, 4.0)}
    assert numbers.at(5) == {"a": moments(7.0), "b": moments(9.0)}
    assert numbers.by_step().keys() == {None, 3, 5}
    numbers.reset()
    assert (numbers.value, numbers.by_step(), numbers.is_empty) == ({}, {}, True)


def test_what_has_come_can_be_held_for_a_step(numbers):
    numbers.push("a", 1.0)
    numbers.push("b", 2.0)
    numbers.push("a", 5.0, 7)
    numbers.hold(7, ["a", "missing"])
    numbers.push("a", 3.0)
    assert numbers.at(7) == {"a": moments(5.0, 1.0)}
    assert numbers.at(None) == {"b": moments(2.0), "a": moments(3.0)}


def test_holding_waits_for_no_tensor(numbers, monkeypatch):
    numbers.push("a", torch.tensor(1.0))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda *_: pytest.fail("a tensor was read"))
    numbers.hold(4, ["a"])
    monkeypatch.undo()
    assert numbers.at(4) == {"a": moments(1.0)}


def test_what_is_pushed_may_change_afterwards(numbers):
    value = torch.tensor([2.0], dtype=torch.float64)
    numbers.push("a", value)
    value.fill_(99.0)
    assert numbers.value == {"a": moments(2.0)}


def test_only_what_is_named_is_held():
    call = ExplicitCall("train_loss", "val_loss")
    call.push_loss(1.0, train=True)
    call.push_loss(2.0, train=False)
    call.push_memory("accuracy", 0.5)
    call.hold(8, ["val_loss", "accuracy", "never pushed"])
    assert call.value == {"train_loss": moments(1.0)}
    assert call.at(8) == {"val_loss": moments(2.0), "accuracy": [0.5]}


def test_losses_of_evaluations_are_held_and_their_name_stays():
    losses = LossModule(inplace=True, evaluation_from_grad=True)
    losses.set_loss_strs("train_loss", "val_loss")
    for grad, value in ((True, 1.0), (False, 2.0)):
        with torch.set_grad_enabled(grad):
            losses.process_fw("", torch.nn.MSELoss(), None, torch.tensor(value))
    losses.hold(8, ["train_loss", "val_loss"])
    assert losses.value == {"train_loss": moments(1.0), "val_loss": RunningMeanVar()}
    assert losses.at(8) == {"val_loss": moments(2.0)}


def test_a_state_keeps_steps(numbers, tmp_path):
    numbers.push("a", 1.0)
    numbers.push("a", 2.0, 3)
    torch.save(numbers.state_dict(), tmp_path / "state")
    again = RunNumbers()
    again.load_state_dict(torch.load(tmp_path / "state"))
    assert (again.at(None), again.at(3)) == ({"a": moments(1.0)}, {"a": moments(2.0)})


def test_ranks_together_know_the_numbers_of_each_step(numbers):
    other = RunNumbers()
    numbers.push("a", 1.0, 3)
    other.push("a", 3.0, 3)
    other.push("b", 5.0, 4)
    numbers.merge_ranks(merged({0: numbers.payload(), 1: other.payload()}))
    assert (numbers.at(3), numbers.at(4)) == ({"a": moments(1.0, 3.0)}, {"b": moments(5.0)})


@pytest.mark.parametrize("running", [True, False])
def test_losses_of_one_step_are_averaged_over_ranks_and_those_of_one_rank_alone_are_kept(running, monkeypatch):
    monkeypatch.setattr(run_numbers, "several_processes", lambda: True)
    ranks = ExplicitCall("train_loss", "val_loss"), ExplicitCall("train_loss", "val_loss")
    for rank, losses in zip(ranks, [(1.0, 5.0), (3.0,)], strict=True):
        for loss in losses:
            rank.push_loss(loss, train=True, running=running)
    ranks[0].merge_ranks(merged({0: ranks[0].payload(), 1: ranks[1].payload()}))
    expected = [2.0, 5.0]
    assert ranks[0].value["train_loss"] == (moments(*expected) if running else expected)


class Steps:
    """Says which step is going on."""

    def __init__(self):
        self.number = 0

    def __call__(self):
        return self.number


@pytest.mark.parametrize("as_tensor", [torch.tensor, float, lambda x: torch.tensor(x) if x > 3 else x])
def test_losses_of_one_step_are_one_sample(as_tensor):
    call, steps = ExplicitCall("train_loss", "val_loss"), Steps()
    call.open_step = steps
    for steps.number, losses in enumerate([(1.0, 4.0), (2.0,), (5.0, 6.0, 10.0)]):
        for loss in losses:
            call.push_loss(as_tensor(loss), train=True, running=False)
    assert call.value["train_loss"] == [2.5, 2.0, 7.0]


def test_an_earlier_tick_that_is_shown_late_does_not_get_what_came_since():
    call, steps = ExplicitCall("train_loss", "val_loss"), Steps()
    call.open_step = steps
    call.push_loss(1.0, train=True)
    released = call.release()
    steps.number = 1
    call.push_loss(math.pi, train=True)
    with call.showing(released):
        assert call.value == {"train_loss": moments(1.0)}
    assert call.value == {"train_loss": moments(math.pi)}


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
    call.merge_ranks(merged({0: call.payload(), 1: other.payload()}))
    assert call.value == {"moments": RunningMeanVar(2, 2.0, 1.0, 1.0, 3.0), "list": [1.0, 3.0], "only there": [5.0]}


def test_a_name_that_ranks_keep_in_different_ways_has_moments(call):
    other = ExplicitCall("train_loss", "val_loss")
    call.push_memory("x", 1.0)
    other.push_running("x", 3.0)
    call.merge_ranks(merged({0: call.payload(), 1: other.payload()}))
    assert call.value == {"x": RunningMeanVar(2, 2.0, 1.0, 1.0, 3.0)}
