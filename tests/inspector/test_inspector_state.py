"""Counting ticks, and whether to record."""

import pickle

import pytest

from monitorch.errors import OptionError
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
