"""Counting ticks, and whether to record."""

import math
import pickle

import pytest

from monitorch.errors import OptionError
from monitorch.inspector import inspector_state
from monitorch.inspector.cadence import Cadence, Phase
from monitorch.inspector.inspector_state import InspectorState


def active_ticks(state, ticks=9):
    found = []
    for _ in range(ticks):
        if state.is_active:
            found.append(state.counter)
        state.tick()
    return found


@pytest.mark.parametrize(
    ("is_active_fn", "expected"),
    [
        (1, list(range(1, 10))),
        (True, list(range(1, 10))),
        (3, [3, 6, 9]),
        (10, []),
        (lambda n: n > 6, [7, 8, 9]),
        (lambda n: n % 4, [1, 2, 3, 5, 6, 7, 9]),
    ],
)
def test_active_ticks(is_active_fn, expected):
    assert active_ticks(InspectorState(is_active_fn)) == expected


@pytest.mark.parametrize(
    ("is_active_fn", "text"),
    [
        (0, "is_active_fn=0 must be at least 1"),
        (False, "is_active_fn=False must be at least 1"),
        (-2, "is_active_fn=-2 must be at least 1"),
        ("3", "is_active_fn='3' must be a whole number or a function"),
        (2.0, "is_active_fn=2.0 must be a whole number or a function"),
        (None, "is_active_fn=None must be a whole number or a function"),
    ],
)
def test_impossible_cadence_is_refused_at_once(is_active_fn, text):
    with pytest.raises(OptionError, match=text):
        InspectorState(is_active_fn)


def test_unknown_error_mode_is_refused_with_the_choices():
    with pytest.raises(OptionError, match="on_error='ignore' is unknown; choose from 'warn', 'raise'"):
        InspectorState(on_error="ignore")


def test_counts_from_one_and_starts_unattached():
    state = InspectorState()
    assert (state.counter, state.attached, state.on_error) == (1, False, "warn")
    assert state.tick() == 2
    assert state.tick(5) == 7
    assert state.counter == 7


def test_restart_counts_from_one_again():
    state = InspectorState()
    state.tick(4)
    state.step = 9
    state.restart()
    assert (state.counter, state.ticks, state.step) == (1, 0, 0)


def test_a_closure_is_asked_every_time():
    training = [True]
    state = InspectorState(lambda n: training[0])
    assert state.is_active
    training[0] = False
    assert not state.is_active


def test_paused_state_is_inactive_whatever_the_function_says():
    state = InspectorState(lambda n: True)
    state.paused = True
    assert not state.is_active


def test_state_with_a_number_can_be_pickled():
    assert active_ticks(pickle.loads(pickle.dumps(InspectorState(3)))) == [3, 6, 9]


# steps


class Follower:
    def __init__(self, state):
        self.state, self.told = state, []
        state.follow(self)

    def step_begins(self):
        self.told.append(("begins", self.state.step))

    def step_is_over(self):
        self.told.append(("is over", self.state.step))

    def evaluation_begins(self):
        self.told.append(("evaluation", self.state.step))


def test_what_is_done_in_the_first_step_is_decided_once_it_is_known_what_lenses_need():
    state = InspectorState(cadence=Cadence(every=2))
    assert state.phase == Phase.BASELINE
    state.begin(compares=False)
    assert state.phase == Phase.IDLE
    state.next_step()
    assert state.phase == Phase.OBSERVE
    state.begin(compares=True)  # another lens came
    assert state.phase == Phase.OBSERVE
    state.next_step()
    assert state.phase == Phase.BASELINE


def test_followers_are_told_of_steps_that_end_by_themselves():
    state = InspectorState()
    follower = Follower(state)
    for _ in range(2):
        state.begin_pass()
        state.begin_pass()  # of the same step
        state.next_step()
    state.begin_evaluation()
    assert follower.told == [("begins", 0), ("is over", 1), ("begins", 1), ("is over", 2), ("evaluation", 2)]


def test_a_step_that_begins_with_a_pass_ends_when_the_next_one_begins():
    state, ended = InspectorState(cadence=Cadence(every=3)), []
    follower = Follower(state)
    state.cadence.cost.end_step = lambda phase, in_hooks: ended.append((state.step, phase.name))
    phases = []
    for _ in range(7):
        state.next_step(begins=1)
        phases.append(state.phase.name[0])
    assert "".join(phases) == "IBOIBOI"
    assert ended == [(1, "IDLE"), (2, "BASELINE"), (3, "OBSERVE"), (4, "IDLE"), (5, "BASELINE"), (6, "OBSERVE")]
    assert follower.told == [("begins", step) for step in range(7)]


def test_a_step_has_ended_for_the_clock_before_a_tick_can_come():
    order, state = [], InspectorState()
    end = state.cadence.end_step
    state.cadence.end_step = lambda *args: order.append("end") or end(*args)
    follower = Follower(state)
    follower.step_begins = lambda: order.append("tick")
    for _ in range(3):
        state.next_step(begins=1)
    assert order == ["tick", "end", "tick", "end", "tick"]


def test_an_evaluation_is_known_to_the_cost():
    state = InspectorState()
    state.begin_evaluation()
    assert state.cadence.cost.has_evaluated
    state.next_step()
    assert not state.cadence.cost.has_evaluated


def test_the_time_of_a_tick_is_no_part_of_a_step_or_its_hooks():
    now = [0.0]
    state = InspectorState(cadence=Cadence(every=100, clock=lambda: now[0]))
    for _ in range(3):
        now[0] += 1.0
        hook, begin = state.clock.enter(), state.clock.begin_pause()
        now[0] += 50.0
        state.end_tick(begin, 7.0)
        state.clock.leave(hook)
        now[0] += 1.0
        state.next_step()
    state.cadence.cost.settle()
    assert state.clock.usual(Phase.IDLE) == 1.0
    assert state.clock.usual_in_hooks(Phase.IDLE) == 0.0
    assert (state.cadence.cost.spent, state.cadence.cost.in_ticks) == (171.0, 171.0)


class Engine:
    """Notes when hooks come and go."""

    def __init__(self):
        self.is_awake, self.calls = True, []

    def wake(self):
        self.is_awake = True
        self.calls.append("wake")

    def rest(self):
        self.is_awake = False
        self.calls.append("rest")


def test_hooks_come_with_baseline_steps_and_go_after_observed_ones():
    state = InspectorState(cadence=Cadence(every=4))
    state.engine = engine = Engine()
    state.begin()
    seen = []
    for _ in range(8):
        seen.append(engine.is_awake)
        state.next_step()
    assert seen == [False, False, True, True] * 2
    assert engine.calls == ["rest", "wake", "rest", "wake", "rest"]


def test_pauses_and_ticks_that_record_nothing_take_hooks_off():
    state = InspectorState(is_active_fn=2)
    state.engine = engine = Engine()
    state.tick()
    assert engine.calls == []
    with state.pause():
        assert engine.calls == ["rest"]
    assert engine.calls == ["rest", "wake"]
    state.tick()
    state.stop_recording()
    assert engine.calls == ["rest", "wake", "rest"]


def test_an_answer_that_may_change_at_any_time_leaves_hooks_on():
    state = InspectorState(lambda tick: False)
    state.engine = engine = Engine()
    for _ in range(3):
        state.next_step()
        state.tick()
    assert engine.calls == []


def test_putting_hooks_on_and_off_is_paid_for():
    state = InspectorState(cadence=Cadence(every=4))
    state.engine = Engine()
    for _ in range(8):
        state.next_step()
    state.cadence.cost.settle()
    assert state.cadence.cost.spent > 0


def test_a_saved_state_goes_on_where_it_was():
    state, again = (InspectorState(cadence=Cadence(every=4)) for _ in range(2))
    for _ in range(6):
        state.next_step()
    state.tick(3)
    state.report("score")
    again.load_state_dict(state.state_dict())
    assert (again.counter, again.ticks, again.step, again.reported) == (4, 3, 6, {"score"})
    for _ in range(9):
        assert (again.phase, again.is_baseline, again.observing) == (state.phase, state.is_baseline, state.observing)
        state.next_step()
        again.next_step()


def test_a_tick_that_was_planned_can_be_closed_early():
    state = InspectorState()
    state.close_tick_soon()
    assert state.tick_time == math.inf  # nobody plans ticks
    state.tick_step = 100
    state.is_quiet = True
    state.close_tick_soon()
    assert state.tick_time == -math.inf
    assert not state.is_quiet


def test_with_several_processes_only_those_that_tick_alone_close_ticks_early(monkeypatch):
    monkeypatch.setattr(inspector_state, "several_processes", lambda: True)
    state = InspectorState()
    state.tick_step = 100
    state.close_tick_soon()
    assert state.tick_time == math.inf
    state.per_rank = True
    state.close_tick_soon()
    assert state.tick_time == -math.inf


@pytest.mark.parametrize(("device", "rests"), [(None, 0), ("cpu", 0), ("cuda", 1)])
def test_ticks_rest_where_a_device_goes_on_meanwhile(device, rests, monkeypatch):
    state, rested = InspectorState(), []
    monkeypatch.setattr(state._finisher, "rest", lambda: rested.append(1))
    state.cadence.use(device)
    state.rest()
    assert len(rested) == rests
