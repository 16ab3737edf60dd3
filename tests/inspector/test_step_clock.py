"""How long steps took, by what was done in them; never waiting for a device."""

import statistics

import numpy as np
import pytest

from monitorch.inspector.step_clock import KEPT, Phase, StepClock
from tests.inspector.fake_time import Time, stamp_on

IDLE, _, OBSERVE = Phase


def test_median_of_recent_durations_after_the_warm_up():
    time = Time()
    clock = StepClock(clock=time)
    durations = [9.0, 9.0, 9.0, *np.random.default_rng(0).uniform(1, 2, 100)]
    clock.stamp(IDLE)
    for number, seconds in enumerate(durations, start=1):
        time.now += seconds
        clock.stamp(IDLE)
        kept = durations[3:number][-KEPT:]
        assert clock.samples(IDLE) == len(kept)
        assert clock.median(IDLE) == (pytest.approx(statistics.median(kept)) if kept else None)
    assert clock.median(OBSERVE) is None


def test_what_happens_in_an_interruption_belongs_to_no_step():
    time = Time()
    clock = StepClock(clock=time)
    for _ in range(5):
        time.now += 1.0
        clock.stamp(IDLE)
    clock.interrupt()
    time.now += 1000.0
    clock.stamp(IDLE)
    time.now += 1.0
    clock.stamp(IDLE)
    assert (clock.samples(IDLE), clock.median(IDLE)) == (2, 1.0)


def test_device_times_are_read_only_once_they_are_there(device):
    clock = StepClock("cuda")
    for _ in range(9):
        stamp_on(device, clock, 2.0)
    assert clock.median(IDLE) is None
    device.done = 12.0
    assert (clock.median(IDLE), clock.samples(IDLE)) == (2.0, 2)
    device.done = device.submitted
    assert (clock.median(IDLE), clock.samples(IDLE)) == (2.0, 5)


def test_a_device_that_falls_behind_does_not_pile_up_events(device):
    clock = StepClock("cuda:0")
    for _ in range(1000):
        stamp_on(device, clock, 1.0)
    device.done = device.submitted
    assert clock.median(IDLE) == 1.0
    assert clock.samples(IDLE) <= KEPT


def test_steps_that_are_captured_into_a_graph_are_not_measured(device):
    clock = StepClock("cuda")
    for seconds in (1.0, 1.0, 1.0, 1.0, 1.0):
        stamp_on(device, clock, seconds)
    device.capturing = True
    stamp_on(device, clock, 50.0)
    device.capturing = False
    stamp_on(device, clock, 50.0)
    stamp_on(device, clock, 1.0)
    device.done = device.submitted
    assert (clock.median(IDLE), clock.samples(IDLE)) == (1.0, 2)
