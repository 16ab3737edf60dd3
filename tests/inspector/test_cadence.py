"""Which steps are observed, and how a budget is spent."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from monitorch.engine.ranks import merged
from monitorch.errors import OptionError
from monitorch.inspector import inspector_state, step_clock
from monitorch.inspector.agreements import Wishes
from monitorch.inspector.cadence import CHECK, CHECK_STEPS, FIRST_CHECK, GIFT, GIFT_EVERY, MEASURED, Cadence, Phase
from tests.inspector.fake_time import Time, end_on
from tests.inspector.simulation import Prices, Simulation, observing
from tests.marks import slow

IDLE, BASELINE, OBSERVE = Phase

ALLOWANCE = {"budget": 0.03, "head_start": 2.0}
HOW = pytest.mark.parametrize("how", [{}, {"in_graph": True}, {"quiet": True}], ids=["plain", "in graph", "quiet"])


def letters(cadence, steps):
    return "".join(cadence.phase(step).name[0] for step in range(1, steps + 1))


def allowed(simulation):
    """What observing may have cost by now."""
    return simulation.cadence.head_start + simulation.cadence.budget * simulation.trained


# a fixed share


@pytest.mark.parametrize(
    ("every", "with_baseline", "without"),
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
def test_phases_of_steps(every, with_baseline, without):
    assert letters(Cadence(every), 6) == with_baseline
    cadence = Cadence(every)
    cadence.needs_baseline = False
    assert letters(cadence, 6) == without


def test_phases_are_numbers_in_the_order_of_what_they_do():
    assert (int(IDLE), int(BASELINE), int(OBSERVE)) == (0, 1, 2)


def test_a_function_is_asked_once_for_each_step():
    asked = []
    cadence = Cadence(lambda step: asked.append(step) or step % 4 == 0)
    for step in range(1, 200):
        assert cadence.phase(step) == cadence.phase(step)
    assert asked == list(range(1, 201))


@pytest.mark.parametrize("every", [1, 3])
def test_a_given_number_means_exactly_that_whatever_it_costs(every):
    run = Simulation(0.01, observing(1.0), {"every": every}).run(steps=300)
    observed = [step for step, phase in enumerate(run.phases, start=1) if phase == OBSERVE]
    assert observed == list(range(every, 301, every))
    run.cadence.notice("anything")
    assert run.run(steps=30).phases.count(OBSERVE) == 330 // every


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
        ({"budget": 0.1, "head_start": -1}, "head_start=-1 must be a number of seconds, at least 0"),
        ({"budget": 0.1, "head_start": math.nan}, "head_start=nan must be a number of seconds"),
        ({"budget": 0.1, "head_start": math.inf}, "head_start=inf must be a number of seconds"),
        ({"budget": 0.1, "head_start": True}, "head_start=True must be a number of seconds"),
        ({"budget": 0.1, "head_start": "2s"}, "head_start='2s' must be a number of seconds"),
        ({"budget": 0.1, "head_start": None}, "head_start=None must be a number of seconds"),
        ({"head_start": 2.0}, r"head_start=2\.0 is for a budget: pass budget= too"),
        ({"every": 5, "head_start": 2.0}, r"head_start=2\.0 is for a budget: pass budget= too"),
    ],
)
def test_impossible_options_are_refused_at_once(options, text):
    with pytest.raises(OptionError, match=text):
        Cadence(**options)


def test_repr_says_what_was_chosen():
    assert repr(Cadence(3)) == "Cadence(every=3, budget=None, head_start=0.0)"
    assert repr(Cadence(budget=0.5, head_start=1)) == "Cadence(every=1, budget=0.5, head_start=1.0)"


# an account


@pytest.mark.parametrize("extra", [slow(0.0005), 0.001, slow(0.003)])
def test_millisecond_steps_are_dense_at_first_and_rare_later(extra):
    run = Simulation(0.001, observing(extra), ALLOWANCE).run(60)
    dense = run.dense_until
    assert dense == pytest.approx(2.0 / (extra * 7 / 8), rel=0.15)
    assert 1.063 <= run.ratio <= 1.07
    pair = 1.5 * extra
    assert run.observed_after(dense + 5000) == pytest.approx(pair / 0.03 / 0.001, rel=0.1)


def test_a_run_of_ten_minutes_costs_three_percent_and_the_head_start():
    run = Simulation(0.01, observing(0.01), ALLOWANCE).run(60)
    assert 1.063 <= run.ratio <= 1.07
    run.run(600)
    assert run.ratio == pytest.approx(1.0335, abs=0.0005)


def test_steps_of_40_ms_get_dense_and_then_one_in_some_twelve():
    run = Simulation(0.04, observing(0.0096), ALLOWANCE).run(600)
    assert 200 < run.dense_until < 320
    assert run.observed_after(1000) == pytest.approx(12, rel=0.1)
    assert run.ratio == pytest.approx(1.0335, abs=0.001)


def test_a_short_run_is_seen_nearly_whole():
    run = Simulation(0.02, observing(0.008), ALLOWANCE).run(steps=200)
    assert run.phases.count(OBSERVE) == 175


@pytest.mark.parametrize("extra", [0.3, 1.0, 3.0, 9.0])
@HOW
def test_steps_of_ten_seconds_spend_little_more_than_is_allowed(extra, how):
    run = Simulation(10.0, observing(extra), ALLOWANCE, **how)
    while run.took < 6000:
        run.step()
        # the price is known after the second observed step; a graph has twice been promised one more by then
        assert run.spent <= max(allowed(run), (4 if how else 2) * extra) + 1e-6
    assert run.phases.count(OBSERVE) > 6
    if extra > 0.3:  # else nearly all steps can be paid
        assert run.ratio == pytest.approx(1.03, abs=0.003)


def test_everything_counts_also_ticks_and_threads_and_hooks_that_are_put_on_and_off():
    prices = observing(0.002, switch=0.0002, tick=0.004, store=0.006)
    run = Simulation(0.0005, prices, ALLOWANCE, tick_every=1.0).run(60)
    assert 1.063 <= run.ratio <= 1.07
    assert run.observed_after(20_000) > 0.003 / 0.02 / 0.0005


COSTS = [slow(0.0005, 0.001), (0.001, 0.004), (0.04, 0.02), (0.2, 0.1), (0.2, 0.02), (10.0, 9.0), (10.0, 1.0)]


@pytest.mark.parametrize(("bare", "extra"), COSTS)
@HOW
def test_a_budget_is_spent_and_kept(bare, extra, how):
    own = observing(extra, switch=0.0001, tick=0.1 * min(bare, 0.04), store=0.15 * min(bare, 0.04))
    run = Simulation(bare, own, {"budget": 0.02}, tick_every=max(1.0, 10 * bare), **how)
    run.run(max(30.0, 2000 * bare))
    assert run.ratio == pytest.approx(1.02, abs=0.005)


def test_a_budget_is_kept_on_a_device_whose_times_come_late(device):
    run = Simulation(0.01, observing(0.01), {"budget": 0.02}, device=device, lag=0.05).run(60)
    assert run.ratio == pytest.approx(1.02, abs=0.005)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("noise", "extra"), [slow(0.1, 0.0005), (0.3, 0.002), slow(0.3, 0.01)])
def test_a_budget_is_kept_though_no_two_steps_take_the_same_time(noise, extra, on_device, quiet, request):
    stream = random.Random(7)
    options = {"device": request.getfixturevalue("device"), "lag": 0.05} if on_device else {}
    options["quiet"] = quiet
    noisy = Simulation(lambda _: 0.01 * stream.lognormvariate(0, noise), observing(extra), {"budget": 0.02}, **options)
    assert noisy.run(100).ratio == pytest.approx(1.02, abs=0.005)


@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}], ids=["allowance", "budget"])
def test_rare_long_steps_are_nobodys_cost(options):
    calm = Simulation(0.01, observing(0.01), options).run(steps=5000)
    rough = Simulation(lambda step: 0.5 if step % 97 == 0 else 0.01, observing(0.01), options).run(steps=5000)
    assert rough.phases.count(OBSERVE) == pytest.approx(calm.phases.count(OBSERVE), rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(0.01, 0.02), slow(0.02, 0.01), (0.02, 0.004)])
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_steps_that_become_longer_or_shorter_change_nothing_about_the_budget(before, after, on_device, quiet, request):
    options = {"device": request.getfixturevalue("device"), "lag": 0.05} if on_device else {}
    options["quiet"] = quiet
    run = Simulation(lambda step: before if step < 6000 else after, observing(0.005), ALLOWANCE, **options)
    run.run(steps=6000)
    spent, trained = run.spent, run.trained
    run.run(steps=6000)
    assert run.spent - spent == pytest.approx(0.03 * (run.trained - trained), abs=0.3)


@pytest.mark.parametrize(("before", "after"), [(0.01, 0.02), (0.02, 0.01)])
def test_steps_that_change_in_the_dense_stretch_cost_about_the_same(before, after):
    run = Simulation(lambda step: before if step < 100 else after, observing(0.01), ALLOWANCE).run(60)
    assert run.spent == pytest.approx(allowed(run), rel=0.25)


def test_observing_that_becomes_dear_or_cheap_is_noticed():
    run = Simulation(0.01, observing(0.001), {"budget": 0.02}).run(30)
    often = run.observed_after(1000)
    run.prices = observing(0.02)
    run.run(50)  # a median turns after half of its samples
    spent, trained, step = run.spent, run.trained, run.number
    run.run(200)
    assert run.observed_after(step + 5000) == pytest.approx(20 * often, rel=0.2)
    assert (run.spent - spent) / (run.trained - trained) == pytest.approx(0.02, abs=0.006)
    run.prices = observing(0.001)
    step = run.number
    run.run(450)
    assert run.observed_after(run.number - 2000) == pytest.approx(often, rel=0.2)


def test_an_evaluation_between_steps_counts_only_with_its_hooks():
    def evaluate(run):
        if run.number % 100 == 1:
            run.state.begin_evaluation()
            run.leave_out(1.0)
            run.in_hook(0.1 if run.state.wants_data() else 0.005)

    run = Simulation(0.01, observing(0.01), ALLOWANCE, between=evaluate).run(60)
    assert run.spent == pytest.approx(allowed(run), rel=0.03)
    assert run.cost.spent == pytest.approx(run.spent, rel=0.03)


@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}], ids=["allowance", "budget"])
def test_compiling_is_not_charged(options, monkeypatch):
    graphs = []
    monkeypatch.setattr(step_clock, "number_of_graphs", lambda: len(graphs))

    def compile_now(run):
        if run.number in (1, 2, 9, 200, 5000):
            graphs.append(run.number)
            run.leave_out(20.0)

    run = Simulation(0.01, observing(0.01), options, between=compile_now).run(steps=6000)
    assert len(graphs) == 5
    assert run.spent == pytest.approx(allowed(run), rel=0.03)
    assert run.cost.spent == pytest.approx(run.spent, rel=0.02)


@pytest.mark.parametrize("every", [1, 5, 7])
def test_with_a_budget_every_is_the_smallest_n(every):
    run = Simulation(0.01, observing(0.0001), {"budget": 0.02, "every": every}).run(steps=2000)
    observed = [step for step, phase in enumerate(run.phases, start=1) if phase == OBSERVE]
    if every == 1:
        assert len(observed) > 1700
    else:
        assert all(step % every == 0 for step in observed)
        assert len(observed) >= 2000 // every - 2
        assert all(run.phases[step - 2] == BASELINE for step in observed)


def test_without_comparisons_no_step_is_a_baseline_and_more_are_observed():
    run, plain = (Simulation(0.01, observing(0.01), {"budget": 0.02}) for _ in range(2))
    plain.cadence.needs_baseline = False
    assert BASELINE not in plain.run(60).phases
    assert plain.phases.count(OBSERVE) == pytest.approx(1.5 * run.run(60).phases.count(OBSERVE), rel=0.05)
    assert plain.ratio == pytest.approx(1.02, abs=0.005)


def test_a_clock_that_stands_still_does_no_harm():
    run = Simulation(0.0, Prices(), ALLOWANCE).run(steps=500)
    assert run.cost.overhead is None
    assert run.phases.count(OBSERVE) > 400


def test_the_first_steps_of_a_budget_are_idle_and_then_pairs_show_what_they_cost():
    run = Simulation(1.0, observing(0.5), {"budget": 0.02}).run(steps=200)
    assert run.phases[:5] == [IDLE, IDLE, IDLE, BASELINE, OBSERVE]
    assert 1 <= run.phases[:40].count(OBSERVE) <= 4


# what is promised about every run

RUNS = {
    "allowance": (0.01, observing(0.01), ALLOWANCE),
    "budget": (0.01, observing(0.004), {"budget": 0.02}),
    "cheap": (0.01, observing(0.0001), {"budget": 0.02}),
    "dear": (10.0, observing(9.0), ALLOWANCE),
    "every fifth": (0.01, observing(0.01), {"budget": 0.05, "every": 5}),
}


@pytest.fixture(params=RUNS)
def case(request):
    bare, prices, options = RUNS[request.param]
    stream = random.Random(3)
    return lambda **others: Simulation(lambda _: bare * stream.lognormvariate(0, 0.2), prices, options, **others)


@HOW
def test_a_baseline_step_is_always_followed_by_an_observed_one_and_of_steps_in_a_row_some_are_idle(case, how):
    run = case(**how).run(steps=4000)
    assert {after for before, after in pairwise(run.phases) if before == BASELINE} <= {OBSERVE}
    assert OBSERVE in run.phases
    busy = "".join(str(int(phase != IDLE)) for phase in run.phases).split("0")
    assert max(map(len, busy)) <= CHECK + 1
    dense = run.phases[: max(0, run.dense_until - 3 * CHECK)]  # the last pairs may begin anywhere
    for place in range(CHECK_STEPS):
        assert set(dense[FIRST_CHECK - 1 + place :: CHECK]) <= {IDLE}


@pytest.mark.parametrize("in_graph", [False, True])
def test_what_was_said_about_a_step_never_changes(case, in_graph, monkeypatch):
    said, original = {}, Cadence.phase

    def phase(cadence, step):
        found = original(cadence, step)
        assert said.setdefault(step, found) == found
        return found

    monkeypatch.setattr(Cadence, "phase", phase)
    run = case(in_graph=in_graph)
    for number in range(1, 3000):
        run.step()
        run.cadence.phase(run.number)
        if number % 500 == 0:
            run.cadence.notice(str(number))
    assert [said[step] for step in range(1, 3000)] == run.phases


def test_a_graph_is_told_two_steps_ahead():
    run, plain = (Simulation(0.01, observing(0.01), ALLOWANCE, in_graph=ahead) for ahead in (True, False))
    coming = []
    for _ in range(3000):
        run.step()
        coming.append(run.state.observing)
    assert coming[:-1] == [phase != IDLE for phase in run.phases[1:]]
    assert run.phases.count(OBSERVE) == pytest.approx(plain.run(steps=3000).phases.count(OBSERVE), rel=0.02)


def test_the_same_durations_give_the_same_choices(case):
    runs = []
    for _ in range(2):
        stream = random.Random(5)
        run = case()
        run.bare = lambda _, stream=stream: stream.uniform(0.01, 0.02)
        runs.append(run.run(steps=2000).phases)
    assert runs[0] == runs[1]


@HOW
def test_a_long_run_remembers_no_more_than_a_short_one(how):
    run = Simulation(0.01, observing(0.01), {"budget": 0.02}, **how).run(steps=20_000)
    assert len(run.cadence._phases) <= 6


@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}, {"every": 5}, {"every": 40}], ids=str)
def test_quiet_steps_change_nothing_about_which_are_observed(options):
    loud, quiet = (
        Simulation(0.01, observing(0.01), options, tick_every=1.0, quiet=silent).run(steps=6000)
        for silent in (False, True)
    )
    assert quiet.phases.count(OBSERVE) == pytest.approx(loud.phases.count(OBSERVE), abs=3)
    if "every" in options:
        assert quiet.phases == loud.phases


def test_restart_begins_from_the_beginning():
    run = Simulation(0.01, observing(0.01), ALLOWANCE).run(steps=3000)
    first = run.phases
    run.phases = []
    run.state.restart()
    assert run.cost.overhead is None
    assert (run.cost.spent, run.cost.bare) == (0.0, 0.0)
    assert run.run(steps=3000).phases == first


# something unusual


def test_something_unusual_buys_two_seconds_of_observing():
    run, calm = (Simulation(0.01, observing(0.01), ALLOWANCE).run(60) for _ in range(2))
    run.cadence.notice("a")
    begin = run.number
    run.run(80)
    calm.run(80)
    assert run.spent - calm.spent == pytest.approx(GIFT, rel=0.05)
    assert run.phases[begin : begin + 160].count(OBSERVE) > 130
    run.run(180)
    calm.run(180)
    assert run.spent - calm.spent == pytest.approx(GIFT, rel=0.05)


def test_a_kind_is_unusual_once_and_others_not_too_soon_after_each_other():
    run, calm = (Simulation(0.05, observing(0.05), ALLOWANCE).run(60) for _ in range(2))
    for _ in range(20):
        run.cadence.notice("a")
        run.run(run.took + 10)
        run.cadence.notice("b")
    calm.run(run.took)
    assert run.spent - calm.spent == pytest.approx(GIFT, rel=0.1)
    run.run(60 + GIFT_EVERY + 10)
    for kind in "ab":  # b came too soon, and is known by now
        run.cadence.notice(kind)
        run.run(run.took + 20)
    calm.run(run.took)
    assert run.spent - calm.spent == pytest.approx(GIFT, rel=0.1)
    run.cadence.notice("c")
    run.run(run.took + 100)
    calm.run(run.took)
    assert run.spent - calm.spent == pytest.approx(2 * GIFT, rel=0.1)


def test_a_step_that_was_decided_is_not_changed_by_something_unusual():
    run = Simulation(0.01, observing(0.01), ALLOWANCE, in_graph=True).run(60)
    while run.state.observing or run.cadence.phase(run.number) != IDLE:
        run.step()
    decided = [run.cadence.phase(run.number)]
    run.cadence.notice("a")
    run.run(steps=20)
    assert [run.phases[-20]] == decided
    assert run.phases[-20:].count(OBSERVE) > 10


# on from a checkpoint


def resumed(run):
    """The same run in another process."""
    saved = run.state.state_dict()
    run.begin()
    run.state.load_state_dict(saved)
    return run


@pytest.mark.parametrize("steps", [100, 3000])
def test_a_resumed_run_goes_on_with_the_same_account(steps):
    run, whole = (Simulation(0.01, observing(0.01), ALLOWANCE).run(steps=steps) for _ in range(2))
    resumed(run).run(60)
    whole.run(60)
    assert run.ratio == pytest.approx(whole.ratio, abs=0.002)
    assert run.cost.spent == pytest.approx(run.spent, rel=0.02)
    assert run.cost.bare == pytest.approx(run.trained, rel=0.01)


def test_a_run_that_is_often_resumed_gets_no_new_head_start():
    run = Simulation(0.01, observing(0.01), ALLOWANCE).run(30)
    for seconds in range(35, 95, 5):
        resumed(run).run(seconds)
    assert run.ratio == pytest.approx(1 + 0.03 + 2 / run.trained, abs=0.006)


def test_what_was_unusual_before_a_checkpoint_is_known_after_it():
    run, calm = (Simulation(0.01, observing(0.01), ALLOWANCE).run(60) for _ in range(2))
    run.cadence.notice("a")
    run.run(80)
    resumed(run).cadence.notice("a")
    run.run(100)
    calm.run(100)
    assert run.spent - calm.spent == pytest.approx(GIFT, rel=0.1)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("at", range(8))
def test_a_checkpoint_parts_no_pair(in_graph, at):
    options = {"every": 4} if at < 4 else {"budget": 0.02}
    run = Simulation(0.01, observing(0.005), options, in_graph=in_graph).run(steps=400)
    while run.state.phase != BASELINE:
        run.step()
    run.run(steps=at % 4)
    said = [run.state.phase, *(run.cadence.phase(run.number + ahead) for ahead in range(in_graph + 1))]
    resumed(run)
    assert said == [run.state.phase, *(run.cadence.phase(run.number + ahead) for ahead in range(in_graph + 1))]
    run.run(steps=1000)
    assert {after for before, after in pairwise(run.phases) if before == BASELINE} == {OBSERVE}


# several processes


class Ranks:
    """Simulated processes that wait for each other at each step, and agree at ticks."""

    def __init__(self, monkeypatch, costs, options, ticks, **how):
        monkeypatch.setattr(inspector_state, "several_processes", lambda: True)
        self.runs = [Simulation(0.01, observing(cost), options, **how) for cost in costs]
        self.ticks = ticks

    def run(self, seconds):
        while max(run.took for run in self.runs) < seconds:
            for _ in range(self.ticks):
                for run in self.runs:
                    run.step()
            for run in self.runs:
                if (due := run.state.agreements.due()) is not None:
                    run.state.apply(due)
                run.state.wished_tick = self.ticks
            shared = [Wishes(run.state) for run in self.runs]
            together = merged({rank: one.payload() for rank, one in enumerate(shared)})
            for run, one in zip(self.runs, shared, strict=True):
                one.merge_ranks(together)
                run.state.agreements.reach(run.state.agreements.begin(), one.agreement)
                run.state.tick()
        return self.runs


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}], ids=["allowance", "budget"])
@pytest.mark.parametrize("ticks", [slow(10), 100, slow(1000)])
def test_all_processes_observe_the_steps_that_the_slowest_can_afford(options, ticks, quiet, monkeypatch):
    slow, fast = Ranks(monkeypatch, [0.01, 0.002], options, ticks, quiet=quiet).run(100)
    assert slow.phases == fast.phases
    assert slow.spent == pytest.approx(allowed(slow), rel=0.15)
    assert {after for before, after in pairwise(slow.phases) if before == BASELINE} == {OBSERVE}


def test_until_they_agree_processes_observe_the_same_and_ever_fewer_steps(monkeypatch):
    slow, fast = Ranks(monkeypatch, [1.0, 0.002], ALLOWANCE, 10_000).run(1)
    assert slow.phases == fast.phases
    observed = [slow.phases[begin : 2 * begin].count(OBSERVE) for begin in (16, 32, 64, 128, 256, 512, 1024, 2048)]
    assert all(6 <= count <= 9 for count in observed)
    assert slow.phases[:15].count(OBSERVE) == 15 - CHECK_STEPS
    assert {after for before, after in pairwise(slow.phases) if before == BASELINE} == {OBSERVE}


def test_processes_that_agree_on_a_fixed_share_keep_it(monkeypatch):
    for run in Ranks(monkeypatch, [0.01, 0.5], {"every": 6}, 10).run(20):
        observed = [step for step, phase in enumerate(run.phases, start=1) if phase == OBSERVE]
        assert observed == list(range(6, len(run.phases) + 1, 6))


def test_something_unusual_in_one_process_is_looked_at_by_all(monkeypatch):
    ranks = Ranks(monkeypatch, [0.01, 0.01], ALLOWANCE, 100)
    runs = ranks.run(60)
    before = [run.phases.count(OBSERVE) for run in runs]
    for run in runs:  # rows are merged, so all of them see it
        run.cadence.notice("a")
    later = [run.phases.count(OBSERVE) for run in ranks.run(70)]
    assert later[0] == later[1] > before[0] + 100


def test_a_process_that_works_alone_has_an_account_of_its_own(monkeypatch):
    run, _ = Ranks(monkeypatch, [0.01, 0.002], ALLOWANCE, 10).run(20)
    run.state.work_alone()
    assert run.cadence.common_n is None
    assert run.run(100).spent == pytest.approx(allowed(run), rel=0.1)


def test_restart_forgets_what_was_agreed():
    cadence = Cadence(budget=0.1)
    cadence.common_n = 3
    assert [step for step in range(1, 10) if cadence.phase(step) == OBSERVE] == [3, 6, 9]
    cadence.restart()
    assert cadence.common_n is None


# devices


@pytest.mark.parametrize("quiet", [False, True])
def test_on_a_device_some_idle_steps_are_measured_and_no_others(quiet, device, monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: events.append(1) or device.event(enable_timing))
    run = Simulation(0.01, observing(0.01), {"every": 400}, device=device, quiet=quiet).run(steps=400)
    events.clear()
    run.run(steps=390)
    assert len(events) <= 390 // MEASURED * 2 + 3
    assert run.cost.bare_step == pytest.approx(0.01)


def test_steps_whose_hooks_are_timed_on_a_device_are_not_quiet(device):
    seen = []

    def look(run):
        seen.append((run.cadence.clock.times_hooks, run.state.is_quiet))

    Simulation(0.01, observing(0.01), {"every": 400}, device=device, quiet=True, between=look).run(steps=390)
    assert {times for times, _ in seen} == {quiet for _, quiet in seen} == {True, False}
    assert (True, True) not in seen


@pytest.mark.parametrize("other", [None, "cpu", torch.device("cpu"), "meta"])
def test_another_device_means_the_time_of_the_host(other, device):
    time = Time()
    cadence = Cadence(every=3, device="cuda", clock=time)
    end_on(device, cadence.clock, 5.0)
    cadence.use(other)
    for step in range(1, 6):
        time.now += 3.0
        cadence.end_step(step, IDLE)
    assert cadence.clock.usual(IDLE) == 3.0


def test_naming_the_same_device_again_forgets_nothing():
    run = Simulation(1.0, observing(0.5), {"every": 3, "device": "cpu"}).run(steps=20)
    run.cadence.use(torch.device("cpu"))
    assert run.cadence.clock.usual(IDLE) == 1.0


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
            cadence.end_step(step, phase)
        _ = cadence.cost.overhead
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert cadence.clock.usual(OBSERVE) > cadence.clock.usual(IDLE) > 0
    assert cadence.cost.overhead > 0


# tiny models


@pytest.mark.parametrize("options", [ALLOWANCE, {"budget": 0.02}], ids=["allowance", "budget"])
def test_steps_are_observed_though_idle_hooks_and_ticks_take_more_than_the_budget(options):
    prices = observing(0.001, hooks=(0.00005, 0.0003, 0.0006), tick=0.01)
    run = Simulation(0.0005, prices, options, tick_every=1.0).run(30)
    later = run.phases[len(run.phases) // 2 :]
    per_pair = sum(run.cost.price(phase) for phase in (BASELINE, OBSERVE))
    share = later.count(OBSERVE) * per_pair / (len(later) * 0.0005)
    assert share == pytest.approx(options["budget"] / 6, rel=0.2)
    assert run.cost.overhead == pytest.approx(0.1 + 0.01 + share, abs=0.01)


@pytest.mark.parametrize(("options", "first"), [(ALLOWANCE, True), ({"budget": 0.03}, False), ({"every": 5}, False)])
def test_whether_the_overhead_still_covers_the_head_start(options, first):
    run = Simulation(0.01, observing(0.04), options)
    assert run.cadence.shows_head_start is first
    run.run(4)
    assert run.cadence.shows_head_start is first
    if first:
        assert run.cost.overhead > 0.5
        again = Cadence(**options)
        again.load_state_dict(run.cadence.state_dict())
        assert not again.shows_head_start
    run.run(30)
    assert not run.cadence.shows_head_start
    if "budget" in options:
        assert run.cost.overhead == pytest.approx(0.03, abs=0.005)
