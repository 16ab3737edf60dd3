"""What processes agree on, and when it takes effect."""

import pytest

from monitorch.engine.ranks import merged
from monitorch.engine.reductions import Seat
from monitorch.inspector.agreements import LATENESS, Agreement, Agreements, SharedEvents, Wishes, wishes
from monitorch.inspector.inspector_state import InspectorState
from monitorch.store import Event

STOP = Event(7, "not finite", "error")


def wishes_of(shared):
    return tuple(row.high for row in shared.payload().moments.values())


def test_how_many_steps_must_be_paid_is_what_comes_until_the_next_tick_or_came_since_the_last():
    state, asked = InspectorState(), []
    state.cadence.affordable_n = lambda *asked_for: asked.append((asked_for[0], *asked_for[1])) or 3
    state.step = 500  # nobody says when the next tick comes, as with epochs
    assert wishes_of(Wishes(state)) == (3, 500)
    state.step, state.wished_tick = 1200, 50
    assert wishes_of(Wishes(state)) == (3, 50)
    state.wished_tick = 9000
    assert wishes_of(Wishes(state)) == (3, 9000)
    assert asked == [(500,), (700, 3), (9000, 3, 3)]


def test_a_tick_at_the_very_beginning_asks_for_one_step():
    assert wishes_of(Wishes(InspectorState())) == (1, 1)


def test_the_largest_wishes_of_all_processes_hold():
    wish = Wishes(InspectorState())
    wish.merge_ranks(merged({0: wishes(3, 70), 1: wishes(9, 20)}))
    assert wish.agreement == Agreement(9, 70)


def test_an_agreement_takes_effect_some_ticks_later():
    agreements = Agreements()
    for tick in range(1, 10):
        due = agreements.due()
        assert due == (Agreement(tick - LATENESS, 1) if tick > LATENESS else None)
        assert agreements.begin() == tick
        agreements.reach(tick, Agreement(tick, 1))


def test_where_processes_did_not_meet_nothing_changes():
    agreements = Agreements()
    for _ in range(10):
        agreements.begin()
        assert agreements.due() is None


def test_what_is_agreed_on_is_done():
    state = InspectorState()
    state.apply(Agreement(8, 500))
    assert (state.cadence.common_n, state.cadence.has_agreed, state.steps_to_next_tick) == (8, True, 500)
    assert not state.agreed_stop
    state.apply(Agreement(8, 500, STOP))
    assert (state.agreed_stop, state.events.stop) == (True, STOP)


@pytest.fixture
def several(monkeypatch):
    monkeypatch.setattr("monitorch.inspector.events.several_processes", lambda: True)


def test_events_of_later_steps_wait_for_the_next_tick_however_long_this_one_takes(several):
    state = InspectorState()
    state.events.stop_on = "error"
    state.events.add(2, "before")
    state.step = 3
    tick = SharedEvents(state, Seat(), is_main=True)
    state.events.add(4, "bad", "error")  # training goes on while the tick is put together
    state.events.add(3, "found in its rows")
    events, stop = tick.payload().facts
    assert ([event.kind for event in events], stop) == (["before", "found in its rows"], None)
    state.step = 6
    events, stop = SharedEvents(state, Seat(), is_main=True).payload().facts
    assert ([event.kind for event in events], stop.kind) == (["bad"], "bad")


def test_a_tick_without_events_sends_none(several):
    assert SharedEvents(InspectorState(), Seat(), is_main=True).payload().facts is None
