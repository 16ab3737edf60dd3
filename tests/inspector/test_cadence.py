"""Which steps are observed, and how a budget chooses."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from monitorch.errors import OptionError
from monitorch.inspector.cadence import Cadence, Phase
from tests.inspector.fake_time import Time, stamp_on

IDLE, LEAD, OBSERVE = Phase


class Run:
    """A training run whose steps take known times; ``phases`` holds that of each step, ``ns`` the n in force."""

    def __init__(self, idle=1.0, lead=None, observe=None, **options):
        self.time = Time()
        self.cadence = Cadence(clock=self.time, **options)
        self.set(idle, lead, observe)
        self.step, self.phases, self.ns = 0, [], []
        self.cadence.clock.interrupt()

    def set(self, idle, lead=None, observe=None):
        lead = idle if lead is None else lead
        self.seconds = {IDLE: idle, LEAD: lead, OBSERVE: lead if observe is None else observe}

    def go(self, steps, extra=lambda step: 0.0):
        for _ in range(steps):
            self.step += 1
            phase = self.cadence.phase(self.step)
            self.ns.append(self.cadence.n)
            self.phases.append(phase)
            self.time.now += self.seconds[phase] + extra(self.step)
            self.cadence.stamp(phase)
        return self

    def true_overhead(self, steps):
        """What the last steps cost beyond idle ones, from the known times."""
        last = self.phases[-steps:]
        return sum(self.seconds[phase] - self.seconds[IDLE] for phase in last) / (steps * self.seconds[IDLE])


def letters(cadence, steps):
    return "".join(cadence.phase(step).name[0] for step in range(1, steps + 1))


@pytest.mark.parametrize(
    ("every", "with_lead", "without"),
    [
        (1, "OOOOOO", "OOOOOO"),
        (2, "BOBOBO", "IOIOIO"),
        (3, "IBOIBO", "IIOIIO"),
        (np.int64(5), "IIIBOI", "IIIIOI"),
        (lambda step: step in (1, 4, 5), "OIBOOI", "OIIOOI"),
        (lambda step: step % 3, "OOBOOB", "OOIOOI"),
        (lambda step: False, "IIIIII", "IIIIII"),
    ],
)
def test_phases_of_steps(every, with_lead, without):
    cadence = Cadence(every)
    assert letters(cadence, 6) == with_lead
    cadence.needs_baseline = False
    assert letters(cadence, 6) == without


def test_phases_are_numbers_in_the_order_of_what_they_do():
    assert (int(IDLE), int(LEAD), int(OBSERVE)) == (0, 1, 2)


def test_a_function_is_asked_once_for_each_step():
    asked = []
    cadence = Cadence(lambda step: asked.append(step) or step % 4 == 0)
    for step in range(1, 200):
        assert cadence.phase(step) == cadence.phase(step)
    assert asked == list(range(1, 201))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, "every=0 must be a whole number of at least 1, or a function of the step's number"),
        ({"every": -3}, "every=-3 must be a whole number of at least 1"),
        ({"every": True}, "every=True must be a whole number"),
        ({"every": 2.0}, r"every=2\.0 must be a whole number"),
        ({"every": "2"}, "every='2' must be a whole number"),
        ({"every": None}, "every=None must be a whole number"),
        ({"budget": 0}, "budget=0 must be a share of time between 0 and 1, such as 0.02 for two percent, or None"),
        ({"budget": 1}, "budget=1 must be a share of time"),
        ({"budget": 2.0}, r"budget=2\.0 must be a share of time"),
        ({"budget": -0.1}, r"budget=-0\.1 must be a share of time"),
        ({"budget": math.nan}, "budget=nan must be a share of time"),
        ({"budget": True}, "budget=True must be a share of time"),
        ({"budget": "2%"}, "budget='2%' must be a share of time"),
        ({"every": lambda step: True, "budget": 0.1}, "leave one of them out, or pass the smallest n"),
    ],
)
def test_impossible_options_are_refused_at_once(options, text):
    with pytest.raises(OptionError, match=text):
        Cadence(**options)


def test_repr_says_what_is_chosen_now():
    assert repr(Cadence(3)) == "Cadence(every=3, budget=None, n=3)"
    assert repr(Cadence(budget=0.5)) == "Cadence(every=1, budget=0.5, n=4)"


def test_each_phase_has_a_warm_up_of_its_own():
    run = Run(idle=1.0, lead=2.0, observe=3.0, every=4).go(16)
    assert [run.cadence.clock.samples(phase) for phase in Phase] == [4, 1, 1]  # the first boundary has none before it
    assert [run.cadence.clock.median(phase) for phase in Phase] == [1.0, 2.0, 3.0]


def test_of_many_idle_steps_only_the_first_and_the_last_are_measured():
    time = Time()
    cadence = Cadence(every=10, clock=time)
    measured = []
    for step in range(1, 41):
        phase, before = cadence.phase(step), cadence.clock._last
        time.now += 1
        cadence.stamp(phase, cadence.phase(step + 1) if phase == IDLE else None)
        if before is not None and cadence.clock._last is not None:
            measured.append(step)
    assert measured == [9, 10, 11, 19, 20, 21, 29, 30, 31, 39, 40]


@pytest.mark.parametrize("every", [3, 4, 10, 50, lambda step: step % 5 == 0, lambda step: step % 7 in (0, 1)])
@pytest.mark.parametrize("needs_baseline", [True, False])
def test_overhead_is_what_observing_adds(every, needs_baseline):
    run = Run(idle=2.0, lead=2.5, observe=3.5, every=every)
    run.cadence.needs_baseline = needs_baseline
    assert run.cadence.overhead is None
    run.go(2100)
    assert run.cadence.overhead == pytest.approx(run.true_overhead(2100))


def test_overhead_is_not_known_before_each_phase_was_measured():
    run = Run(observe=2.0, every=10).go(39)
    assert run.cadence.overhead is None
    run.go(11)
    assert run.cadence.overhead == pytest.approx(0.1)


def test_rare_long_steps_do_not_change_the_overhead():
    calm, rough = Run(lead=1.2, observe=1.5, every=5), Run(lead=1.2, observe=1.5, every=5)
    calm.go(300)
    rough.go(300, extra=lambda step: 500.0 if step % 13 == 0 else 0.0)
    assert rough.cadence.overhead == pytest.approx(calm.cadence.overhead)


def test_overhead_is_never_negative():
    assert Run(idle=2.0, lead=1.0, observe=1.0, every=4).go(100).cadence.overhead == 0.0


@pytest.mark.parametrize("every", [1, 2, lambda step: True])
def test_without_idle_steps_the_overhead_is_the_share_of_time_inside_hooks(every):
    run = Run(every=every)
    run.go(20)
    assert run.cadence.overhead is None
    for step in range(100):
        run.cadence.spend(0.05)
        run.cadence.spend(0.07 if step % 2 else 0.03)
        run.go(1)
    assert run.cadence.overhead == pytest.approx(0.1)


def test_rare_long_steps_do_not_change_the_share_of_time_inside_hooks():
    run = Run()
    for _ in range(100):
        run.cadence.spend(0.1)
        run.go(1, extra=lambda step: 700.0 if step % 20 == 0 else 0.0)
    assert run.cadence.overhead == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "times", "n"),
    [
        ({"budget": 0.1}, (1.0, 1.2, 1.5), 7),
        ({"budget": 0.35}, (1.0, 1.2, 1.5), 2),
        ({"budget": 0.5}, (1.0, 1.2, 1.5), 1),
        ({"budget": 0.5, "every": 3}, (1.0, 1.2, 1.5), 3),
        ({"budget": 0.01, "every": 3}, (1.0, 1.2, 1.5), 70),
        ({"budget": 0.1}, (1.0, 1.0, 1.0), 1),
        ({"budget": 0.1, "every": 6}, (1.0, 1.0, 1.0), 6),
        ({"budget": 0.000001}, (1.0, 1.5, 2.0), 10_000),
        ({"budget": 0.000001, "every": 20_000}, (1.0, 1.5, 2.0), 20_000),
    ],
)
def test_budget_chooses_the_smallest_n_that_it_allows(options, times, n):
    run = Run(*times, **options).go(60)
    assert run.cadence.n == n
    if n < 1000:
        run.go(20 * n)
        assert run.cadence.n == n
        assert run.true_overhead(4 * n) <= options["budget"] + 1e-12
        assert run.cadence.overhead == pytest.approx(run.true_overhead(4 * n))


def test_without_leads_the_budget_allows_more():
    run = Run(1.0, 1.2, 1.5, budget=0.1)
    run.cadence.needs_baseline = False
    assert run.go(60).cadence.n == 5
    assert LEAD not in run.phases


def test_calibration_has_steps_of_every_phase():
    run = Run(observe=2.0, budget=0.1).go(40)
    assert run.ns == [4] * 40
    assert {phase: run.phases.count(phase) for phase in Phase} == {IDLE: 20, LEAD: 10, OBSERVE: 10}
    assert run.cadence.n == 10


def test_calibration_lasts_until_each_phase_was_measured():
    run = Run(observe=11.0, every=30, budget=0.01)
    run.go(150)
    assert run.cadence.n == 30
    run.go(60)
    assert run.cadence.n == 1000


def test_a_clock_that_stands_still_keeps_the_calibration():
    run = Run(idle=0.0, budget=0.1).go(500)
    assert set(run.ns) == {4}
    assert run.cadence.overhead is None


def test_n_grows_at_once_and_shrinks_by_half_at_most():
    run = Run(1.0, 1.0, 1.1, budget=0.01).go(1000)
    run.set(1.0, 1.0, 3.0)
    run.go(20_000)
    assert run.cadence.n == 200
    run.set(1.0, 1.0, 1.1)
    run.go(20_000)
    assert run.cadence.n == 10
    changes = [(before, after) for before, after in pairwise(run.ns) if before != after]
    assert all(after >= before / 2 for before, after in changes)
    assert (4, 10) in changes
    assert (10, 200) in changes
    assert sum(after < before for before, after in changes) > 3


def test_n_is_reviewed_only_now_and_then():
    run = Run(1.0, 1.3, 2.0, budget=0.1)
    run.go(2000, extra=lambda step: (step * 37 % 101) / 300)
    changed = [step for step, (a, b) in enumerate(pairwise(run.ns), start=1) if a != b]
    assert changed[0] == 40
    assert all(later - earlier >= 64 for earlier, later in pairwise(changed))


def test_every_observed_step_has_the_step_before_it_whatever_is_chosen():
    run = Run(1.0, 1.3, 2.0, budget=0.1)
    run.go(5000, extra=lambda step: (step * 37 % 101) / 150)
    assert len(set(run.ns)) > 3
    assert run.phases[0] != OBSERVE
    after = [before for before, phase in pairwise(run.phases) if phase == OBSERVE]
    assert len(after) > 100
    assert IDLE not in after


def test_the_same_durations_give_the_same_choices():
    first, second = (Run(1.0, 1.3, 2.0, budget=0.1).go(1500, extra=lambda s: (s * 53 % 89) / 200) for _ in range(2))
    assert first.ns == second.ns
    assert first.phases == second.phases


def test_an_inspector_that_became_expensive_unseen_is_found_out():
    run = Run(10.0, 10.5, 10.9, budget=0.1).go(300)
    assert run.cadence.n == 1
    run.set(5.0, 5.5, 5.9)  # all steps are shorter, so that observed ones look cheap beside the idle ones of old
    run.go(600)
    assert run.cadence.n == 3
    assert run.true_overhead(30) <= 0.1


def test_with_nothing_idle_the_calibration_is_repeated_now_and_then():
    run = Run(1.0, 1.0, 1.01, budget=0.1).go(3000)
    assert 0 < run.phases.count(IDLE) / 3000 < 0.06
    assert set(run.ns) == {1, 4}


def test_restart_calibrates_anew():
    run = Run(observe=2.0, budget=0.1).go(500)
    assert run.cadence.n == 10
    run.cadence.restart()
    assert run.cadence.n == 4
    assert run.cadence.overhead is None
    assert run.go(60).cadence.n == 10


def test_budget_is_kept_on_a_device_whose_times_come_late(device):
    cadence = Cadence(budget=0.1, device="cuda")
    for step in range(1, 400):
        phase = cadence.phase(step)
        stamp_on(device, cadence, 1.7 if phase == OBSERVE else 1.0, phase)
        device.done = device.submitted - 5.0
    assert cadence.n == 7


@pytest.mark.parametrize("other", [None, "cpu", torch.device("cpu"), "meta"])
def test_another_device_means_the_time_of_the_host(other, device):
    time = Time()
    cadence = Cadence(every=3, device="cuda", clock=time)
    stamp_on(device, cadence, 5.0)
    cadence.use(other)
    for _ in range(5):
        time.now += 3.0
        cadence.stamp(IDLE)
    assert cadence.clock.median(IDLE) == 3.0


def test_naming_the_same_device_again_forgets_nothing():
    run = Run(every=3, device="cpu").go(20)
    run.cadence.use(torch.device("cpu"))
    assert run.cadence.clock.samples(IDLE) > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_on_a_real_device_nothing_waits_and_longer_steps_are_seen():
    cadence = Cadence(every=3, device="cuda")
    matrix = torch.randn(1024, 1024, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 61):
            phase = cadence.phase(step)
            for _ in range(200 if phase == OBSERVE else 20):
                torch.mm(matrix, matrix)
            cadence.stamp(phase)
        _ = cadence.overhead
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert cadence.clock.median(OBSERVE) > cadence.clock.median(IDLE) > 0
    assert cadence.overhead > 0


def test_several_processes_observe_the_steps_they_agreed_on():
    cadence = Cadence(budget=0.1)
    assert cadence.n == 4
    cadence.common_n = 3
    assert [step for step in range(1, 10) if cadence.phase(step) == OBSERVE] == [3, 6, 9]
    cadence.restart()
    assert cadence.common_n is None
