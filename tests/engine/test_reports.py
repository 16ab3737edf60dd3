"""What is said when monitoring itself goes wrong."""

from collections import Counter

import pytest

from monitorch import MonitorchWarning
from monitorch.engine import reports
from monitorch.engine.reports import cause_of, tell
from monitorch.errors import TrainingStopped
from monitorch.inspector import InspectorState


def test_each_cause_is_told_once():
    state = InspectorState()
    with pytest.warns(MonitorchWarning, match=r"counting failed: ValueError: three\. Training goes on"):
        tell(state, "counting", ValueError("three"))
    tell(state, "adding", ValueError("three"))  # a second warning would be an error here
    with pytest.warns(MonitorchWarning, match="adding failed: ValueError: four"):
        tell(state, "adding", ValueError("four"))


def test_without_a_state_it_is_told_once_all_the_same(monkeypatch):
    monkeypatch.setattr(reports, "_told_by_nobody", Counter())
    with pytest.warns(MonitorchWarning, match="counting failed"):
        tell(None, "counting", ValueError("three"))
    tell(None, "counting", ValueError("three"))


def test_training_that_was_asked_to_stop_stops():
    error = TrainingStopped("at step 3")
    with pytest.raises(TrainingStopped) as caught:
        tell(InspectorState(on_error="warn"), "counting", error)
    assert caught.value is error


def test_errors_go_on_where_they_are_asked_for():
    error = ValueError("three")
    with pytest.raises(ValueError, match="three") as caught:
        tell(InspectorState(on_error="raise"), "counting", error)
    assert caught.value is error


@pytest.mark.parametrize(
    ("text", "expected"), [("short", "short"), ("", ""), ("one\ntwo", "one"), ("x" * 500, "x" * 300 + "...")]
)
def test_a_cause_is_one_line(text, expected):
    assert cause_of(ValueError(text)) == f"ValueError: {expected}"
