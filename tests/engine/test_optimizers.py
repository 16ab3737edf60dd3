"""Optimizers: what is inside their wrappers, what they move, and their steps, which are told once each."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from monitorch import MonitorchWarning
from monitorch.engine.optimizers import OptimizerSteps, Owned, takes_steps, unwrap_optimizer
from monitorch.errors import UnsupportedModelError
from monitorch.inspector import InspectorState
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


class Inherited(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)


class Failing(Inherited):
    def step(self, closure=None, *, fails=None):
        if fails == "outside":
            raise ValueError("a step that fails")
        try:
            return super().step(self._fail if fails else closure)
        except ValueError:
            if fails == "inside":
                raise
        return None

    def _fail(self):
        raise ValueError("a closure that fails")


@pytest.fixture
def parameters():
    return list(nn.Linear(2, 1).parameters())


@pytest.fixture
def listen():
    """Write down what is told of the steps of an optimizer."""

    def build(optimizer, state=None):
        told, steps = [], OptimizerSteps(optimizer, state)
        steps.before.append(lambda args, kwargs: told.append("before"))
        steps.after.append(lambda args, kwargs: told.append("after"))
        return told, steps

    return build


@pytest.mark.parametrize("kind", [torch.optim.Adam, Inherited])
def test_a_step_is_told_once_though_it_calls_that_of_its_base_class(kind, parameters, listen):
    torch.optim.Adam(parameters)  # from the first one on, torch calls hooks around the step of the base class, too
    optimizer = kind(parameters)
    told, steps = listen(optimizer)
    for _ in range(3):
        optimizer.step()
    assert told == ["before", "after"] * 3
    assert steps.has_ended


@pytest.mark.parametrize(
    ("fails", "expected"),
    [("outside", ["before"]), ("inside", ["before"]), ("inside, and goes on", ["before", "after"])],
)
def test_a_step_that_failed_does_not_hide_the_next_one(fails, expected, parameters, listen):
    optimizer = Failing(parameters)
    told, steps = listen(optimizer)
    if len(expected) == 1:
        with pytest.raises(ValueError, match="fails"):
            optimizer.step(fails=fails)
    else:
        optimizer.step(fails=fails)
    assert told == expected
    optimizer.step()
    optimizer.step()
    assert told == expected + ["before", "after"] * 2
    assert not steps.is_running


def test_it_is_told_last_what_others_have_done_to_gradients(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    seen, steps = [], OptimizerSteps(optimizer, None)
    steps.before.append(lambda args, kwargs: seen.append(parameters[0].grad.sum().item()))

    def shrink(*_):
        parameters[0].grad.mul_(0.5)

    for hooks in range(3):
        parameters[0].grad = torch.ones_like(parameters[0])
        optimizer.step()
        assert seen.pop() == 2 * 0.5**hooks
        optimizer.register_step_pre_hook(shrink)
        steps.come_last()  # as before each pass of a model


@pytest.fixture
def halve(parameters):
    def hook(*_):
        parameters[0].grad.mul_(0.5)

    return hook


@pytest.fixture
def consumed(parameters):
    """An optimizer, and the sums of gradients that are told when its steps begin."""
    optimizer, seen = torch.optim.SGD(parameters, lr=0.1), []
    steps = OptimizerSteps(optimizer, InspectorState(on_error="raise"))
    steps.before.append(lambda args, kwargs: seen.append(parameters[0].grad.sum().item()))

    def step():
        parameters[0].grad = torch.ones_like(parameters[0])
        optimizer.step()
        return seen

    return optimizer, step


def test_a_hook_that_comes_just_before_a_step_is_heard_first(parameters, consumed, halve):
    optimizer, step = consumed
    for number in range(1, 4):
        handle = optimizer.register_step_pre_hook(halve)
        assert step() == [1.0] * number
        handle.remove()
    assert step() == [1.0] * 3 + [2.0]
    assert parameters[0].grad.sum() == 2.0


def test_a_late_hook_that_fails_leaves_the_next_step_in_order(consumed, halve, count_hooks):
    optimizer, step = consumed

    def fail(*_):
        raise ValueError("a hook that fails")

    failing = optimizer.register_step_pre_hook(fail)
    optimizer.register_step_pre_hook(halve)
    with pytest.raises(ValueError, match="a hook that fails"):
        step()
    failing.remove()
    assert step() == [1.0]
    assert step() == [1.0, 1.0]
    assert count_hooks(optimizer) == 3


@pytest.mark.parametrize(("answer", "seen"), [(None, 0), ("closure", 1)])
def test_what_a_late_hook_makes_of_the_arguments_is_told(answer, seen, consumed):
    optimizer, step = consumed
    steps, told = OptimizerSteps(optimizer, InspectorState(on_error="raise")), []
    steps.before.append(lambda args, kwargs: told.append(len(args) - 1))

    def change(optimizer, args, kwargs):
        return None if answer is None else ((*args, lambda: torch.zeros(())), kwargs)

    optimizer.register_step_pre_hook(change)
    step()
    assert told == [seen]


def test_an_error_of_a_listener_is_told_and_the_others_are_called(parameters, listen):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    state = InspectorState()
    told, steps = listen(optimizer, state)
    steps.before.insert(0, lambda args, kwargs: 1 / 0)
    with pytest.warns(MonitorchWarning, match="ZeroDivisionError"):
        optimizer.step()
    optimizer.step()  # a second warning would be an error here
    assert told == ["before", "after"] * 2
    state.on_error = "raise"
    with pytest.raises(ZeroDivisionError):
        optimizer.step()


def test_leaving_removes_the_hooks(parameters, listen, count_hooks):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    told, steps = listen(optimizer)
    steps.remove()
    optimizer.step()
    assert not told
    assert count_hooks(optimizer) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_is_told_outside_of_its_graphs(parameters, listen):
    torch.compiler.reset()
    optimizer = torch.optim.Adam(parameters, lr=torch.tensor(0.1))
    told, steps = listen(optimizer)
    steps.after.append(lambda args, kwargs: told.append(torch.compiler.is_compiling()))
    compiled = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        compiled()
    assert told == ["before", "after", False] * 3


def new_parameters(count):
    return [nn.Parameter(torch.ones(2)) for _ in range(count)]


def test_parameters_of_all_groups_are_owned_and_no_others():
    first, second, other = new_parameters(3)
    owned = Owned(torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.1}], lr=1.0))
    assert [parameter in owned for parameter in (first, second, other)] == [True, True, False]


def test_an_equal_tensor_is_another_one():
    [mine] = new_parameters(1)
    owned = Owned(torch.optim.SGD([mine], lr=1.0))
    assert nn.Parameter(mine.detach()) not in owned
    assert mine.detach() not in owned


def test_groups_may_be_added_and_parameters_replaced():
    first, second, third = new_parameters(3)
    optimizer = torch.optim.SGD([first], lr=1.0)
    assert second not in Owned(optimizer)
    optimizer.add_param_group({"params": [second]})
    optimizer.param_groups[0]["params"][0] = third
    assert [parameter in Owned(optimizer) for parameter in (first, second, third)] == [False, True, True]


def test_several_optimizers_own_together():
    first, second = new_parameters(2)
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in (first, second)]
    assert [first in Owned(optimizer) for optimizer in optimizers] == [True, False]
    assert first in Owned(*optimizers)
    assert first not in Owned()


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


class Clock:
    """Notes when hooks begin and end."""

    def __init__(self):
        self.open, self.calls = 0, 0

    def enter(self):
        self.open, self.calls = self.open + 1, self.calls + 1
        return "begin"

    def leave(self, begin):
        assert begin == "begin"
        self.open -= 1


@pytest.mark.filterwarnings("ignore::monitorch.MonitorchWarning")
def test_the_time_of_listeners_is_measured_also_if_one_fails(parameters):
    optimizer, clock = torch.optim.SGD(parameters, lr=0.1), Clock()
    steps, open_in_them = OptimizerSteps(optimizer, InspectorState(), clock), []
    steps.before += [lambda args, kwargs: open_in_them.append(clock.open), lambda args, kwargs: 1 / 0]
    steps.after.append(lambda args, kwargs: open_in_them.append(clock.open))
    optimizer.step()
    assert open_in_them == [1, 1]
    assert (clock.open, clock.calls) == (0, 2)


def test_whether_a_step_has_ended_is_known_and_can_be_asked_again(parameters, listen):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    told, steps = listen(optimizer)
    within = []
    steps.before.append(lambda args, kwargs: within.append(steps.has_ended))
    assert not steps.has_ended
    optimizer.step()
    assert steps.has_ended
    steps.has_ended = False
    optimizer.step()
    assert steps.has_ended
    assert within == [False, False]
    assert len(told) == 4
