"""What torch takes to call a hook."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from monitorch import PyTorchInspector
from monitorch.inspector.hook_call import ENOUGH, HookCall
from monitorch.lens import ParameterNorm


class Calls:
    """A clock on which calls of the two modules take, in turns, these seconds."""

    def __init__(self, plain, hooked):
        self.took = [seconds for pair in zip(plain, hooked, strict=True) for seconds in pair]
        self.now, self.asked = 0.0, 0

    def __call__(self):
        if self.asked % 2:
            self.now += self.took[self.asked // 2]
        self.asked += 1
        return self.now


def test_it_is_the_difference_of_the_middle_ones():
    random = np.random.default_rng(0)
    plain, hooked = random.uniform(1, 2, ENOUGH), random.uniform(3, 9, ENOUGH)
    call = HookCall(Calls(plain, hooked))
    assert call.seconds == 0.0
    call.measure()
    assert call.seconds == 0.0  # only one of the two was called
    for _ in range(2 * ENOUGH - 1):
        call.measure()
    assert call.seconds == pytest.approx(np.median(hooked) - np.median(plain))


def test_it_is_measured_often_enough_and_then_no_more():
    clock = Calls([1.0] * ENOUGH, [2.0] * ENOUGH)
    call = HookCall(clock)
    for _ in range(100):
        call.measure()
    assert (clock.asked, call.seconds) == (4 * ENOUGH, 1.0)


def test_noise_does_not_make_it_negative():
    call = HookCall(Calls([2.0], [1.0]))
    call.measure()
    call.measure()
    assert call.seconds == 0.0


def test_hooks_of_the_user_for_all_modules_do_not_see_it():
    seen, call = [], HookCall()
    with register_module_forward_pre_hook(lambda module, _: seen.append(module)):
        for _ in range(4):
            call.measure()
    assert (seen, call.seconds) == ([], 0.0)  # and a module that has such hooks anyway is called no slower for ours


def test_real_calls_take_time_and_can_be_saved():
    call = HookCall()
    for _ in range(2 * ENOUGH):
        call.measure()
    assert 0 < call.seconds < 0.1
    assert pickle.loads(pickle.dumps(call)).seconds == call.seconds


def test_each_module_with_a_hook_is_charged_for_its_call_in_quiet_steps():
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"visualizer": "dummy", "every": 1000}
    inspector = PyTorchInspector([ParameterNorm()], module=model, optimizer=optimizer, **options)
    state = inspector.state
    for number in range(40):
        if number == 20:
            assert state.is_quiet
            state.clock.take_quiet_steps()
            state.clock.calling = 100.0
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    steps, seconds = state.clock.take_quiet_steps()
    assert steps == 20
    assert 2000 < seconds < 2010
