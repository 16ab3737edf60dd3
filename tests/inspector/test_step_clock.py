"""How long steps took, by what was done in them; never waiting for a device."""

import statistics

import numpy as np
import pytest
import torch

from monitorch.inspector import step_clock
from monitorch.inspector.step_clock import (
    AFTER_COMPILING,
    JUST_NOW,
    KEPT,
    LONG,
    TIME_HOOKS_EVERY,
    Phase,
    StepClock,
)
from tests.inspector.fake_time import Time, end_on

IDLE, BASELINE, OBSERVE = Phase


class Steps:
    """Steps that end on a clock of their own."""

    def __init__(self):
        self.time = Time()
        self.clock = StepClock(clock=self.time)
        self.clock.mark()

    def end(self, seconds, phase=IDLE, in_hooks=0.0):
        begin = self.clock.enter()
        self.time.now += in_hooks
        self.clock.leave(begin)
        self.time.now += seconds - in_hooks
        return self.clock.end(phase)


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):  # other tests may have compiled something
    for name in ("number_of_graphs", "number_of_kernels"):
        monkeypatch.setattr(step_clock, name, lambda: 0)


@pytest.fixture(params=["number_of_graphs", "number_of_kernels"])
def compiled(nothing_compiled, monkeypatch, request):
    """What was compiled: graphs or kernels."""
    found = []
    monkeypatch.setattr(step_clock, request.param, lambda: len(found))
    return found


@pytest.fixture
def steps(nothing_compiled):
    return Steps()


def middle(numbers):
    return pytest.approx(statistics.median_low(numbers))


def test_the_middle_one_of_recent_durations(steps):
    durations = np.random.default_rng(0).uniform(0.1, 0.2, 150).tolist()
    assert steps.clock.usual(IDLE) is None
    for number, seconds in enumerate(durations, start=1):
        steps.end(seconds)
        assert steps.clock.usual(IDLE) == middle(durations[:number][-KEPT:])
    assert steps.clock.usual(OBSERVE) is None


@pytest.mark.parametrize(("phase", "left_out"), [(IDLE, 0), (BASELINE, 1), (OBSERVE, 2)])
def test_each_phase_warms_up_by_itself(phase, left_out, steps):
    for _ in range(left_out):
        steps.end(9.0, phase)
        assert steps.clock.usual(phase) is None
    steps.end(0.1, phase)
    assert steps.clock.usual(phase) == pytest.approx(0.1)
    assert [steps.clock.usual(other) for other in Phase if other != phase] == [None, None]


def test_the_first_boundary_has_no_step_before_it():
    clock = StepClock(clock=iter([5.0, 7.0]).__next__)
    clock.end(IDLE)
    assert clock.usual(IDLE) is None
    clock.end(IDLE)
    assert clock.usual(IDLE) == 2.0


def test_of_long_steps_none_is_left_out_once_an_idle_one_shows_that_they_are_long(steps):
    steps.end(5 * LONG, OBSERVE)
    steps.end(3 * LONG)
    steps.end(4 * LONG, OBSERVE)
    assert steps.clock.usual(OBSERVE) == 4 * LONG


def test_what_happens_in_an_interruption_belongs_to_no_step(steps):
    for _ in range(5):
        steps.end(1.0)
    steps.clock.interrupt()
    steps.end(1000.0)
    assert max(steps.clock._durations[IDLE]) == pytest.approx(1.0)
    steps.end(2.0)
    assert sorted(steps.clock._durations[IDLE]) == pytest.approx([1.0] * 5 + [2.0])


def test_a_mark_leaves_out_what_was_before_it(steps):
    steps.time.now += 100.0
    steps.clock.mark()
    steps.end(1.0)
    assert steps.clock.usual(IDLE) == pytest.approx(1.0)


def test_clear_forgets_everything(steps):
    for phase in (IDLE, IDLE, *[OBSERVE] * 5):
        steps.end(1.0, phase, in_hooks=0.5)
    steps.clock.clear()
    assert [steps.clock.usual(phase) for phase in Phase] == [None] * 3
    assert [steps.clock.usual_in_hooks(phase) for phase in Phase] == [0.0] * 3
    assert steps.clock.usual_extra(OBSERVE) is None
    steps.end(7.0)
    assert steps.clock.usual(IDLE) is None  # nobody knows when this one began


# time inside hooks


def test_time_inside_hooks_is_told_when_a_step_ends_and_usual_by_phase(steps):
    assert steps.end(1.0, IDLE, in_hooks=0.25) == 0.25
    assert [steps.end(1.0, OBSERVE, in_hooks=own) for own in (0.5, 0.5, 0.125, 0.25, 0.25)][-1] == 0.25
    assert (steps.clock.usual_in_hooks(IDLE), steps.clock.usual_in_hooks(OBSERVE)) == (0.25, 0.25)
    assert steps.clock.usual_in_hooks(BASELINE) == 0.0


def test_hooks_that_wait_for_others_do_not_make_an_idle_step_vanish(steps):
    steps.end(1.0, IDLE, in_hooks=0.99)
    assert steps.clock.usual(IDLE) == pytest.approx(0.5)


def test_an_idle_step_counts_without_its_hooks_and_an_observed_one_with_them(steps):
    for phase in (IDLE, *[OBSERVE] * 3):
        steps.end(1.0, phase, in_hooks=0.25)
    assert (steps.clock.usual(IDLE), steps.clock.usual(OBSERVE)) == (0.75, 1.0)


def test_a_pause_is_part_of_no_hook_and_of_no_step(steps):
    hook = steps.clock.enter()
    steps.time.now += 0.25
    pause = steps.clock.begin_pause()
    steps.time.now += 4.5
    assert steps.clock.end_pause(pause).noticed == 4.5
    steps.time.now += 0.25
    steps.clock.leave(hook)
    steps.time.now += 1.0
    assert steps.clock.end(IDLE) == 0.5
    assert steps.clock.usual(IDLE) == 0.75  # from the end of the pause, without hooks
    assert steps.clock.host_share == 1.0


def test_a_pause_in_which_something_is_compiled_costs_nothing(steps, compiled):
    pause = steps.clock.begin_pause()
    steps.time.now += 4.5
    compiled.append("new")
    assert steps.clock.end_pause(pause).noticed == 0.0
    pause = steps.clock.begin_pause()
    steps.time.now += 0.5
    assert steps.clock.end_pause(pause).noticed == 0.5


def test_on_the_host_the_time_inside_hooks_is_what_is_sure(steps):
    assert steps.clock.usual_share(OBSERVE) is None
    for _ in range(4):
        steps.end(1.0, OBSERVE, in_hooks=0.25)
    assert steps.clock.waits
    assert steps.clock.usual_share(OBSERVE) == 0.25


# how much longer


def test_a_step_is_compared_with_idle_ones_just_before_it(steps):
    assert steps.clock.usual_extra(OBSERVE) is None
    for _ in range(3):
        steps.end(0.3, OBSERVE)
    assert steps.clock.usual_extra(OBSERVE) is None  # no idle one yet
    found = []
    for number in range(40):
        bare = 0.1 + 0.01 * number  # each round is slower than the last
        for _ in range(JUST_NOW):
            steps.end(bare)
        found.append(0.05 + 0.001 * (number * 7 % 11))
        steps.end(bare + found[-1], OBSERVE)
        assert steps.clock.usual_extra(OBSERVE) == middle(found)
    assert steps.clock.usual(OBSERVE) - steps.clock.usual(IDLE) < 0  # old ones beside new ones


def test_a_step_that_was_shorter_than_idle_ones_counts_as_that(steps):
    for phase in (IDLE, *[BASELINE] * 4):
        steps.end(1.0 if phase == IDLE else 0.75, phase)
    assert steps.clock.usual_extra(BASELINE) == -0.25


# compilation


def test_a_step_that_compiles_something_is_left_out_and_those_after_it(steps, compiled):
    for _ in range(5):
        steps.end(0.1, OBSERVE)
    compiled.append("new")
    for _ in range(1 + AFTER_COMPILING):
        steps.end(60.0, OBSERVE)
    steps.end(0.1, OBSERVE)
    assert sorted(steps.clock._durations[OBSERVE]) == pytest.approx([0.1] * 4)


def test_only_the_phase_that_compiled_waits(steps, compiled):
    compiled.append("new")
    steps.end(60.0, IDLE)
    steps.end(9.0, BASELINE)
    steps.end(0.5, BASELINE)
    assert steps.clock.usual(BASELINE) == 0.5
    assert steps.clock.usual(IDLE) is None


def test_a_long_step_that_compiles_is_left_out_too(steps, compiled):
    steps.end(2 * LONG)
    compiled.append("new")
    steps.end(60.0, OBSERVE)
    steps.end(3 * LONG, OBSERVE)
    assert steps.clock.usual(OBSERVE) == 3 * LONG


# on a device


def test_device_times_are_read_only_once_they_are_there(device):
    clock = StepClock("cuda")
    assert not clock.waits
    for _ in range(9):
        end_on(device, clock, 2.0)
    assert clock.usual(IDLE) is None
    device.done = 12.0
    assert clock.usual(IDLE) == 2.0
    assert len(clock._durations[IDLE]) == 5
    device.done = device.submitted
    assert clock.usual(IDLE) == 2.0
    assert len(clock._durations[IDLE]) == 8


def test_a_device_that_falls_behind_does_not_pile_up_events(device):
    clock = StepClock("cuda:0")
    for _ in range(1000):
        end_on(device, clock, 1.0)
    assert len(clock._pending) <= KEPT
    device.done = device.submitted
    assert clock.usual(IDLE) == 1.0
    assert len(clock._durations[IDLE]) <= KEPT


def test_steps_that_are_captured_into_a_graph_are_not_measured(device):
    clock = StepClock("cuda")
    for seconds in (1.0, 1.0, 1.0):
        end_on(device, clock, seconds)
    device.capturing = True
    end_on(device, clock, 50.0)
    assert clock.usual(IDLE) is None  # nobody asks the device now
    device.capturing = False
    end_on(device, clock, 50.0)
    end_on(device, clock, 1.0)
    device.done = device.submitted
    assert clock.usual(IDLE) == 1.0
    assert list(clock._durations[IDLE]) == [1.0] * 3


def hook_on(device, clock, seconds):
    begin = clock.enter()
    device.submitted += seconds
    clock.leave(begin)


def test_where_no_step_is_idle_some_have_their_hooks_timed_on_the_device(device):
    clock = StepClock("cuda", clock=Time())
    clock.mark()
    for _ in range(4 * TIME_HOOKS_EVERY):
        for own in (0.25, 0.5):
            hook_on(device, clock, own)
        end_on(device, clock, 1.0, OBSERVE)
        device.done = device.submitted
    assert clock.usual(OBSERVE) == 1.75
    assert clock.usual_share(OBSERVE) == 0.75
    assert len(clock._on_device[OBSERVE]) == 3


def test_hooks_are_not_timed_on_the_device_once_idle_steps_tell_what_they_cost(device):
    clock = StepClock("cuda", clock=Time())
    clock.mark()
    for number in range(4 * TIME_HOOKS_EVERY):
        hook_on(device, clock, 0.5)
        end_on(device, clock, 1.0, IDLE if number == 5 else OBSERVE)
        device.done = device.submitted
    assert clock.usual_share(OBSERVE) is None
    assert clock.usual_extra(OBSERVE) == 0.0  # the idle one had the hook, too


def test_a_hook_that_is_captured_has_no_events(device):
    clock = StepClock("cuda", clock=Time())
    clock.mark()
    for number in range(3 * TIME_HOOKS_EVERY):
        device.capturing = number % 2 == 0
        hook_on(device, clock, 0.5)
        device.capturing = False
        end_on(device, clock, 1.0, OBSERVE)
        device.done = device.submitted
    assert set(clock._on_device[OBSERVE]) <= {0.5}


def test_another_device_begins_from_nothing_and_the_same_does_not(steps):
    steps.end(1.0)
    steps.clock.use("cpu")
    assert steps.clock.usual(IDLE) == 1.0
    steps.clock.use("cuda")
    assert steps.clock.usual(IDLE) is None


def pause_on(device, clock, time, on_host, on_device):
    begin = clock.begin_pause()
    time.now += on_host
    device.submitted += on_device
    return clock.end_pause(begin)


def test_a_device_that_works_on_notices_only_some_of_what_the_host_does(device):
    time = Time()
    clock = StepClock("cuda", clock=time)
    assert clock.host_share == 1.0
    device.submitted = 1.0
    for on_device in (2.0, 0.0, 0.5, 9.0):  # the first one is long ago
        pause_on(device, clock, time, 2.0, on_device)
    assert clock.host_share == 1.0  # nothing was read yet
    device.done = device.submitted
    assert clock.usual(IDLE) is None  # reads what is there
    assert clock.host_share == pytest.approx((0.0 + 0.25 + 1.0) / 3)
    device.capturing = True
    pause_on(device, clock, time, 2.0, 0.0)
    device.capturing = False
    assert clock.host_share == pytest.approx(1.25 / 3)


def test_a_pause_on_a_device_is_what_the_device_has_noticed_of_it(device):
    time = Time()
    clock = StepClock("cuda", clock=time)
    device.submitted = 1.0
    pauses = [pause_on(device, clock, time, 2.0, on_device) for on_device in (0.0, 0.5, 9.0)]
    assert [pause.noticed for pause in pauses] == [None] * 3  # nobody waits for it
    device.done = device.submitted
    assert clock.usual(IDLE) is None  # reads what is there
    assert [pause.noticed for pause in pauses] == [0.0, 0.5, 2.0]
    assert [pause.seconds for pause in pauses] == [2.0] * 3


@pytest.mark.parametrize(
    ("on_device", "idle", "host", "waits"),
    [(0.0, 0.0, 0.0, False), (0.5, 0.25, 0.25, False), (1.5, 0.75, 0.75, True), (3.0, 1.5, 1.0, True)],
    ids=str,
)
def test_what_hooks_of_idle_steps_cost_is_measured_on_the_device(on_device, idle, host, waits, device):
    time = Time()
    clock = StepClock("cuda", clock=time)
    assert not clock.device_waits  # it is not known yet
    for _ in range(5):
        clock.mark(with_hooks=True)
        begin = clock.enter()
        time.now += 2.0
        device.submitted += on_device
        clock.leave(begin)
        end_on(device, clock, 1.0)
        device.done = device.submitted
    assert clock.usual(IDLE) == 1.0 + on_device - min(on_device, (1.0 + on_device) / 2)
    assert (clock.idle_share, clock.host_share, clock.device_waits) == (idle, host, waits)


def test_time_that_the_events_themselves_take_does_not_make_hooks_seem_cheap(device, monkeypatch):
    time, event = Time(), device.event

    def dear_event(enable_timing):
        time.now += 3.0
        device.submitted += 3.0  # the device has nothing else to do, and waits for the host
        return event(enable_timing)

    monkeypatch.setattr(torch.cuda, "Event", dear_event)
    clock = StepClock("cuda", clock=time)
    for _ in range(5):
        clock.mark(with_hooks=True)
        begin = clock.enter()
        time.now += 2.0
        device.submitted += 2.0
        clock.leave(begin)
        end_on(device, clock, 10.0)
        device.done = device.submitted
    assert clock.usual(IDLE) is not None  # reads what is there
    assert clock.idle_share == 1.0


def test_an_idle_step_on_a_device_counts_without_what_it_noticed_of_hooks(device):
    time = Time()
    clock = StepClock("cuda", clock=time)
    device.submitted = 1.0
    hook = clock.enter()
    pause_on(device, clock, time, 2.0, 1.0)  # half of it
    clock.leave(hook)
    device.done = device.submitted
    assert clock.usual(IDLE) is None
    begin = clock.enter()
    time.now += 0.5
    clock.leave(begin)
    end_on(device, clock, 1.0)
    device.done = device.submitted
    assert clock.usual(IDLE) == 0.75


@pytest.mark.parametrize("where", [None, "cuda"])
def test_hooks_of_quiet_steps_are_counted_and_not_taken_for_those_of_others(where, device):
    time = Time()
    clock = StepClock(where, clock=time)
    clock.mark()
    for _ in range(9):
        clock.spent = 0.5
        time.now += 1.0
        end_on(device, clock, 1.0)
        device.done = device.submitted
    assert (clock.usual(IDLE), clock.usual_in_hooks(IDLE)) == (0.5, 0.5)
    for number in range(20):
        clock.spent = 0.9 if number == 7 else 0.001  # one was interrupted
        time.now += 1.0
        clock.end_quietly(time())
    assert clock.take_quiet_steps() == (20, pytest.approx(20 * 0.001))
    assert clock.take_quiet_steps() == (0, 0.0)
    assert clock.usual_in_hooks(IDLE) == 0.5
    assert clock.usual(IDLE) == pytest.approx(0.5 if where else 1.0 - 0.001)


def test_a_step_that_is_skipped_has_its_hooks_and_no_duration(steps):
    begin = steps.clock.enter()
    steps.time.now += 0.25
    steps.clock.leave(begin)
    assert steps.clock.skip() == 0.25
    assert steps.end(1.0) == 0.0
    assert steps.clock.usual(IDLE) is None
    steps.end(2.0)
    assert steps.clock.usual(IDLE) == 2.0


@pytest.mark.parametrize(
    ("idle", "extra", "is_bound"),
    [
        (1, 0.0, True),
        (2, 0.0, True),
        (8, 0.0, False),
        (8, 0.1, False),
        (8, 0.2, True),
        (31, 0.3, True),
        (32, 0.3, False),
    ],
)
def test_idle_steps_that_all_come_soon_after_an_observed_one_may_be_slower_than_bare_ones(idle, extra, is_bound, steps):
    for _ in range(10):
        steps.end(2.0, BASELINE)
        steps.end(3.0, OBSERVE)
        for place in range(idle):
            steps.end(1.0 + (extra if place == 0 else extra / 2 if place == 1 else 0.0))
    steps.end(2.0, BASELINE)
    assert steps.clock.is_never_calm == is_bound


@pytest.mark.parametrize("quiet", [True, False])
def test_what_idle_steps_take_longer_after_observed_ones_is_told_once(quiet, steps):
    for _ in range(10):
        steps.end(3.0, OBSERVE)
        for seconds in (1.5, 1.25, *[1.0] * 10):
            if quiet:
                steps.time.now += seconds
                steps.clock.end_quietly(steps.time.now)
            else:
                steps.end(seconds)
    assert steps.clock.usual(IDLE) == pytest.approx(1.0)
    assert steps.clock.take_aftermaths() == pytest.approx(9 * 0.75)  # nothing was known to compare the first ones with
    assert steps.clock.take_aftermaths() == 0


def test_a_hook_in_which_a_step_ends_is_of_both_steps(steps):
    steps.end(1.0)
    begin = steps.clock.enter()
    steps.time.now += 0.25
    assert steps.clock.end(OBSERVE) == pytest.approx(0.25)
    steps.time.now += 0.125
    steps.clock.leave(begin)
    assert steps.end(1.0, in_hooks=0.5) == pytest.approx(0.625)
