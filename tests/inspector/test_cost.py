"""What observing costs is shown as it is, whatever it is made of."""

import random
import threading
from itertools import product

import pytest

from monitorch.inspector.cost import Cost
from monitorch.inspector.step_clock import Phase, StepClock
from tests.inspector.fake_time import Time
from tests.inspector.simulation import DeviceBehind, Prices, Simulation, observing
from tests.marks import slow, some_fast

IDLE, BASELINE, OBSERVE = Phase

ALLOWANCE = {"budget": 0.03, "head_start": 2.0}


def is_true(run):
    """Whether the shown overhead is within a fifth, or one percentage point, of what was really added."""
    truths, shown = run.recent_overheads(), run.cost.overhead
    least, most = min(truths), max(truths)
    return least - max(0.2 * least, 0.01) <= shown <= most + max(0.2 * most, 0.01)


CASES = {
    "1 ms": (0.001, observing(0.001), ALLOWANCE, 20),
    "1 ms, dear": (0.001, observing(0.004), ALLOWANCE, 20),
    "40 ms": (0.04, observing(0.016), ALLOWANCE, 300),
    "10 s": (10.0, observing(1.0), ALLOWANCE, 6000),
    "10 s, dear": (10.0, observing(9.0), ALLOWANCE, 20_000),
    "ticks": (0.001, observing(0.002, switch=0.0002, tick=0.004, store=0.006), ALLOWANCE, 20),
    "idle hooks": (0.001, Prices(hooks=(0.00001, 0.0005, 0.001), tick=0.01), ALLOWANCE, 20),
    "resting": (0.04, Prices(hooks=(0.004, 0.003, 0.006), resting=0.00003, kernels=(0, 0.003, 0.004)), ALLOWANCE, 60),
    "kernels": (0.01, Prices(kernels=(0.0, 0.002, 0.004)), ALLOWANCE, 60),
    "budget": (0.01, observing(0.004, tick=0.005), {"budget": 0.02}, 60),
    "budget, cheap": (0.01, observing(0.0001), {"budget": 0.02}, 60),
    "aftermath": (0.001, observing(0.002, aftermath=(0.0008, 0.0003)), {"every": 10}, 20),
    "aftermath, budget": (0.001, observing(0.002, aftermath=(0.0012, 0.0004)), {"budget": 0.05}, 20),
    "aftermath, allowance": (0.001, observing(0.002, aftermath=(0.0008, 0.0003)), ALLOWANCE, 20),
    "every third": (0.01, observing(0.01, tick=0.01), {"every": 3}, 60),
    "every hundredth": (0.01, observing(0.5), {"every": 100}, 200),
    "function": (0.01, observing(0.01), {"every": lambda step: step % 7 in (0, 1)}, 30),
}


PLAIN, IN_GRAPH, QUIET = {}, {"in_graph": True}, {"quiet": True}
OFTEN = "1 ms", "40 ms", "resting", "budget"


@pytest.mark.parametrize(
    ("case", "how"),
    some_fast(product(CASES, (PLAIN, IN_GRAPH, QUIET)), lambda case, how: how == PLAIN or case in OFTEN),
    ids=str,
)
def test_the_shown_overhead_is_what_was_added(case, how):
    bare, prices, options, seconds = CASES[case]
    run = Simulation(bare, prices, options, tick_every=max(1.0, 20 * bare), **how)
    for part in (0.4, 0.6, 0.8, 1.0):
        run.run(part * seconds)
        assert is_true(run)
    assert not run.cost.lacks_idle_steps
    assert run.cost.spent == pytest.approx(run.spent, rel=0.05)
    assert run.cost.bare == pytest.approx(run.trained, rel=0.02)


@pytest.mark.parametrize("case", ["1 ms", "40 ms", "10 s", "ticks", "resting", "kernels", "budget", "every third"])
@pytest.mark.parametrize("quiet", [False, True])
def test_the_shown_overhead_is_true_on_a_device(case, quiet, device):
    bare, prices, options, seconds = CASES[case]
    run = Simulation(bare, prices, options, tick_every=max(1.0, 20 * bare), device=device, lag=3 * bare, quiet=quiet)
    for part in (0.5, 1.0):
        run.run(part * seconds)
        assert is_true(run)


HIDDEN = {
    "all": Prices(hooks=(0.0001, 0.01, 0.015), kernels=(0.0, 0.002, 0.004), tick=0.004, store=0.01),
    "some": Prices(hooks=(0.0001, 0.01, 0.04), kernels=(0.0, 0.002, 0.004), tick=0.004, store=0.01),
    "kernels only": Prices(kernels=(0.0, 0.003, 0.006)),
    "idle": Prices(hooks=(0.002, 0.01, 0.04), kernels=(0.0, 0.002, 0.004), tick=0.004, store=0.01),
}


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}, {"every": 10}], ids=str)
@pytest.mark.parametrize("prices", HIDDEN)
def test_what_a_device_that_is_behind_the_host_hides_is_not_shown(prices, options, quiet, device):
    run = DeviceBehind(0.04, HIDDEN[prices], options, tick_every=1.0, device=device, quiet=quiet, host=0.02, ahead=0.03)
    for seconds in (25, 40, 60):
        run.run(seconds)
        assert is_true(run)


@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}, {"every": 10}], ids=str)
@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_the_shown_overhead_is_true_though_no_two_steps_take_the_same_time(options, seed):
    stream = random.Random(seed)
    run = Simulation(lambda _: 0.01 * stream.lognormvariate(0, 0.3), observing(0.005), options).run(100)
    assert is_true(run)


@pytest.mark.parametrize(("before", "after"), [(0.01, 0.02), (0.02, 0.01)])
@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}, {"every": 10}], ids=str)
def test_the_shown_overhead_follows_steps_that_become_longer_or_shorter(before, after, options):
    run = Simulation(lambda step: before if step < 3000 else after, observing(0.005), options).run(steps=3000)
    for _ in range(10):
        run.run(run.took + 5)
        assert is_true(run)


def test_in_the_dense_stretch_it_follows_after_a_while():
    run = Simulation(lambda step: 0.01 if step < 50 else 0.02, observing(0.01), {"budget": 0.03, "head_start": 30})
    run.run(40)
    assert is_true(run)


def test_evaluations_count_with_what_hooks_take_in_them():
    def evaluate(run):
        if run.number % 50 == 1:
            run.state.begin_evaluation()
            run.leave_out(1.0)
            run.in_hook(0.01)

    run = Simulation(0.01, observing(0.001), {"every": 10}, between=evaluate).run(60)
    assert run.spent / run.trained > 0.01 / 0.5
    assert is_true(run)
    assert run.cost.spent == pytest.approx(run.spent, rel=0.05)


# where no step is idle


@pytest.mark.parametrize("every", [1, 2, lambda step: True])
def test_without_idle_steps_it_is_the_least_that_observing_can_have_cost(every):
    run = Simulation(0.01, observing(0.01), {"every": every}).run(30)
    assert run.cost.lacks_idle_steps
    assert 0.5 * run.spent < run.cost.spent < run.spent
    assert 0.25 < run.cost.overhead < run.recent_overheads()[0]


@pytest.mark.parametrize("every", [1, 2])
def test_if_all_time_is_inside_hooks_the_bound_is_what_it_costs(every):
    prices = Prices(hooks=(0.0, 0.003, 0.003), tick=0.02)
    run = Simulation(0.01, prices, {"every": every}, tick_every=1.0).run(30)
    assert run.cost.lacks_idle_steps
    assert run.cost.overhead == pytest.approx(run.recent_overheads()[0], rel=0.02)


def test_ticks_count_where_no_step_is_idle():
    costs = [
        Simulation(0.01, observing(0.002, store=own), {"every": 1}, tick_every=0.5).run(30).cost.overhead
        for own in (0.0, 0.05)
    ]
    assert costs[1] - costs[0] == pytest.approx(0.05 / (0.5 * 0.0108 / 0.012), rel=0.02)


def test_on_a_device_the_bound_comes_from_events(device):
    run = Simulation(0.01, Prices(hooks=(0.0, 0.004, 0.004)), {"every": 1}, device=device, lag=0.05).run(30)
    assert run.cost.lacks_idle_steps
    assert run.cost.overhead == pytest.approx(0.4, rel=0.05)


def test_one_idle_step_is_enough_to_know():
    run = Simulation(0.01, observing(0.01), {"every": lambda step: step != 50})
    run.cadence.needs_baseline = False
    run.run(steps=49)
    assert run.cost.lacks_idle_steps
    run.run(steps=20)
    assert not run.cost.lacks_idle_steps
    assert is_true(run.run(40))


# while it is not known


@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}, {"every": 1}, {"every": 2}, {"every": 10}], ids=str)
def test_it_is_not_known_before_anything_was_measured(options):
    assert Simulation(0.01, observing(0.01), options).cost.overhead is None


@pytest.mark.parametrize("every", [3, 10])
def test_it_is_not_known_while_the_cost_of_observed_steps_is_not(every):
    run = Simulation(0.01, observing(0.01), {"every": every}).run(steps=every - 1)
    assert run.cost.overhead in (None, 0.0)  # nothing was observed yet
    for _ in range(2 * every):
        run.step()
        assert run.cost.overhead is None
    run.step()
    assert run.cost.overhead == pytest.approx(run.spent / run.trained)


def test_a_clock_that_stands_still_shows_nothing():
    assert Simulation(0.0, Prices(), {"every": 3}).run(steps=50).cost.overhead is None


def test_it_is_never_negative():
    run = Simulation(0.02, Prices(kernels=(0.0, -0.01, -0.01)), {"every": 4}).run(steps=200)
    assert run.cost.overhead == 0.0


# by itself


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def cost(time):
    clock = StepClock(clock=time)
    clock.mark()
    return Cost(clock)


def end(cost, time, seconds, phase=IDLE):
    time.now += seconds
    cost.end_step(phase, cost._clock.end(phase))


def test_what_is_spent_elsewhere_counts_from_any_thread(cost, time):
    end(cost, time, 1.0)
    threads = [threading.Thread(target=cost.spend, args=(0.25,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cost.spend_on_tick(0.5)
    cost.settle()
    assert (cost.spent, cost.bare, cost.in_ticks) == (1.5, 1.0, 0.5)


def test_a_tick_costs_what_a_device_has_noticed_of_it_once_that_is_known(cost, time, device):
    cost._clock.use("cuda")
    for on_device in (0.125, 0.0, 8.0):
        begin = cost._clock.begin_pause()
        time.now += 0.5
        device.submitted += on_device
        cost.spend_on_tick(0.0, cost._clock.end_pause(begin))
    cost.settle()
    assert (cost.spent, cost.in_ticks) == (0.0, 1.5)
    device.done = device.submitted
    cost.settle()
    cost.settle()
    assert (cost.spent, cost.in_ticks) == (0.125 + 0.5, 1.5)


def test_ticks_are_counted_also_before_a_step_is_known(cost):
    cost.spend_on_tick(0.5)
    cost.settle()
    assert (cost.spent, cost.overhead) == (0.5, None)


def test_steps_are_paid_once_their_price_is_known(cost, time):
    for phase in (IDLE, OBSERVE, OBSERVE):
        end(cost, time, 0.1 if phase == IDLE else 0.3, phase)
    cost.settle()
    assert (cost.spent, cost.bare) == pytest.approx((0.0, 0.1))
    end(cost, time, 0.3, OBSERVE)
    cost.settle()
    assert (cost.spent, cost.bare) == pytest.approx((0.6, 0.4))


def test_a_saved_sum_goes_on_and_its_overhead_is_of_new_steps(cost, time):
    for phase in (IDLE, *[OBSERVE] * 9):
        end(cost, time, 0.1 if phase == IDLE else 0.3, phase)
    saved = cost.state_dict()
    assert saved == pytest.approx({"spent": 1.8, "bare": 1.0, "on_steps": 1.8, "on_idle": 0.0})
    other = Time()
    clock = StepClock(clock=other)
    clock.mark()
    again = Cost(clock)
    again.load_state_dict(saved)
    assert (again.spent, again.bare, again.overhead) == (saved["spent"], saved["bare"], None)
    end(again, other, 0.1)
    again.spend(0.05)
    assert again.overhead == pytest.approx(0.5)
    assert (again.spent, again.bare) == pytest.approx((1.85, 1.1))


@pytest.mark.parametrize("quiet", [False, True])
def test_what_hooks_of_idle_steps_cost_is_known_apart(quiet):
    prices = Prices(hooks=(0.0002, 0.003, 0.006), tick=0.01, store=0.01)
    run = Simulation(0.01, prices, {"budget": 0.05}, tick_every=1.0, quiet=quiet).run(60)
    expected = 0.02 * run.phases.count(IDLE) / len(run.phases)
    assert run.cost.idle_overhead == pytest.approx(expected, rel=0.05)
    again = Cost(StepClock(clock=Time()))
    assert again.idle_overhead == 0.0
    again.load_state_dict(run.cost.state_dict())
    assert again.idle_overhead == pytest.approx(expected, rel=0.05)


def test_the_shown_overhead_looks_back_some_seconds_and_many_steps():
    run = Simulation(0.01, observing(0.01), ALLOWANCE).run(200)
    assert run.cost.spent / run.cost.bare > 0.035
    assert run.cost.overhead == pytest.approx(0.03, abs=0.002)
    assert not run.cadence.shows_head_start
    slow = Simulation(1.0, observing(1.0), ALLOWANCE).run(90)  # fewer than a hundred steps
    assert slow.cost.overhead == pytest.approx(slow.spent / slow.trained)
    assert 80 < slow.cost.recent_steps <= 90  # prices of the newest are not known yet
    assert run.cost.recent_steps >= 10.0 / 0.02  # seconds, of steps that take at most this long
